"""A recorded conversation: what each call added to the prompt, when it was made, and its reported usage."""

import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import accumulate

import msgspec

from holdfast.cachemodel.values import BlockKind, PromptPrefix
from holdfast.catalog.token_count import count_block_tokens
from holdfast.events.payloads.calls import RewriteEstimate
from holdfast.layers.assemble import stable_segments
from holdfast.planning.idle_times import WaitsFor
from holdfast.planning.keep_alive import closing_entry
from holdfast.planning.policy import WaitedFor
from holdfast.providers.adapter import Adapter
from holdfast.types.blocks import Block, Text, ToolResult, ToolUse
from holdfast.types.prompt import Breakpoint, HistoryEntry, LayerText, Segment, Stability, View
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.usage import Usage, merge_usage_reports

_KINDS: dict[type[Block], BlockKind] = {ToolUse: "tool_use", ToolResult: "tool_result"}


class RecordedCall(msgspec.Struct, frozen=True):
    """One request and its reply.

    `kept_entries` is how many history entries of the earlier conversation come before `added`: all of them if it is
    None, none after a compaction. The reply to the previous call counts as one entry. `system_suffix` is text after
    the stable system prompt, in this request only. `sources` says where the bytes come from that it added to the
    prompt; `thinking_tokens` are the part of the output that the client recorded as thinking.
    """

    at: float
    replied_at: float
    waited_for: WaitedFor
    added: tuple[HistoryEntry, ...]
    reply: HistoryEntry | None = None
    usage: Usage | None = None
    model: str | None = None
    kept_entries: int | None = None
    system_suffix: str = ""
    sources: tuple["SourceSize", ...] = ()
    thinking_tokens: int = 0

    @property
    def next_waits_for(self) -> WaitsFor:
        """What the next call waits for: the tools that the reply calls, or the user who reads it."""
        calls_tools = self.reply is not None and any(isinstance(block, ToolUse) for block in self.reply.content)
        return "tool" if calls_tools else "user"


class SourceSize(msgspec.Struct, frozen=True):
    """The bytes that the results of one tool, or one of the sources below, added to a prompt."""

    name: str
    results: int
    bytes: int


USER_TEXT = "(user text)"
REPLIES = "(replies)"
"""Names of sources that are no tools; no tool name has parentheses."""


class Recording(msgspec.Struct, frozen=True):
    """`first_prompt_tokens` is the real size of the first prompt, unrecorded parts included."""

    id: str
    system: str
    tools: tuple[ToolSpec, ...]
    calls: tuple[RecordedCall, ...]
    first_prompt_tokens: int | None = None

    @property
    def started_at(self) -> float:
        return self.calls[0].at if self.calls else 0.0


class CallBill(msgspec.Struct, frozen=True):
    """What the ledger says about a call: its cost, the verdict on what it lost, and the cost of a rewrite, if known."""

    cost_usd: Decimal
    cause: str = ""
    component: str = ""
    lost_tokens: int = 0
    lost_usd: Decimal = Decimal(0)
    is_unpriced: bool = False
    rewrite: RewriteEstimate | None = None


class Transcript(msgspec.Struct, frozen=True):
    """A recording with its session and the ids of its calls, so that copies of a call can be recognised.

    `call_ids` has one id per call. `previous_call` is the call before the first one, if that is counted in another
    transcript. If not `has_text`, calls have sizes and times but no text. `cache_storage_usd` was paid for explicit
    caches and pings, and `keep_alive_usd` of it for those that the client did not ask for. `client` is the program that
    recorded it. `bills` has, for a stored session, what the ledger says about each call.
    """

    recording: Recording
    session: str
    project: str
    call_ids: tuple[str, ...]
    is_subagent: bool = False
    has_text: bool = False
    previous_call: RecordedCall | None = None
    cache_storage_usd: Decimal = Decimal(0)
    keep_alive_usd: Decimal = Decimal(0)
    client: str = ""
    bills: tuple[CallBill, ...] = ()


def deduplicate_transcripts(transcripts: Iterable[Transcript], *, since: float = 0.0) -> list[Transcript]:
    """Remove calls that another transcript has too, and calls before `since`; oldest transcript first.

    A resumed or forked conversation repeats the calls it continues from. The transcript that ended first keeps such a
    call, with the largest usage that any copy reports (a copy may have been written before the reply was complete).
    """
    by_end = sorted(transcripts, key=lambda transcript: (transcript.recording.calls[-1].at, transcript.recording.id))
    usage_by_id: dict[str, Usage] = {}
    for transcript in by_end:
        for id, call in zip(transcript.call_ids, transcript.recording.calls, strict=True):
            usage = call.usage or Usage()
            usage_by_id[id] = merge_usage_reports(usage_by_id[id], usage) if id in usage_by_id else usage
    unique, seen = [], set[str]()
    for transcript in by_end:
        calls = [
            (id, call if call.usage == usage_by_id[id] else msgspec.structs.replace(call, usage=usage_by_id[id]))
            for id, call in zip(transcript.call_ids, transcript.recording.calls, strict=True)
        ]
        fresh = [at for at, (id, call) in enumerate(calls) if id not in seen and call.at >= since]
        seen.update(transcript.call_ids)
        if fresh:
            before = calls[fresh[0] - 1][1] if fresh[0] else transcript.previous_call
            ids, kept_calls = zip(*(calls[at] for at in fresh), strict=True)
            recording = msgspec.structs.replace(transcript.recording, calls=kept_calls)
            bills = tuple(transcript.bills[at] for at in fresh) if transcript.bills else ()
            changes = {"recording": recording, "call_ids": ids, "previous_call": before, "bills": bills}
            unique.append(msgspec.structs.replace(transcript, **changes))
    return sorted(unique, key=lambda transcript: (transcript.recording.started_at, transcript.recording.id))


class _CallInProgress:
    """One call, as far as its records have been read."""

    def __init__(self, at: float, waited_for: WaitedFor, model: str, *, kept: int | None) -> None:
        self.at, self.replied_at, self.waited_for, self.model, self.kept = at, at, waited_for, model, kept
        self.usage, self.thinking_tokens = Usage(), 0
        self.added: tuple[HistoryEntry, ...] = ()
        self.reply: tuple[Block, ...] = ()
        self.sources: tuple[SourceSize, ...] = ()

    def to_recorded_call(self) -> RecordedCall:
        return RecordedCall(
            at=self.at,
            replied_at=self.replied_at,
            waited_for=self.waited_for,
            added=self.added,
            reply=HistoryEntry("assistant", self.reply) if self.reply else None,
            usage=self.usage,
            model=self.model,
            kept_entries=self.kept,
            sources=self.sources,
            thinking_tokens=self.thinking_tokens,
        )


class ConversationBuilder:
    """One conversation, built from a client's records in file order: the order in which the cache saw the requests.

    `_entry_count` counts the history entries so far, and `_position_of_record` maps a record to that count, so that a
    user who goes back and edits an earlier message is recognised.
    """

    def __init__(self) -> None:
        self.calls: dict[str, _CallInProgress] = {}
        self._last: _CallInProgress | None = None
        self._position_of_record: dict[str, int] = {}
        self._tool_names: dict[str, str] = {}
        self._sizes: dict[str, list[int]] = {}
        self._entry_count = self._sent_count = 0
        self._added: list[HistoryEntry] = []
        self._kept: int | None = None
        self._waited_for: WaitedFor = "start"
        self._at: float | None = None

    def compact(self) -> None:
        """A compaction: only the summary that follows continues the conversation."""
        self._added, self._entry_count, self._sent_count = [], 0, 0
        self._position_of_record.clear()
        self._sizes.clear()
        self._kept = 0 if self._last else None

    def go_back_to(self, parent: str | None) -> None:
        """The user edits an earlier message: what was sent after its parent record is no longer sent."""
        position = self._position_of_record.get(parent or "", self._entry_count)
        if position < self._sent_count:
            self._entry_count = self._kept = position
            self._added = []
            self._sizes.clear()

    def add_input(self, at: float | None, *, by_user: bool, entry: HistoryEntry | None = None) -> None:
        """Input of the next request: a user message, tool results, a reminder."""
        if entry is None or entry.content:
            self._entry_count += 1
            self._added += [entry] if entry else []
        user_waited = by_user or self._waited_for == "user"
        self._waited_for = "start" if self._last is None else "user" if user_waited else "tool"
        self._at = at if at is not None else self._at

    def add_size(self, source: str, byte_count: int) -> None:
        size = self._sizes.setdefault(source, [0, 0])
        size[0] += 1
        size[1] += byte_count

    def name_tool_call(self, call_id: str, tool: str) -> None:
        self._tool_names[call_id] = tool

    def add_result_size(self, call_id: str, byte_count: int) -> None:
        """The size of the result of a tool call that was named before."""
        self.add_size(self._tool_names.get(call_id, "(unknown tool)"), byte_count)

    def add_reply(
        self,
        call_id: str,
        model: str,
        usage: Usage,
        at: float | None,
        *,
        thinking_tokens: int = 0,
        blocks: tuple[Block, ...] = (),
    ) -> None:
        """A part of a reply; the first part marks the call. Parts repeat the usage with a growing output count."""
        call = self.calls.get(call_id)
        if call is None:
            call = self.calls[call_id] = self._begin(model, at)
        if usage is not call.usage:
            call.usage = merge_usage_reports(call.usage, usage)
        call.thinking_tokens = min(max(call.thinking_tokens, thinking_tokens), call.usage.output)
        call.reply += blocks
        call.replied_at = max(call.replied_at, at if at is not None else call.at)

    def _begin(self, model: str, replied_at: float | None) -> _CallInProgress:
        # Without a timestamp on the input, that of the reply is the closest.
        at = self._at if self._at is not None else replied_at
        started_at = infer_start(self._last.at if self._last else None, at, self._waited_for)
        call = self._last = _CallInProgress(started_at, self._waited_for, model, kept=self._kept)
        call.added = tuple(self._added)
        call.sources = tuple(SourceSize(name, *size) for name, size in self._sizes.items())
        self._entry_count += 1
        self._sent_count = self._entry_count
        self._added, self._kept, self._waited_for, self._at = [], None, "tool", None
        self._sizes.clear()
        return call

    def remember_record(self, id: str | None) -> None:
        """Remember the position of a record; records without content can be parents of others too."""
        if id is not None:
            self._position_of_record[id] = self._entry_count

    def build(self, id: str, session: str, project: str, client: str) -> Transcript | None:
        """None if no call was recorded."""
        if not self.calls:
            return None
        calls = tuple(call.to_recorded_call() for call in self.calls.values())
        first = calls[0].usage.tokens_sent if calls[0].usage else None
        recording = Recording(id, "", (), calls, first or None)
        return Transcript(recording, session, project, tuple(self.calls), client=client)


# Assumed idle times where a recording has no timestamps.
TOOL_IDLE_SECONDS = 8.0
USER_IDLE_SECONDS = 60.0


def infer_start(previous_at: float | None, input_at: float | None, waited_for: WaitedFor) -> float:
    """A request starts when its last input was available, and never before the previous request."""
    if previous_at is None:
        return input_at if input_at is not None else 0.0
    if input_at is not None:
        return max(input_at, previous_at)
    return previous_at + (USER_IDLE_SECONDS if waited_for == "user" else TOOL_IDLE_SECONDS)


class ReplayPrompt:
    """The prompt of the newest call as one growing request buffer, with the prefixes that a cache sees.

    `shared_tokens` is how much of it the previous call had sent too, `reply_tokens` how much the previous reply adds.
    """

    def __init__(self, recording: Recording, adapter: Adapter, tokens_factor: float) -> None:
        self._adapter = adapter
        self._counts: dict[bytes, int] = {}
        self._factor = tokens_factor
        self._encoded: dict[HistoryEntry, tuple[EncodedBlock, ...]] = {}
        self.buffer = RequestBuffer(adapter, self._count)
        self.prefixes: list[PromptPrefix] = []
        self.entries: list[HistoryEntry] = []
        self.entry_starts: list[int] = []
        """The index of the block at which each history entry starts."""
        self._system_tail = ""
        self._reply: HistoryEntry | None = None
        self._sent_blocks = 0
        self.shared_tokens = 0
        self.reply_tokens = 0
        self._add_head(recording)
        self._head_blocks = len(self.buffer.blocks)

    def _add_head(self, recording: Recording) -> None:
        first_entries = recording.calls[0].added if recording.calls else ()
        head = stable_segments(View(tools=recording.tools, pinned=(LayerText("preset", recording.system),)))
        blocks = [block for segment in head for block in self._adapter.encode_segment(segment)]
        encoded = [*blocks, *(block for entry in first_entries for block in self._encode_entry(entry))]
        estimated = sum(self._count(block.container_start + block.data) for block in encoded)
        missing = (recording.first_prompt_tokens or estimated) - estimated
        # The reported size is exact: if the estimate is too high, scale it down; if it is too low, the recording lacks
        # part of the system prompt, and a placeholder takes its tokens.
        if missing < 0:
            self._factor *= (estimated + missing) / estimated
            self._counts.clear()
        elif missing > 0:
            text = f"[{missing} tokens of the system prompt were not recorded]"
            segment = Segment("role", Stability.FROZEN, "system", system=(Text(text),))
            placeholder = self._adapter.encode_segment(segment)
            self._counts[placeholder[0].data] = missing
            tools = sum(block.section == "tools" for block in blocks)
            blocks[tools:tools] = placeholder
        self._extend(blocks)

    def measure_blocks(self, blocks: Sequence[EncodedBlock]) -> tuple[PromptPrefix, ...]:
        """The prefixes of a request that differs from the recorded one, with tokens counted in the same way."""
        recorded = self.buffer
        if len(blocks) == len(recorded.blocks) and all(
            block.data == other.data for block, other in zip(blocks, recorded.blocks, strict=True)
        ):
            return tuple(self.prefixes)
        kinds = {block.data: prefix.kind for block, prefix in zip(recorded.blocks, self.prefixes, strict=True)}
        sent = RequestBuffer(self._adapter, self._count)
        sent.extend(blocks)
        return tuple(
            PromptPrefix(block.section, digest.digest, tokens, kinds.get(block.data, "plain"))
            for block, digest, tokens in zip(blocks, sent.digests, accumulate(sent.tokens), strict=True)
        )

    def iterate_calls(self, recording: Recording) -> Iterator[RecordedCall]:
        """Each call, with the buffer in the state in which its request was sent."""
        for call in recording.calls:
            self._enter(call)
            yield call

    def _enter(self, call: RecordedCall) -> None:
        shared = self._sent_blocks
        self.append_reply()
        self.reply_tokens = self._tokens_at(len(self.prefixes)) - self._tokens_at(shared)
        if call.system_suffix != self._system_tail:
            shared = min(shared, self._head_blocks)
            self._change_tail(call.system_suffix)
        if call.kept_entries is not None and call.kept_entries < len(self.entries):
            shared = min(shared, self.entry_starts[call.kept_entries])
            self._cut(call.kept_entries)
        if shared < self._sent_blocks:
            self.reply_tokens = 0
        self.shared_tokens = self._tokens_at(shared) if self._sent_blocks else 0
        for entry in call.added:
            self._add(entry)
        self._reply = call.reply
        self._sent_blocks = len(self.prefixes)

    def _tokens_at(self, block_count: int) -> int:
        return self.prefixes[block_count - 1].tokens if block_count else 0

    def append_reply(self) -> None:
        """Append the reply to the last call, unless that was already done."""
        if self._reply is not None:
            self._add(self._reply)
            self._reply = None

    def _change_tail(self, text: str) -> None:
        entries = list(self.entries)
        self._system_tail = text
        self._cut(0)
        self._cut_blocks(self._head_blocks)
        if text:
            segment = Segment("volatile", Stability.VOLATILE, "system", system=(Text(text),))
            self._extend(self._adapter.encode_segment(segment))
        for entry in entries:
            self._add(entry)

    def _cut(self, entry_count: int) -> None:
        if entry_count < len(self.entry_starts):
            self._cut_blocks(self.entry_starts[entry_count])
        del self.entries[entry_count:], self.entry_starts[entry_count:]

    def _cut_blocks(self, block_count: int) -> None:
        self.buffer.truncate(block_count)
        del self.prefixes[block_count:]

    def _add(self, entry: HistoryEntry) -> None:
        self.entries.append(entry)
        self.entry_starts.append(len(self.buffer.blocks))
        self._extend(self._encode_entry(entry), tuple(_KINDS.get(type(block), "plain") for block in entry.content))

    def _extend(self, blocks: Sequence[EncodedBlock], kinds: tuple[BlockKind, ...] = ()) -> None:
        before = len(self.buffer.blocks)
        self.buffer.extend(blocks)
        tokens = self.prefixes[-1].tokens if self.prefixes else 0
        for index, block in enumerate(blocks):
            tokens += self.buffer.tokens[before + index]
            kind: BlockKind = kinds[index] if index < len(kinds) else "plain"
            self.prefixes.append(PromptPrefix(block.section, self.buffer.digests[before + index].digest, tokens, kind))

    def _encode_entry(self, entry: HistoryEntry) -> tuple[EncodedBlock, ...]:
        if entry not in self._encoded:
            segment = Segment("history", Stability.GROWING, "messages", entries=(entry,))
            self._encoded[entry] = self._adapter.encode_segment(segment)
        return self._encoded[entry]

    def _count(self, data: bytes) -> int:
        if data not in self._counts:
            self._counts[data] = math.ceil(count_block_tokens(data) * self._factor)
        return self._counts[data]

    def _encode_closing_message(self) -> tuple[EncodedBlock, ...]:
        """The message that must follow the reply in a request: a short text, or a result for every open tool call."""
        return self._encode_entry(closing_entry(self.entries[-1] if self.entries else None))

    def render_closed(self, breakpoints: Sequence[Breakpoint]) -> bytes:
        """The body of a ping request after its head: the prompt with the closing message at its end."""
        keep = len(self.buffer.blocks)
        self.buffer.extend(self._encode_closing_message())
        body = self.buffer.render(b"", breakpoints)
        self.buffer.truncate(keep)
        return body

    def count_closing_tokens(self) -> int:
        return sum(self._count(block.container_start + block.data) for block in self._encode_closing_message())
