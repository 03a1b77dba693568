"""A session of our own store as a recording: what each call added, sent and was reported to have taken."""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Passage, Stability, without_thinking
from holdfast.canonical.tools import ToolSpec
from holdfast.canonical.usage import Usage
from holdfast.compaction.groups import records_in_front
from holdfast.compaction.view import compacted
from holdfast.events.envelope import Event
from holdfast.events.payloads import (
    ContextInjected,
    EpochOpened,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    MessageAppended,
    MessagesWithdrawn,
    ModelSwitched,
    SessionStarted,
    TurnStarted,
)
from holdfast.events.payloads_compaction import ContextCompacted
from holdfast.events.payloads_recovery import Mending
from holdfast.ledger.calls import keeping_cost_usd
from holdfast.planning.policy import WaitedFor
from holdfast.recovery.passages import mended
from holdfast.replay.recording import RecordedCall, Recording, Transcript


def stored_transcript(events: Iterable[Event], session_id: str) -> Transcript | None:
    """None where no call was paid for. Calls are in the order in which they were begun.

    A session of a wrapped client has no text on the log: its calls have their sizes alone.
    """
    known = list(events)
    fold = _Fold()
    for event in known:
        fold.enter(event)
    paid = {id: asked for id, asked in fold.asked.items() if asked.usage is not None}
    if not paid:
        return None
    calls = _recorded(tuple(paid.values()))
    first = calls[0].usage.tokens_sent if calls[0].usage else 0
    return Transcript(
        Recording(session_id, fold.system, fold.tools, calls, first or None),
        session_id,
        fold.project,
        tuple(paid),
        spelled=any(call.added for call in calls),
        keeping_usd=keeping_cost_usd(known),
    )


class _Asked(msgspec.Struct):
    """A call under way, and once it is over."""

    at: float
    model: str
    by_person: bool
    said: tuple[Passage, ...]
    system_tail: str
    new_epoch: bool
    replied_at: float
    usage: Usage | None = None
    reply: Passage | None = None


def _recorded(asked: Sequence[_Asked]) -> tuple[RecordedCall, ...]:
    calls: list[RecordedCall] = []
    sent: tuple[Passage, ...] = ()
    for one in asked:
        shared = _shared(sent, one.said) if not one.new_epoch else 0
        waited: WaitedFor = "start" if not calls else "person" if one.by_person else "tool"
        calls.append(
            RecordedCall(
                one.at,
                one.replied_at,
                waited,
                one.said[shared:],
                one.reply,
                one.usage,
                one.model,
                shared if shared < len(sent) else None,
                one.system_tail,
            )
        )
        sent = one.said + ((one.reply,) if one.reply is not None else ())
    return tuple(calls)


def _shared(sent: Sequence[Passage], said: Sequence[Passage]) -> int:
    """How many passages are the very same; each is made once, so that nothing is compared but who it is."""
    pairs = enumerate(zip(sent, said, strict=False))
    return next((at for at, (old, new) in pairs if old is not new), min(len(sent), len(said)))


class _Fold:
    """The conversation as the next request will send it."""

    def __init__(self) -> None:
        self.system = ""
        self.tools: tuple[ToolSpec, ...] = ()
        self.project = ""
        self.asked: dict[str, _Asked] = {}
        self._said: list[Passage] = []
        self._messages = 0
        self._tail = ""
        self._by_person = False
        self._new_epoch = False
        self._last: _Asked | None = None

    def enter(self, event: Event) -> None:
        match event.payload:
            case SessionStarted() as it:
                self.project = it.workspace_path or it.name or ""
            case EpochOpened() as it:
                # A recording has one head; a later one shows in that nothing of the conversation before it is kept.
                self._new_epoch = bool(self.asked)
                self.system, self.tools = "\n\n".join(text.text for text in it.system), it.tools
            case TurnStarted():
                self._by_person = True
                self._drop_ephemeral()
            case MessageAppended(message=message):
                self._messages += 1
                self._append(Passage(message.role, message.content, number=self._messages))
            case MessagesWithdrawn():
                spoken = [at for at, passage in enumerate(self._said) if passage.role == "assistant"]
                del self._said[spoken[-1] + 1 if spoken else records_in_front(self._said) :]
            case Mending() as it:
                self._said[:] = mended(tuple(self._said), 0, it).passages
            case ContextCompacted() as it:
                self._said = list(compacted(self._said, it))
            case ContextInjected() as it:
                self._inject(it)
            case ModelSwitched():
                self._keep(without_thinking)
            case LlmCallStarted() as it:
                self._begin(it, event.at)
            case LlmCallCompleted() | LlmCallFailed() as it:
                asked = self.asked.get(it.request_id)
                if asked is not None and (it.usage != Usage() or isinstance(it, LlmCallCompleted)):
                    asked.replied_at, asked.usage = event.at, it.usage
            case _:
                pass

    def _begin(self, started: LlmCallStarted, at: float) -> None:
        said = tuple(self._said)
        self._last = _Asked(at, started.model, self._by_person, said, self._tail, self._new_epoch, at)
        self.asked[started.request_id] = self._last
        self._by_person = self._new_epoch = False

    def _append(self, passage: Passage) -> None:
        self._said.append(passage)
        if passage.role == "assistant" and self._last is not None and self._last.reply is None:
            self._last.reply = passage

    def _inject(self, injected: ContextInjected) -> None:
        if injected.place == "system":
            # Thinking is bound to the text in front of it, and leaves with it.
            if injected.text != self._tail:
                self._keep(without_thinking)
            self._tail = injected.text
            return
        said = (Text(injected.text),)
        self._messages += 1
        self._said.append(
            Passage(
                "user", said, injected.layer, Stability.VOLATILE, ephemeral=injected.ephemeral, number=self._messages
            )
        )

    def _drop_ephemeral(self) -> None:
        first = next((at for at, passage in enumerate(self._said) if passage.ephemeral), None)
        if first is not None:
            self._keep(lambda passage: None if passage.ephemeral else without_thinking(passage), first)

    def _keep(self, choose: Callable[[Passage], Passage | None], first: int = 0) -> None:
        self._said[first:] = [kept for passage in self._said[first:] if (kept := choose(passage)) is not None]
