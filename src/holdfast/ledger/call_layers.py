"""What each call's prompt was made of: layers by size, marks, the verdict; and what happened between the calls."""

from collections.abc import Iterable

import msgspec

from holdfast.canonical.pieces import Link
from holdfast.canonical.prompt import Mark
from holdfast.catalog.lookup import Models
from holdfast.events.envelope import Event
from holdfast.events.payloads import (
    AnyPayload,
    CacheKept,
    CachePinged,
    EpochOpened,
    LlmCallStarted,
    ModelSwitched,
    RequestPrepared,
    SessionStarted,
)
from holdfast.events.payloads_controls import CacheControlled
from holdfast.ledger.books import ENTERED, Books, Entry, entered


class Band(msgspec.Struct, frozen=True):
    """How many cacheable bytes of a prompt are a layer's."""

    layer: str
    bytes: int


class PlacedMark(msgspec.Struct, frozen=True):
    """A mark, the layer it stands in, and how many bytes lie in front of it."""

    mark: Mark
    layer: str
    bytes: int


class Sent(msgspec.Struct, frozen=True):
    """A request as its blocks tell it: layers in the order in which they first appear, `ordinal` counts requests."""

    ordinal: int
    bands: tuple[Band, ...]
    marks: tuple[PlacedMark, ...]
    blocks: int
    body_bytes: int

    @property
    def bytes(self) -> int:
        return sum(band.bytes for band in self.bands)


class Stratum(msgspec.Struct, frozen=True):
    """A call that was paid for, and its request; None where a kept reply has answered it."""

    entry: Entry
    sent: Sent | None


class Happening(msgspec.Struct, frozen=True):
    """What happened between calls; `calls_before` of them had ended."""

    at: float
    calls_before: int
    kind: str
    detail: str


class Strata:
    """A session's prompts, one after the other: takes events as they come, and each costs what is new in it."""

    def __init__(self, session_id: str, models: Models) -> None:
        self.session_id = session_id
        self._models = models
        self.name: str | None = None
        self.model = ""
        self.simulated = False
        self.last_event_id: str | None = None
        self.calls: list[Stratum] = []
        self.happenings: list[Happening] = []
        self._books = Books()
        self._chain: list[Link] = []
        self._sizes: dict[str, int] = {}
        self._requests = 0
        self._newest: Sent | None = None
        self._under_way: dict[str, Sent] = {}

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            self._take(event)
            self.last_event_id = event.id

    def _take(self, event: Event) -> None:
        self._note(event.payload)
        happened = _told(event.payload)
        if happened is not None:
            self.happenings.append(Happening(event.at, len(self.calls), *happened))
        if not isinstance(event.payload, ENTERED):
            return
        self._books, entry = entered(self._books, event, self._models)
        if entry is not None:
            sent = self._under_way.pop(entry.record.request_id, self._newest)
            self.calls.append(Stratum(entry, sent if entry.source == "provider" else None))

    def _note(self, payload: AnyPayload) -> None:
        match payload:
            case SessionStarted() as it:
                self.name, self.model, self.simulated = it.name, it.model, it.simulated
            case RequestPrepared() as it:
                self._prepare(it)
            case LlmCallStarted(request_id=request_id) if self._newest is not None:
                self._under_way[request_id] = self._newest
            case ModelSwitched(after=after):
                self.model = after
                self._cut(0)
            case CacheControlled(new_prefix=True):
                self._cut(0)
            case _:
                pass

    def _prepare(self, it: RequestPrepared) -> None:
        self._cut(it.shared_blocks)
        for link in it.links:
            self._chain.append(link)
            self._sizes[link.layer] = self._sizes.get(link.layer, 0) + link.end - link.start
        self._requests += 1
        self._newest = Sent(
            ordinal=self._requests,
            bands=tuple(Band(layer, size) for layer, size in self._sizes.items()),
            marks=tuple(
                PlacedMark(mark, self._chain[mark.piece].layer, self._chain[mark.piece].end)
                for mark in it.plan.marks
                if 0 <= mark.piece < len(self._chain)
            ),
            blocks=len(self._chain),
            body_bytes=it.body_bytes,
        )

    def _cut(self, keep: int) -> None:
        while len(self._chain) > keep:
            link = self._chain.pop()
            self._sizes[link.layer] -= link.end - link.start
            if not self._sizes[link.layer]:
                del self._sizes[link.layer]


def _told(payload: AnyPayload) -> tuple[str, str] | None:
    """The kind of what belongs on a time line, and one line about it; no word of what was said."""
    match payload:
        case EpochOpened(epoch=epoch) if epoch > 1:
            return "compaction", f"epoch {epoch} was opened: the head was made anew"
        case CachePinged(kind=kind, reason=reason):
            return "ping", f"{kind}: {reason}" if reason else kind
        case CacheKept(action=action, tokens=tokens):
            return "named cache", f"{action}, {tokens} tokens"
        case ModelSwitched(before=before, after=after):
            return "model", f"{before} to {after}"
        case CacheControlled(reason=reason) if reason:
            return "control", reason
        case _:
            return None
