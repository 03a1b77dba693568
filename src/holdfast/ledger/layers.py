"""Timeline of a session's calls: each prompt by layer size, its breakpoints and verdict, and the events in between."""

from collections.abc import Iterable

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CacheControlsApplied, CachePinged, ExplicitCacheChanged
from holdfast.events.payloads.calls import (
    GatewayForwarded,
    LlmCallFailed,
    LlmCallStarted,
    ModelSwitched,
    RequestPrepared,
)
from holdfast.events.payloads.compaction import CompactionUndone, ContextCompacted
from holdfast.events.payloads.session import EpochOpened, SessionStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.ledger.accounting import ACCOUNTED_PAYLOADS, AccountingState, LedgerEntry, record_event
from holdfast.types.prompt import Breakpoint
from holdfast.types.request_buffer import PrefixDigest
from holdfast.types.usage import Usage


class LayerSize(msgspec.Struct, frozen=True):
    """Cacheable bytes of a prompt that belong to one layer: all of them, or a run of neighbouring blocks."""

    layer: str
    bytes: int


class PlacedBreakpoint(msgspec.Struct, frozen=True):
    """A cache breakpoint, the layer it is in, and the bytes of the prompt up to and including its block."""

    breakpoint: Breakpoint
    layer: str
    prefix_bytes: int


class RequestLayers(msgspec.Struct, frozen=True):
    """A request by its layers, in the order of first appearance. `ordinal` is its number within the session, from 1."""

    ordinal: int
    layers: tuple[LayerSize, ...]
    breakpoints: tuple[PlacedBreakpoint, ...]
    blocks: int
    body_bytes: int

    @property
    def cacheable_bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers)


class CallLayers(msgspec.Struct, frozen=True):
    """A call that was charged, and its request; None where the completion cache answered it."""

    entry: LedgerEntry
    request: RequestLayers | None


class TimelineEvent(msgspec.Struct, frozen=True):
    """An event between calls; `calls_before` calls had ended when it happened."""

    at: float
    calls_before: int
    kind: str
    detail: str


class FailedAttempt(msgspec.Struct, frozen=True):
    """A call that failed at no cost. Without the provider's message: that may quote the request."""

    at: float
    calls_before: int
    error_class: str
    latency_ms: int
    retries: int


class CallTimeline:
    """The prompts of a session, built event by event: the work per request is proportional to what is new in it."""

    def __init__(self, session_id: str, models: Models) -> None:
        self.session_id = session_id
        self._models = models
        self.name: str | None = None
        self.client = ""
        self.started_at = 0.0
        self.model = ""
        self.is_simulated = False
        self.last_event_id: str | None = None
        self.calls: list[CallLayers] = []
        self.timeline_events: list[TimelineEvent] = []
        self.failures: list[FailedAttempt] = []
        self._accounting = AccountingState()
        self._chain: list[PrefixDigest] = []
        self._sizes: dict[str, int] = {}
        self._requests = 0
        self._newest: RequestLayers | None = None
        self._in_progress: dict[str, RequestLayers] = {}

    def apply_events(self, events: Iterable[Event]) -> None:
        for event in events:
            self._apply(event)
            self.last_event_id = event.id

    def _apply(self, event: Event) -> None:
        self.started_at = self.started_at or event.at
        self._track(event.payload)
        description = _describe_event(event.payload)
        if description is not None:
            self.timeline_events.append(TimelineEvent(event.at, len(self.calls), *description))
        if not isinstance(event.payload, ACCOUNTED_PAYLOADS):
            return
        if isinstance(event.payload, LlmCallFailed) and event.payload.usage == Usage():
            kind, latency_ms, retries = event.payload.error_class, event.payload.latency_ms, event.payload.retry_count
            self.failures.append(FailedAttempt(event.at, len(self.calls), kind, latency_ms, retries))
        self._accounting, entry = record_event(self._accounting, event, self._models)
        if entry is not None:
            request = self._in_progress.pop(entry.record.request_id, self._newest)
            self.calls.append(CallLayers(entry, request if entry.source == "provider" else None))

    def _track(self, payload: AnyPayload) -> None:
        match payload:
            case SessionStarted() as payload:
                self.name, self.model, self.is_simulated = payload.name, payload.model, payload.simulated
            case GatewayForwarded(client=client) if client:
                self.client = client
            case RequestPrepared() as payload:
                self._apply_request(payload)
            case LlmCallStarted(request_id=request_id) if self._newest is not None:
                self._in_progress[request_id] = self._newest
            case ModelSwitched(after=after):
                self.model = after
                self._truncate(0)
            case CacheControlsApplied(new_prefix=True):
                self._truncate(0)
            case _:
                pass

    def _apply_request(self, prepared: RequestPrepared) -> None:
        self._truncate(prepared.shared_blocks)
        for digest in prepared.digests:
            self._chain.append(digest)
            self._sizes[digest.layer] = self._sizes.get(digest.layer, 0) + digest.end - digest.start
        self._requests += 1
        self._newest = RequestLayers(
            ordinal=self._requests,
            layers=tuple(LayerSize(layer, size) for layer, size in self._sizes.items()),
            breakpoints=tuple(
                PlacedBreakpoint(planned, self._chain[planned.block_index].layer, self._chain[planned.block_index].end)
                for planned in prepared.plan.breakpoints
                if 0 <= planned.block_index < len(self._chain)
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
        case ContextCompacted(trigger=trigger, tokens_before=before, tokens_after=after):
            return "compaction", f"{trigger}: {before:,} to {after:,} tokens"
        case CompactionUndone(tokens_before=before, tokens_after=after):
            return "compaction", f"undone: {before:,} to {after:,} tokens"
        case CachePinged(kind=kind, reason=reason):
            return "ping", f"{kind}: {reason}" if reason else kind
        case ExplicitCacheChanged(action=action, tokens=tokens):
            return "explicit cache", f"{action}, {tokens} tokens"
        case ModelSwitched(before=before, after=after):
            return "model", f"{before} to {after}"
        case CacheControlsApplied(reason=reason) if reason:
            return "control", reason
        case _:
            return None


def compute_layer_runs(events: Iterable[Event]) -> dict[str, tuple[LayerSize, ...]]:
    """By request id, from the first byte to the last; neighbouring blocks of one layer are merged."""
    chain: list[PrefixDigest] = []
    layers_by_request: dict[str, tuple[LayerSize, ...]] = {}
    for event in events:
        match event.payload:
            case RequestPrepared() as prepared:
                del chain[prepared.shared_blocks :]
                chain += prepared.digests
            case ModelSwitched():
                chain.clear()
            case LlmCallStarted(request_id=request_id):
                layers_by_request[request_id] = _merge_runs(chain)
            case _:
                pass
    return layers_by_request


def _merge_runs(chain: Iterable[PrefixDigest]) -> tuple[LayerSize, ...]:
    runs: list[LayerSize] = []
    for digest in chain:
        size = digest.end - digest.start
        if runs and runs[-1].layer == digest.layer:
            runs[-1] = LayerSize(digest.layer, runs[-1].bytes + size)
        else:
            runs.append(LayerSize(digest.layer, size))
    return tuple(runs)
