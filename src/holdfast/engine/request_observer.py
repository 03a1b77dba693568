"""Observes requests written by other clients: encodes them and compares each with the previous one."""

from collections.abc import Mapping
from threading import Lock

from holdfast.catalog.schema import Model
from holdfast.catalog.token_count import count_block_tokens
from holdfast.engine.guard import WarningLog
from holdfast.engine.recorder import CallRecorder, ObservedRequest
from holdfast.engine.request_draft import RequestDraft
from holdfast.providers.adapter import Adapter, WireRequest, expects_diagnosis
from holdfast.providers.cache_inputs import automatic_breakpoint, cache_settings
from holdfast.providers.tolerant_decode import TolerantRequest, wrap_raw_request
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import Parameters, Plan, PrefixChange
from holdfast.types.request_buffer import RequestBuffer, count_shared_blocks


class RequestObserver:
    """Follows the requests of one conversation; blocks encoded for the previous request are reused."""

    def __init__(self, recorder: CallRecorder, warnings: WarningLog) -> None:
        self.recorder = recorder
        self.warnings = warnings
        self._lock = Lock()
        self._drafts: dict[tuple[str, float], RequestDraft] = {}
        self.newest_buffer: RequestBuffer | None = None
        """The last prepared request in our encoding; the next request changes it in place."""

    def prepare(self, adapter: Adapter, wire: WireRequest, *, provider: str = "") -> ObservedRequest:
        """The record of a request; `provider` is the host, where it has the format of another provider."""
        provider = provider or adapter.name
        model = f"{provider}:{wire.parameters.model}"
        row = self.recorder.find_catalog_row(model)
        if row is None:
            self.warnings.warn_once(f"model {model[:120]!r} is not in the catalog: it has no price")
        with self._lock:
            draft, change = self._update_draft(adapter, wire, 1.0 if row is None else row.tokens_factor)
            buffer = draft.buffer
            # Our encoding omits what the provider would not accept, and any breakpoint on it.
            blocks, planned = buffer.blocks, wire.plan.breakpoints
            breakpoints = tuple(breakpoint for breakpoint in planned if breakpoint.block_index < len(blocks))
            automatic = automatic_breakpoint(wire.parameters, blocks, breakpoints, row.cache) if row else ()
            request_head = adapter.request_head(wire.parameters)
            return ObservedRequest(
                model=model,
                provider=provider,
                row=row,
                plan=Plan((*breakpoints, *automatic)),
                digests=tuple(buffer.digests),
                parameters_digest=sha256_hex(request_head),
                body_bytes=buffer.measure_body(request_head, breakpoints),
                tokens=buffer.tokens_total,
                expects_diagnosis=expects_diagnosis(adapter, wire.parameters),
                settings=() if row is None else _find_settings(row, wire.parameters, draft),
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
    ) -> tuple[TolerantRequest, ObservedRequest]:
        """The record of a request that is sent unchanged; as raw JSON if it decodes but cannot be encoded again."""
        try:
            return request, self.prepare(adapter, request.wire, provider=provider)
        except Exception as error:  # noqa: BLE001 - whatever it is, the request is sent and has to be recorded
            # Only the type of the error: its message could quote the prompt.
            raw = wrap_raw_request(body, headers, f"the request cannot be encoded: {type(error).__name__}")
            return raw, self.prepare(adapter, raw.wire, provider=provider)

    def _update_draft(
        self, adapter: Adapter, wire: WireRequest, factor: float
    ) -> tuple[RequestDraft, PrefixChange | None]:
        """The encoded request, and how its prefix changed from the previous one, if it did."""
        key = (adapter.name, factor)
        if key not in self._drafts:
            self._drafts[key] = RequestDraft(adapter, lambda encoded: count_block_tokens(encoded, factor))
        draft = self._drafts[key]
        previous_digests = tuple(draft.buffer.digests)
        try:
            draft.update(wire.prompt)
        except BaseException:
            # A partial update would be taken for a complete one by the next call.
            del self._drafts[key]
            raise
        shared_blocks = count_shared_blocks(previous_digests, draft.buffer.digests)
        change = draft.describe_change(shared_blocks) if shared_blocks < len(previous_digests) else None
        draft.mark_sent()
        self.newest_buffer = draft.buffer
        return draft, change


def _find_settings(row: Model, parameters: Parameters, draft: RequestDraft) -> tuple[tuple[str, str], ...]:
    settings = cache_settings(row.provider, row.cache, parameters, ended_thinking=draft.ended_thinking)
    # The log of a client's requests has no messages, so it has to say itself whether there is an image.
    return tuple(sorted((*settings, ("images", "true")))) if draft.has_images else settings
