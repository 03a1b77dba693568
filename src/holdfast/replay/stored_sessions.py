"""Converts the event log of a stored session into a recording: what each call added to the prompt, and its usage.

Every view of a stored session shows what `audit_stored_session` returns: report, audit, gateway costs, API.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from decimal import Decimal
from multiprocessing import get_context
from typing import Protocol

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.compaction.view import apply_compaction, count_leading_summaries
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CacheControlsApplied, CachePinged, ExplicitCacheChanged
from holdfast.events.payloads.calls import (
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    ModelSwitched,
    RewriteEstimate,
)
from holdfast.events.payloads.compaction import CompactionUndone, ContextCompacted
from holdfast.events.payloads.recovery import ViewRepair
from holdfast.events.payloads.session import (
    ContextInjected,
    EpochOpened,
    MessageAppended,
    MessagesWithdrawn,
    SessionStarted,
    TurnStarted,
)
from holdfast.ledger.accounting import LedgerEntry, iter_entries
from holdfast.ledger.calls import explicit_cache_cost_usd, ping_cost_usd
from holdfast.ledger.money import round_usd
from holdfast.ledger.spending import EVERYTHING, AuditScope, ConversationSpending, SessionSums
from holdfast.planning.policy import WaitedFor
from holdfast.recovery.history_edits import apply_repair
from holdfast.replay.audit import PriceLookup, audit_transcript
from holdfast.replay.recording import REPLIES, USER_TEXT, CallBill, RecordedCall, Recording, SourceSize, Transcript
from holdfast.types.blocks import Text, Thinking, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry, Stability, drop_thinking
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.usage import Usage

LOGS_A_TASK = 16  # As many as take about a second, so that both processors end at the same time.


def audit_stored_session(
    events: Iterable[Event], session_id: str, prices: PriceLookup, scope: AuditScope = EVERYTHING, *, project: str = ""
) -> ConversationSpending | None:
    """The sums of one session, by the verdicts of the ledger; None if it is of another project or without calls."""
    transcript = build_stored_transcript(events, session_id, prices.models)
    if transcript is None or project.lower() not in transcript.project.lower():
        return None
    return audit_transcript(transcript, prices, scope)


class AuditedSession(msgspec.Struct, frozen=True, array_like=True):
    """The sums of all calls of a session, and `conversation`, those of the calls in the scope that was asked for."""

    id: str
    sums: SessionSums
    conversation: ConversationSpending | None


class LogReader(Protocol):
    def read(self, session_id: str) -> Iterable[Event]: ...


def audit_logs(log: LogReader, ids: Iterable[str], prices: PriceLookup, scope: AuditScope) -> Iterator[AuditedSession]:
    always = AuditScope(float("-inf"), float("inf"), ranges=scope.ranges)
    for id in ids:
        transcript = build_stored_transcript(log.read(id), id, prices.models)
        if transcript is None:
            yield AuditedSession(id, SessionSums(), None)
            continue
        times = [call.at for call in transcript.recording.calls]
        sums = SessionSums(audit_transcript(transcript, prices, always), min(times), max(times))
        is_covered = sums.covers(scope)
        yield AuditedSession(
            id, sums, sums.select(scope) if is_covered else audit_transcript(transcript, prices, scope)
        )


def audit_logs_in_processes(
    open_log: Callable[[], LogReader], ids: Sequence[str], models: Models, scope: AuditScope, *, workers: int
) -> Iterator[AuditedSession]:
    """The same in spawned processes, each with a log of its own; `open_log` is sent to them."""
    chunks = [ids[at : at + LOGS_A_TASK] for at in range(0, len(ids), LOGS_A_TASK)]
    decode = msgspec.msgpack.Decoder(list[AuditedSession]).decode
    # Spawned and not forked: a fork would copy the locks of threads that show progress.
    with ProcessPoolExecutor(workers, get_context("spawn"), _start_worker, (open_log, models, scope)) as pool:
        for encoded in pool.map(_audit_chunk, chunks):
            yield from decode(encoded)


_worker: tuple[LogReader, PriceLookup, AuditScope]


def _start_worker(open_log: Callable[[], LogReader], models: Models, scope: AuditScope) -> None:
    global _worker  # A pool has no other place for what its tasks share.
    _worker = open_log(), PriceLookup(models), scope


def _audit_chunk(ids: Sequence[str]) -> bytes:
    log, prices, scope = _worker
    return msgspec.msgpack.encode(list(audit_logs(log, ids, prices, scope)))


def build_stored_transcript(
    events: Iterable[Event], session_id: str, models: Models | None = None
) -> Transcript | None:
    """None if no call was paid for. Calls are in the order in which they started.

    The log of a wrapped client's session has no text, so its calls have only sizes. With `models`, what the ledger
    says about each call is included.
    """
    logged = list(events)
    fold = _Fold()
    for event in logged:
        fold.enter(event)
    paid = {id: call for id, call in fold.calls.items() if call.usage is not None}
    if not paid:
        return None
    calls = _build_calls(tuple(paid.values()))
    first = calls[0].usage.tokens_sent if calls[0].usage else 0
    bills = {entry.record.request_id: _build_bill(entry) for entry in iter_entries(logged, models)} if models else {}
    return Transcript(
        Recording(session_id, fold.system, fold.tools, calls, first or None),
        session_id,
        fold.project,
        tuple(paid),
        has_text=any(call.added for call in calls),
        cache_storage_usd=explicit_cache_cost_usd(logged) + ping_cost_usd(logged),
        keep_alive_usd=fold.keep_alive_usd,
        client=fold.client or "Holdfast",
        bills=tuple(
            msgspec.structs.replace(bills.get(id, CallBill(Decimal(0))), rewrite=call.rewrite)
            for id, call in paid.items()
        )
        if models
        else (),
    )


def _build_bill(entry: LedgerEntry) -> CallBill:
    cost, verdict = entry.record.cost_usd, entry.verdict
    if verdict is None:
        return CallBill(cost, is_unpriced=entry.is_unpriced)
    loss = (verdict.kind, verdict.component or "", verdict.lost_tokens, verdict.lost_usd)
    return CallBill(cost, *loss, is_unpriced=entry.is_unpriced)


class _StoredCall(msgspec.Struct):
    """A call in progress or completed; `usage` is None until it has completed."""

    at: float
    model: str
    by_user: bool
    entries: tuple[HistoryEntry, ...]
    suffix: str
    new_epoch: bool
    replied_at: float
    usage: Usage | None = None
    reply: HistoryEntry | None = None
    rewrite: RewriteEstimate | None = None


def _build_calls(stored_calls: Sequence[_StoredCall]) -> tuple[RecordedCall, ...]:
    calls: list[RecordedCall] = []
    sent: tuple[HistoryEntry, ...] = ()
    tool_names: dict[str, str] = {}
    previous_reply: HistoryEntry | None = None
    for call in stored_calls:
        shared = _count_shared(sent, call.entries) if not call.new_epoch else 0
        waited: WaitedFor = "start" if not calls else "user" if call.by_user else "tool"
        added, kept = call.entries[shared:], shared if shared < len(sent) else None
        # A reply that is history by now is among the added entries; it is measured once, with its call.
        measured = [entry for entry in added if entry is not previous_reply]
        sources = _measure_sources(measured, previous_reply, tool_names)
        calls.append(
            RecordedCall(
                at=call.at,
                replied_at=call.replied_at,
                waited_for=waited,
                added=added,
                reply=call.reply,
                usage=call.usage,
                model=call.model,
                kept_entries=kept,
                system_suffix=call.suffix,
                sources=sources,
                thinking_tokens=_estimate_thinking(call.reply, call.usage),
            )
        )
        previous_reply = call.reply
        sent = call.entries + ((call.reply,) if call.reply is not None else ())
    return tuple(calls)


def _measure_sources(
    added: Iterable[HistoryEntry], reply: HistoryEntry | None, tool_names: dict[str, str]
) -> tuple[SourceSize, ...]:
    sizes: dict[str, list[int]] = {}
    for entry in (*((reply,) if reply is not None else ()), *added):
        for block in entry.content:
            if isinstance(block, ToolUse):
                tool_names[block.id] = block.name
            is_result = isinstance(block, ToolResult)
            name = REPLIES if entry.role == "assistant" else USER_TEXT
            size = sizes.setdefault(tool_names.get(block.tool_use_id, "(unknown tool)") if is_result else name, [0, 0])
            size[0] += 1
            size[1] += len(msgspec.json.encode(block))
    return tuple(SourceSize(name, *size) for name, size in sizes.items())


def _estimate_thinking(reply: HistoryEntry | None, usage: Usage | None) -> int:
    """The share of a reply's bytes that is thinking, of its output; 0 where the thinking is not stored."""
    blocks = reply.content if reply is not None else ()
    thinking = sum(len(block.text) for block in blocks if isinstance(block, Thinking))
    others = sum(len(msgspec.json.encode(block)) for block in blocks if not isinstance(block, Thinking))
    return (usage.output if usage else 0) * thinking // (thinking + others) if thinking else 0


def _count_shared(previous: Sequence[HistoryEntry], current: Sequence[HistoryEntry]) -> int:
    """How many leading entries are identical; each entry is created once, so comparing object identity is enough."""
    pairs = enumerate(zip(previous, current, strict=False))
    return next((at for at, (old, new) in pairs if old is not new), min(len(previous), len(current)))


class _Fold:
    """Fold over the events: the conversation as the next request will send it."""

    def __init__(self) -> None:
        self._texts = self._nonce = ""
        self.tools: tuple[ToolSpec, ...] = ()
        self.project = ""
        self.calls: dict[str, _StoredCall] = {}
        self._entries: list[HistoryEntry] = []
        self._uncompacted: list[HistoryEntry] = []
        self._messages = 0
        self._suffix = ""
        self._by_user = False
        self._new_epoch = False
        self._last: _StoredCall | None = None
        self.client = ""
        self.is_forwarded = False
        self.keep_alive_usd = Decimal(0)

    @property
    def system(self) -> str:
        return "\n\n".join(text for text in (self._nonce, self._texts) if text)

    def enter(self, event: Event) -> None:
        match event.payload:
            case SessionStarted() as payload:
                self.project = payload.workspace_path or payload.name or ""
            case EpochOpened() as payload:
                # A recording has one stable prefix; a later epoch shows as a call that keeps no earlier entry.
                self._new_epoch = bool(self.calls)
                self._texts, self.tools = "\n\n".join(text.text for text in payload.system), payload.tools
            case CacheControlsApplied(new_prefix=True, nonce=nonce):
                # A nonce before the stable prefix makes it a different prefix.
                self._new_epoch, self._nonce = bool(self.calls), nonce
            case TurnStarted():
                self._by_user = True
                self._drop_ephemeral()
            case MessageAppended(message=message):
                self._messages += 1
                self._append(HistoryEntry(message.role, message.content, number=self._messages))
            case MessagesWithdrawn():
                replies = [at for at, entry in enumerate(self._entries) if entry.role == "assistant"]
                del self._entries[replies[-1] + 1 if replies else count_leading_summaries(self._entries) :]
            case ViewRepair() as payload:
                self._entries[:] = apply_repair(tuple(self._entries), 0, payload).entries
            case ContextCompacted() as payload:
                if payload.strategy != "lossless":
                    self._uncompacted = list(self._entries)
                self._entries = list(apply_compaction(self._entries, payload))
            case CompactionUndone() as payload:
                self._undo(payload)
            case ContextInjected() as payload:
                self._inject(payload)
            case ModelSwitched():
                self._filter_entries(drop_thinking)
            case GatewayForwarded(client=client):
                self.is_forwarded = True
                self.client = self.client or client
            case CachePinged(kind=kind, cost_usd=cost) if self.is_forwarded and kind != "prewarm":
                self.keep_alive_usd += round_usd(cost)
            case ExplicitCacheChanged(cost_usd=cost, storage_cost_usd=storage) if self.is_forwarded:
                self.keep_alive_usd += round_usd(cost) + round_usd(storage)
            case LlmCallStarted() as payload:
                self._begin(payload, event.at)
            case LlmCallCompleted() | LlmCallFailed() as payload:
                call = self.calls.get(payload.request_id)
                if call is not None and (payload.usage != Usage() or isinstance(payload, LlmCallCompleted)):
                    call.replied_at, call.usage = event.at, payload.usage
                    if isinstance(payload, LlmCallCompleted) and payload.rewrite is not msgspec.UNSET:
                        call.rewrite = payload.rewrite
            case _:
                pass

    def _undo(self, undone: CompactionUndone) -> None:
        last = max((entry.number for entry in self._uncompacted), default=0)
        later = [entry for entry in self._entries if entry.number > last]
        if undone.thinking_dropped:
            later = [entry for entry in map(drop_thinking, later) if entry is not None]
        self._entries = [*self._uncompacted, *later]

    def _begin(self, started: LlmCallStarted, at: float) -> None:
        entries = tuple(self._entries)
        self._last = _StoredCall(at, started.model, self._by_user, entries, self._suffix, self._new_epoch, at)
        self.calls[started.request_id] = self._last
        self._by_user = self._new_epoch = False

    def _append(self, entry: HistoryEntry) -> None:
        self._entries.append(entry)
        if entry.role == "assistant" and self._last is not None and self._last.reply is None:
            self._last.reply = entry

    def _inject(self, injected: ContextInjected) -> None:
        if injected.section == "system":
            # Thinking blocks are signed over the text before them, so a changed text drops them.
            if injected.text != self._suffix:
                self._filter_entries(drop_thinking)
            self._suffix = injected.text
            return
        self._messages += 1
        content, ephemeral = (Text(injected.text),), injected.ephemeral
        stability, number = Stability.VOLATILE, self._messages
        entry = HistoryEntry("user", content, injected.layer, stability, ephemeral=ephemeral, number=number)
        self._entries.append(entry)

    def _drop_ephemeral(self) -> None:
        first = next((at for at, entry in enumerate(self._entries) if entry.ephemeral), None)
        if first is not None:
            self._filter_entries(lambda entry: None if entry.ephemeral else drop_thinking(entry), first)

    def _filter_entries(self, transform: Callable[[HistoryEntry], HistoryEntry | None], first: int = 0) -> None:
        transformed = map(transform, self._entries[first:])
        self._entries[first:] = [entry for entry in transformed if entry is not None]
