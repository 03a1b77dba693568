"""What must happen next in a turn; nothing is done here."""

import msgspec

from holdfast.canonical.blocks import ToolUse
from holdfast.engine.state import State, open_calls


class CallModel(msgspec.Struct, frozen=True):
    """The conversation ends on the user's side: it is the model's turn."""


class RunTools(msgspec.Struct, frozen=True):
    calls: tuple[ToolUse, ...]


class RefuseTools(msgspec.Struct, frozen=True):
    """The model asks for more, but the turn has had its calls: answer, so that the transcript stays legal."""

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
