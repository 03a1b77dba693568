"""Observes requests written by other clients: encodes them and compares each with the previous one."""

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock

import msgspec

from holdfast.catalog.lookup import label_model
from holdfast.catalog.schema import Model
from holdfast.engine.guard import WarningLog
from holdfast.engine.observed_prompt import ObservedPrompt
from holdfast.engine.recorder import CallRecorder, ObservedRequest
from holdfast.planning.learned import ENDED_AFTER_SECONDS, Learner, LearningScope
from holdfast.providers.adapter import Adapter, WireRequest, expects_diagnosis
from holdfast.providers.cache_inputs import automatic_breakpoint, cache_settings
from holdfast.providers.tolerant_decode import TolerantRequest, wrap_raw_request
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import Breakpoint, Parameters, Plan

# How many conversations are followed until they have ended.
FOLLOWED_MAX = 10_000


class KnownStart(msgspec.Struct, frozen=True):
    """The start of a request that an earlier one had too, up to and including `entries` history entries.

    `breakpoints` are the client's in that start; `wire_blocks` is the number of blocks as the client counts them.
    """

    prompt: ObservedPrompt
    entries: int
    wire_blocks: int
    breakpoints: tuple[Breakpoint, ...]


class RequestObserver:
    """Follows the requests of one conversation; what is known of the previous request is reused."""

    def __init__(self, recorder: CallRecorder, warnings: WarningLog) -> None:
        self.recorder = recorder
        self.warnings = warnings
        self._lock = Lock()
        self.newest: ObservedPrompt | None = None
        """The last prepared request."""

    def prepare(
        self, adapter: Adapter, wire: WireRequest, *, provider: str = "", start: KnownStart | None = None
    ) -> ObservedRequest:
        """The record of a request; `provider` is the host, where it has the format of another provider.

        With `start`, `wire` holds only what follows it.
        """
        provider = provider or adapter.name
        model = f"{provider}:{wire.parameters.model}"
        row = self.recorder.find_catalog_row(model)
        if row is None:
            self.warnings.warn_once(f"model {label_model(model)!r} is not in the catalog: it has no price")
        with self._lock:
            # Digests of another encoding say nothing about this one.
            before = self.newest if self.newest is not None and self.newest.adapter is adapter else None
            factor = 1.0 if row is None else row.tokens_factor
            prompt = ObservedPrompt(adapter, factor) if start is None else start.prompt.cut(start.entries)
            prompt.extend(wire.prompt, before=before)
            change = prompt.describe_change(before) if before is not None else None
            self.newest = prompt
            # Our encoding omits what the provider would not accept, and any breakpoint on it.
            blocks, planned = prompt.blocks, place_after(start, wire.plan.breakpoints)
            breakpoints = tuple(breakpoint for breakpoint in planned if breakpoint.block_index < len(blocks))
            automatic = automatic_breakpoint(wire.parameters, blocks, breakpoints, row.cache) if row else ()
            request_head = adapter.request_head(wire.parameters)
            point_bytes = sum(len(adapter.encode_breakpoint(point.ttl)) for point in breakpoints)
            return ObservedRequest(
                model=model,
                provider=provider,
                row=row,
                plan=Plan((*breakpoints, *automatic)),
                digests=tuple(prompt.digests),
                parameters_digest=sha256_hex(request_head),
                body_bytes=prompt.measure_body(request_head, point_bytes),
                tokens=prompt.tokens_total,
                expects_diagnosis=expects_diagnosis(adapter, wire.parameters),
                settings=() if row is None else _find_settings(row, wire.parameters, prompt),
                change=change,
            )

    def prepare_unchanged(
        self,
        adapter: Adapter,
        request: TolerantRequest,
        body: bytes,
        headers: Mapping[str, str],
        *,
        provider: str = "",
        start: KnownStart | None = None,
    ) -> tuple[TolerantRequest, ObservedRequest]:
        """The record of a request that is sent unchanged; as raw JSON if it decodes but cannot be encoded again."""
        try:
            return request, self.prepare(adapter, request.wire, provider=provider, start=start)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request is sent and has to be recorded
            # Only the type of the error: its message could quote the prompt.
            raw = wrap_raw_request(body, headers, f"the request cannot be encoded: {type(error).__name__}")
            return raw, self.prepare(adapter, raw.wire, provider=provider)


def place_after(start: KnownStart | None, breakpoints: tuple[Breakpoint, ...]) -> tuple[Breakpoint, ...]:
    """The breakpoints of a request whose known start was left out when it was decoded."""
    if start is None:
        return breakpoints
    moved = (msgspec.structs.replace(point, block_index=point.block_index + start.wire_blocks) for point in breakpoints)
    return (*start.breakpoints, *moved)


def _find_settings(row: Model, parameters: Parameters, prompt: ObservedPrompt) -> tuple[tuple[str, str], ...]:
    settings = cache_settings(row.provider, row.cache, parameters, ended_thinking=prompt.ended_thinking)
    # The log of a client's requests has no messages, so it has to say itself whether there is an image.
    return tuple(sorted((*settings, ("images", "true")))) if prompt.has_images else settings


class LearnedRecords:
    """Records what conversations have learned: evidence about the cache at once, idle times when one has ended."""

    def __init__(self) -> None:
        self._followed: OrderedDict[str, tuple[CallRecorder, LearningScope]] = OrderedDict()

    def begin_call(self, recorder: CallRecorder, learner: Learner, row: Model | None, *, at: float) -> None:
        """Of a model that is not in the catalog nothing is learned."""
        if row is None:
            return
        self._followed[recorder.session_id] = recorder, learner.make_scope(row.id)
        self._followed.move_to_end(recorder.session_id)
        # In the order of their last calls: all that follow the first one that has not ended were used later.
        while len(self._followed) > FOLLOWED_MAX or self._last_call_at() < at - ENDED_AFTER_SECONDS:
            self._record_first()

    def end_call(self, recorder: CallRecorder) -> None:
        followed = self._followed.get(recorder.session_id)
        if followed is not None:
            recorder.record_learned(followed[1], evidence_only=True)

    def record_all(self) -> None:
        """No more calls are expected here; the record of a conversation that goes on elsewhere is replaced there."""
        while self._followed:
            self._record_first()

    def _last_call_at(self) -> float:
        recorder, _ = next(iter(self._followed.values()))
        last = recorder.memory.last_request
        return last.at if last is not None else 0.0

    def _record_first(self) -> None:
        _, (recorder, scope) = self._followed.popitem(last=False)
        recorder.record_learned(scope)
