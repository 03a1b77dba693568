"""The prompt before it is encoded for a provider: the conversation it is made of, its segments, plan and parameters."""

import enum
import re
from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.types.blocks import Block, Role, Text, ToolResult, ToolUse, is_thinking
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.tool_spec import ToolSpec

PromptSection = Literal["tools", "system", "messages"]

Ttl = Literal["5m", "1h", "30m", "12h"]
"""TTLs that a breakpoint can ask for: 5m and 1h at Anthropic and OpenRouter, 30m and 12h at OpenAI."""

PrefixChangeCause = Literal["clock", "id", "path", "order", "tool schema", "tool list", "removed", "text", "unknown"]
"""The likely reason why the bytes changed: `path` is a temporary path, `removed` is history that is missing."""

Layout = Literal["default", "seed"]
"""Where volatile text goes: `default` after the history, `seed` at the end of the system prompt."""

OLD_THINKING = "old_thinking"
"""The setting that changes when a turn with thinking ends, for models that drop the thinking of earlier turns."""

_CALL_ID_DIGEST_CHARS = 24  # 96 bits: no two calls of a conversation share an id by chance.


class Stability(enum.IntEnum):
    """How often the bytes of a part change. The prompt is ordered by it: a change invalidates only what comes after."""

    FROZEN = 0  # with a release
    EPOCH = 1  # at the start of a session or at a compaction, never between
    GROWING = 2  # only by appending
    VOLATILE = 3  # every turn


class HistoryEntry(msgspec.Struct, frozen=True):
    """Blocks that were added to the conversation together.

    Adjacent entries of one role form one message on the wire, so that an entry can be appended to a message that was
    already sent without changing a byte of it. `number` is the message's number in the session's log, from 1; 0 if
    the entry is not a message of the log. `fields` are members of the wire message that have no place of their own,
    as (name, JSON text); an entry with fields starts a message of its own.
    """

    role: Role
    content: tuple[Block, ...]
    layer: str = "history"
    stability: Stability = Stability.GROWING
    ephemeral: bool = False
    number: int = 0
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def is_injected(self) -> bool:
        """Whether a volatile layer added this, as opposed to the user, the model or a tool."""
        return self.layer != "history"


def drop_thinking(entry: HistoryEntry) -> HistoryEntry | None:
    """The entry without its thinking blocks: the same object if it has none, None if it has nothing else."""
    content = tuple(block for block in entry.content if not is_thinking(block))
    if len(content) == len(entry.content):
        return entry
    return msgspec.structs.replace(entry, content=content) if content else None


def fit_call_id(id: str, legal: re.Pattern[str]) -> str:
    """The id itself if the provider accepts it, else a replacement that depends only on the id."""
    return id if legal.fullmatch(id) else f"call_{sha256_hex(id.encode(errors='replace'))[:_CALL_ID_DIGEST_CHARS]}"


def fit_call_ids(entry: HistoryEntry, legal: re.Pattern[str]) -> HistoryEntry:
    """The entry with an id that the provider accepts on every call and every result.

    A provider may refuse ids that another provider assigned.
    """
    for block in entry.content:
        if _with_fitting_id(block, legal) is not block:
            content = tuple(_with_fitting_id(block, legal) for block in entry.content)
            return msgspec.structs.replace(entry, content=content)
    return entry


def _with_fitting_id(block: Block, legal: re.Pattern[str]) -> Block:
    match block:
        case ToolUse(id=id) if not legal.fullmatch(id):
            return msgspec.structs.replace(block, id=fit_call_id(id, legal))
        case ToolResult(tool_use_id=id) if not legal.fullmatch(id):
            return msgspec.structs.replace(block, tool_use_id=fit_call_id(id, legal))
        case _:
            return block


class Segment(msgspec.Struct, frozen=True):
    """One layer's part of the prompt. Its section determines which of the three content fields is set."""

    name: str
    stability: Stability
    section: PromptSection
    tools: tuple[ToolSpec, ...] = ()
    system: tuple[Text, ...] = ()
    entries: tuple[HistoryEntry, ...] = ()


class Prompt(msgspec.Struct, frozen=True):
    """Segments in wire order: tools, then system, then messages, most stable first."""

    segments: tuple[Segment, ...]

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return tuple(tool for segment in self.segments for tool in segment.tools)

    @property
    def entries(self) -> tuple[HistoryEntry, ...]:
        entries: tuple[HistoryEntry, ...] = ()
        for segment in self.segments:
            if segment.entries:
                # The history is by far the longest and comes first, so that it is copied at most once.
                entries += segment.entries
        return entries


class Breakpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cache breakpoint: asks the provider to cache the prefix that ends with this block.

    `saving_usd` is the expected saving by the next call, on top of the breakpoints before it; negative if the write
    only pays off later.
    """

    block_index: int
    ttl: Ttl = "5m"
    reason: str = ""
    saving_usd: Decimal = Decimal(0)


class PlanProbabilities(msgspec.Struct, frozen=True):
    """The estimates on which the choice of TTLs was based.

    `pause`: probability that the next idle time is longer than the short TTL but within the long one. `pauses_left`:
    expected number of such idle times still to come. `upgrade`: probability that a breakpoint with a long TTL after a
    warm prefix extends that prefix's TTL too.
    """

    pause: float
    pauses_left: float
    upgrade: float


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the breakpoints go; blocks are counted from the start of the prompt. `notes` explain what was left out.

    `floor_tokens` is the minimum cacheable prompt size that the plan assumed, `expected_read_tokens` what this request
    must read from entries that earlier requests wrote.
    """

    breakpoints: tuple[Breakpoint, ...] = ()
    probabilities: PlanProbabilities | None = None
    notes: tuple[str, ...] = ()
    floor_tokens: int | None = None
    expected_read_tokens: int = 0


class Parameters(msgspec.Struct, frozen=True):
    """Everything in a request that is not the prompt.

    An `output_tokens_max` of 0 stands for a request without a limit; Anthropic has none without, and answers 0 with
    nothing.
    `extra` holds fields without a place of their own, as (name, JSON text), so that they survive a round trip.
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


class PrefixChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first cacheable byte that differs, the section of the prompt it is in, and the likely cause.

    `diff` shows the surrounding lines with every letter replaced by x and every digit by 0. `tail` is set if the change
    is after the last assistant message of the request before, in what that request added: `rewritten` if the message
    is still there in another form, `replaced` if this request has another one in its place.
    """

    byte: int
    section: PromptSection | None = None
    cause: PrefixChangeCause = "unknown"
    detail: str = ""
    diff: tuple[str, ...] = ()
    tail: Literal["rewritten", "replaced"] | None = None


class LayerText(msgspec.Struct, frozen=True):
    """The text of one layer. Ephemeral text is removed from the conversation when its turn ends."""

    layer: str
    text: str
    ephemeral: bool = False


class View(msgspec.Struct, frozen=True):
    """A conversation before a call.

    `pinned` holds the texts of the stable layers for the whole epoch; `head` is their segments, if already built.
    `history` was sent before and never changes; `newest` is what this call adds. `current` is what the volatile
    layers would emit now, `emitted` what each of them emitted last.
    """

    tools: tuple[ToolSpec, ...] = ()
    pinned: tuple[LayerText, ...] = ()
    history: tuple[HistoryEntry, ...] = ()
    newest: tuple[HistoryEntry, ...] = ()
    current: tuple[LayerText, ...] = ()
    emitted: tuple[LayerText, ...] = ()
    layout: Layout = "default"
    head: tuple[Segment, ...] | None = None


def find_layer_text(layer: str, texts: tuple[LayerText, ...]) -> LayerText | None:
    """The last of the texts that belongs to the layer."""
    # A loop, because this runs for every volatile layer on every call and a generator takes twice as long.
    for layer_text in reversed(texts):
        if layer_text.layer == layer:
            return layer_text
    return None
