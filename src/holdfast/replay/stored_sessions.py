"""Converts the event log of a stored session into a recording: what each call added to the prompt, and its usage."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.compaction.view import apply_compaction, count_leading_summaries
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CacheControlsApplied
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed, LlmCallStarted, ModelSwitched
from holdfast.events.payloads.compaction import ContextCompacted
from holdfast.events.payloads.recovery import ViewRepair
from holdfast.events.payloads.session import (
    ContextInjected,
    EpochOpened,
    MessageAppended,
    MessagesWithdrawn,
    SessionStarted,
    TurnStarted,
)
from holdfast.ledger.calls import explicit_cache_cost_usd
from holdfast.planning.policy import WaitedFor
from holdfast.recovery.history_edits import apply_repair
from holdfast.replay.recording import RecordedCall, Recording, Transcript
from holdfast.types.blocks import Text
from holdfast.types.prompt import HistoryEntry, Stability, drop_thinking
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.usage import Usage


def build_stored_transcript(events: Iterable[Event], session_id: str) -> Transcript | None:
    """None if no call was paid for. Calls are in the order in which they started.

    The log of a wrapped client's session has no text, so its calls have only sizes.
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
    return Transcript(
        Recording(session_id, fold.system, fold.tools, calls, first or None),
        session_id,
        fold.project,
        tuple(paid),
        has_text=any(call.added for call in calls),
        cache_storage_usd=explicit_cache_cost_usd(logged),
    )


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


def _build_calls(stored_calls: Sequence[_StoredCall]) -> tuple[RecordedCall, ...]:
    calls: list[RecordedCall] = []
    sent: tuple[HistoryEntry, ...] = ()
    for call in stored_calls:
        shared = _count_shared(sent, call.entries) if not call.new_epoch else 0
        waited: WaitedFor = "start" if not calls else "user" if call.by_user else "tool"
        added, kept = call.entries[shared:], shared if shared < len(sent) else None
        calls.append(
            RecordedCall(call.at, call.replied_at, waited, added, call.reply, call.usage, call.model, kept, call.suffix)
        )
        sent = call.entries + ((call.reply,) if call.reply is not None else ())
    return tuple(calls)


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
        self._messages = 0
        self._suffix = ""
        self._by_user = False
        self._new_epoch = False
        self._last: _StoredCall | None = None

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
                self._entries = list(apply_compaction(self._entries, payload))
            case ContextInjected() as payload:
                self._inject(payload)
            case ModelSwitched():
                self._filter_entries(drop_thinking)
            case LlmCallStarted() as payload:
                self._begin(payload, event.at)
            case LlmCallCompleted() | LlmCallFailed() as payload:
                call = self.calls.get(payload.request_id)
                if call is not None and (payload.usage != Usage() or isinstance(payload, LlmCallCompleted)):
                    call.replied_at, call.usage = event.at, payload.usage
            case _:
                pass

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
