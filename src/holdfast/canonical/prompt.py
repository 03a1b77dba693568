"""What goes to a provider, before it is spelled: segments in wire order, marks, and parameters."""

import enum
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.canonical.blocks import Block, Role, Text, is_thinking
from holdfast.canonical.tools import ToolSpec


class Stability(enum.IntEnum):
    """How often the bytes of a part change; the prompt is ordered by it."""

    FROZEN = 0  # with a release
    EPOCH = 1  # at the start of a session or at a compaction, never between
    GROWING = 2  # only by appending
    VOLATILE = 3  # every turn


Place = Literal["tools", "system", "messages"]


class Passage(msgspec.Struct, frozen=True):
    """Blocks that entered the conversation together.

    Neighbouring passages of one role are one message on the wire, so that a passage can be appended to a
    message that was already sent without moving a byte of it. `number` says which message of the session's log it
    is, counted from 1; 0 is none of them.
    """

    role: Role
    content: tuple[Block, ...]
    layer: str = "history"
    stability: Stability = Stability.GROWING
    ephemeral: bool = False
    number: int = 0

    @property
    def injected(self) -> bool:
        """Whether a volatile layer put this here, and not a person, a model or a tool."""
        return self.layer != "history"


def without_thinking(passage: Passage) -> Passage | None:
    """The passage itself where nothing was thought in it; None where nothing else was said."""
    content = tuple(block for block in passage.content if not is_thinking(block))
    if len(content) == len(passage.content):
        return passage
    return msgspec.structs.replace(passage, content=content) if content else None


class Segment(msgspec.Struct, frozen=True):
    """One layer's part of the prompt. Which of the three contents it has is told by its place."""

    name: str
    stability: Stability
    place: Place
    tools: tuple[ToolSpec, ...] = ()
    system: tuple[Text, ...] = ()
    passages: tuple[Passage, ...] = ()


class Prompt(msgspec.Struct, frozen=True):
    """Segments in wire order: tools, then system, then messages, most stable first."""

    segments: tuple[Segment, ...]

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(tool for segment in self.segments for tool in segment.tools)

    @property
    def passages(self) -> tuple[Passage, ...]:
        found: tuple[Passage, ...] = ()
        for segment in self.segments:
            if segment.passages:
                # The history is by far the longest, and first: it is taken as it is and copied at most once.
                found += segment.passages
        return found


Ttl = Literal["5m", "1h", "30m", "12h"]
"""Lifetimes that a mark can ask for; each provider takes two of them."""


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request to the provider to keep the prefix that ends with this piece.

    `saving_usd` is what it is expected to save by the next call, beside the marks in front of it; below 0 where it is
    an investment.
    """

    piece: int
    ttl: Ttl = "5m"
    reason: str = ""
    saving_usd: Decimal = Decimal(0)


class Odds(msgspec.Struct, frozen=True):
    """What was expected of the session when lifetimes were chosen.

    `pause`: the next gap is longer than the short lifetime and no longer than the long one. `pauses_left`: how many
    such gaps are still to come. `upgrade`: a long lifetime behind a warm prefix keeps that prefix too.
    """

    pause: float
    pauses_left: float
    upgrade: float


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the marks go; pieces are counted from the start of the prompt. `notes` say what was not done, and why.

    `floor_tokens` is the size from which on prompts were taken to be cached, `expected_read_tokens` what this request
    must read of what was kept before.
    """

    marks: tuple[Mark, ...] = ()
    odds: Odds | None = None
    notes: tuple[str, ...] = ()
    floor_tokens: int | None = None
    expected_read_tokens: int = 0


class Parameters(msgspec.Struct, frozen=True):
    """Everything in a request that is not the prompt.

    `extra` holds fields that we do not know, as (name, JSON text), so that they survive a round trip.
    """

    model: str
    output_tokens_max: int
    stream: bool = False
    stop_sequences: tuple[str, ...] = ()
    temperature: float | None = None
    tool_choice_json: str | None = None
    thinking_json: str | None = None
    betas: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
