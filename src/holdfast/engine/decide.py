"""Decides the next step of a turn; a pure function of the state."""

import msgspec

from holdfast.canonical.blocks import ToolUse
from holdfast.engine.state import State, open_calls


class CallModel(msgspec.Struct, frozen=True):
    """The last message is the user's or a tool's: the model is next."""


class RunTools(msgspec.Struct, frozen=True):
    calls: tuple[ToolUse, ...]


class RefuseTools(msgspec.Struct, frozen=True):
    """The turn's call limit is reached: answer the model's tool calls anyway, so that the transcript stays legal."""

    calls: tuple[ToolUse, ...]


class Finish(msgspec.Struct, frozen=True):
    pass


Step = CallModel | RunTools | RefuseTools | Finish


def next_step(state: State, *, steps_max: int) -> Step:
    calls = open_calls(state)
    limit_reached = state.turn is not None and state.turn.llm_calls >= steps_max
    if calls:
        return RefuseTools(calls) if limit_reached else RunTools(calls)
    if state.passages and state.passages[-1].role == "assistant":
        return Finish()
    return Finish() if limit_reached else CallModel()
