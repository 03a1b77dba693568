"""Timeline of a session's calls: each prompt by layer size, its breakpoints and verdict, and the events in between."""

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
    """The number of cacheable bytes of a prompt that belong to one layer."""

    layer: str
    bytes: int


class PlacedMark(msgspec.Struct, frozen=True):
    """A cache breakpoint, the layer it is in, and the bytes of the prompt up to and including its block."""

    mark: Mark
    layer: str
    bytes: int


class Sent(msgspec.Struct, frozen=True):
    """A request by its layers, in the order of first appearance. `ordinal` is its number within the session, from 1."""

    ordinal: int
    bands: tuple[Band, ...]
    marks: tuple[PlacedMark, ...]
    blocks: int
    body_bytes: int

    @property
    def bytes(self) -> int:
        return sum(band.bytes for band in self.bands)


class Stratum(msgspec.Struct, frozen=True):
    """A call that was charged, and its request; None where the completion cache answered it."""

    entry: Entry
    sent: Sent | None


class Happening(msgspec.Struct, frozen=True):
    """An event between calls; `calls_before` calls had ended when it happened."""

    at: float
    calls_before: int
    kind: str
    detail: str


class Strata:
    """The prompts of a session, built event by event: the work per request is proportional to what is new in it."""

    def __init__(self, session_id: str, models: Models) -> None:
        self.session_id = session_id
        self._models = models
        self.name: str | None = None
        self.model = ""
        self.simulated = False
        self.last_event_id: str | None = None
        self.calls: list[Stratum] = []
        self.happenings: list[Happening] = []
        self._accounting = Books()
        self._chain: list[Link] = []
        self._sizes: dict[str, int] = {}
        self._requests = 0
        self._newest: Sent | None = None
        self._under_way: dict[str, Sent] = {}

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            self._apply(event)
            self.last_event_id = event.id

    def _apply(self, event: Event) -> None:
        self._track(event.payload)
        description = _describe_event(event.payload)
        if description is not None:
            self.happenings.append(Happening(event.at, len(self.calls), *description))
        if not isinstance(event.payload, ENTERED):
            return
        self._accounting, entry = entered(self._accounting, event, self._models)
        if entry is not None:
            request = self._under_way.pop(entry.record.request_id, self._newest)
            self.calls.append(Stratum(entry, request if entry.source == "provider" else None))

    def _track(self, payload: AnyPayload) -> None:
        match payload:
            case SessionStarted() as payload:
                self.name, self.model, self.simulated = payload.name, payload.model, payload.simulated
            case RequestPrepared() as payload:
                self._apply_request(payload)
            case LlmCallStarted(request_id=request_id) if self._newest is not None:
                self._under_way[request_id] = self._newest
            case ModelSwitched(after=after):
                self.model = after
                self._truncate(0)
            case CacheControlled(new_prefix=True):
                self._truncate(0)
            case _:
                pass

    def _apply_request(self, prepared: RequestPrepared) -> None:
        self._truncate(prepared.shared_blocks)
        for digest in prepared.links:
            self._chain.append(digest)
            self._sizes[digest.layer] = self._sizes.get(digest.layer, 0) + digest.end - digest.start
        self._requests += 1
        self._newest = Sent(
            ordinal=self._requests,
            bands=tuple(Band(layer, size) for layer, size in self._sizes.items()),
            marks=tuple(
                PlacedMark(breakpoint_, self._chain[breakpoint_.piece].layer, self._chain[breakpoint_.piece].end)
                for breakpoint_ in prepared.plan.marks
                if 0 <= breakpoint_.piece < len(self._chain)
            ),
            blocks=len(self._chain),
            body_bytes=prepared.body_bytes,
        )

    def _truncate(self, block_count: int) -> None:
        # Remove from the end only: the cost is proportional to what changed, not to the length of the history.
        while len(self._chain) > block_count:
            digest = self._chain.pop()
            self._sizes[digest.layer] -= digest.end - digest.start
            if not self._sizes[digest.layer]:
                del self._sizes[digest.layer]


def _describe_event(payload: AnyPayload) -> tuple[str, str] | None:
    """Kind and one-line description of an event for the timeline, without any message content."""
    match payload:
        case EpochOpened(epoch=epoch) if epoch > 1:
            return "compaction", f"epoch {epoch} was opened: the stable prefix was rebuilt"
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
