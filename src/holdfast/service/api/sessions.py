"""HTTP routes for one session: its calls with prompt layers, cache plan, usage and verdict, and its compactions."""

import datetime
from decimal import Decimal
from itertools import islice
from typing import Annotated

import msgspec

from holdfast.engine.certify import Certificate, certify
from holdfast.errors import UserError
from holdfast.ledger.cache.verdicts import Verdict, VerdictKind
from holdfast.ledger.layers import CallLayers, CallTimeline, RequestLayers
from holdfast.runtime.compaction import SessionCompactions, report_compactions
from holdfast.service.api.analytics_rows import to_json_usd
from holdfast.service.api.prompt_view import Divergence, compare_bytes, find_divergence, rebuild_request
from holdfast.service.context import AppContext
from holdfast.service.http.request_parsing import to_datetime
from holdfast.service.http.routes import ApiError, Route, SessionRequest, copy_fields, json_route, make_not_found_error
from holdfast.types.prompt import PlanProbabilities, PromptSection

_CALL = "/api/sessions/{session_id}/calls/{number}"
_COMPACTIONS = "/api/sessions/{session_id}/compactions"
CALLS_MAX = 1_000
DROPPED_MAX = 200
FAILED_MAX = 200
NUMBER_MAX = 10**9


class LayerTokens(msgspec.Struct, frozen=True):
    layer: str
    tokens: int


class BreakpointTokens(msgspec.Struct, frozen=True):
    """`tokens` is the number of tokens before the breakpoint."""

    tokens: int
    ttl: str


class CallView(msgspec.Struct, frozen=True):
    """One billed call. Tokens of layers and breakpoints are the provider's count, distributed by bytes.

    `layers` are in wire order; text injected into the history is summed by layer. `cost_usd` and `uncached_usd` are
    null if no price is known for the model. `outcome` is `completed`, `unreadable` or an error class;
    `first_byte_ms`, when the response began, is known of calls through a gateway.
    """

    number: int
    at: datetime.datetime
    model: str
    read_tokens: int
    written_tokens: int
    uncached_tokens: int
    output_tokens: int
    cost_usd: float | None
    uncached_usd: float | None
    latency_ms: int
    stop_reason: str
    source: str
    layers: tuple[LayerTokens, ...]
    breakpoints: tuple[BreakpointTokens, ...]
    verdict: VerdictKind | None
    component: str | None
    is_break: bool
    lost_tokens: int
    lost_usd: float
    first_byte_ms: int | None
    retries: int
    outcome: str


class FailedCall(msgspec.Struct, frozen=True):
    """A call that failed at no cost, after `calls_before` billed ones."""

    at: datetime.datetime
    calls_before: int
    error_class: str
    latency_ms: int
    retries: int


class InterCallEvent(msgspec.Struct, frozen=True):
    at: datetime.datetime
    calls_before: int
    kind: str
    detail: str


class CallsResponse(msgspec.Struct, frozen=True):
    """A page of calls, oldest first, the events between them, and the newest calls that failed at no cost.

    `calls_total` is for the whole session. `title` is the name, or client and start, as in the session list.
    """

    session_id: str
    title: str
    name: str | None
    client: str | None
    started_at: datetime.datetime
    model: str
    simulated: bool
    calls_total: int
    calls: tuple[CallView, ...]
    between: tuple[InterCallEvent, ...]
    failed: tuple[FailedCall, ...]


class PlannedBreakpoint(msgspec.Struct, frozen=True):
    block: int
    layer: str
    tokens: int
    ttl: str
    reason: str
    saving_usd: float


class VerdictView(msgspec.Struct, frozen=True):
    """`diff` is masked: every letter is x, every digit is 0."""

    kind: VerdictKind
    expected_tokens: int
    read_tokens: int
    floor_tokens_missing: int
    component: str | None
    detail: str
    cause: str | None
    byte: int | None
    first_lost: PromptSection | None
    diff: tuple[str, ...]
    bytes_verdict: str | None
    usage_verdict: str | None
    provider_diagnosis: str | None
    disagreement: str


class CallResponse(msgspec.Struct, frozen=True):
    """`chain` is the digest of everything the call sent; `certificate` is recomputed from the log."""

    call: CallView
    breakpoints: tuple[PlannedBreakpoint, ...]
    notes: tuple[str, ...]
    probabilities: PlanProbabilities | None
    floor_tokens: int | None
    expected_read_tokens: int
    blocks: int
    blocks_shared: int
    blocks_before: int
    body_bytes: int
    chain: str
    verdict: VerdictView | None
    certificate: Certificate | None


class CompactionView(msgspec.Struct, frozen=True):
    """Messages `first` to `last` became a summary, or `cleared` results and images were replaced by a line each."""

    at: datetime.datetime
    trigger: str
    strategy: str
    first: int
    last: int
    has_summary: bool
    tokens_before: int
    tokens_after: int
    cleared: int
    saving_per_call_usd: float
    is_undone: bool


class DroppedKind(msgspec.Struct, frozen=True):
    kind: str
    count: int
    tokens: int


class CompactionsResponse(msgspec.Struct, frozen=True):
    """The compactions of a session, and by kind what is not in view because of them; without any text of the prompt.

    `undo` says how the newest compaction is undone; empty if none can be.
    """

    compactions: tuple[CompactionView, ...]
    dropped: tuple[DroppedKind, ...]
    undo: str


class DroppedView(msgspec.Struct, frozen=True):
    kind: str
    number: int
    about: str
    tokens: int


class CompactedContentResponse(msgspec.Struct, frozen=True):
    """The most important lines of the summary in view, and the largest pieces that are not in view."""

    compressed_summary: str
    dropped: tuple[DroppedView, ...]
    notes: tuple[str, ...]


class CompactionsRequest(SessionRequest, frozen=True):
    pass


class CallsRequest(SessionRequest, frozen=True):
    """Without `after`, the newest calls are returned."""

    after: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=CALLS_MAX)] = 200


class CallRequest(SessionRequest, frozen=True):
    number: Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]


class CallBytesRequest(CallRequest, frozen=True):
    """Compared with `other_call` of `other_session` (by default of this one); without it, with the call before."""

    other_call: Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)] | None = None
    other_session: str | None = None


def list_calls(context: AppContext, request: CallsRequest) -> CallsResponse:
    """A page of the calls of a session: layers, breakpoints, usage and verdict."""

    title = context.find_titles((request.session_id,))[request.session_id]

    def make(session: CallTimeline) -> CallsResponse | None:
        if not session.model:
            return None
        total = len(session.calls)
        first = max(0, total - request.limit) if request.after is None else min(request.after, total)
        last = first + request.limit
        return copy_fields(
            CallsResponse,
            session,
            title=title,
            client=session.client or None,
            started_at=to_datetime(session.started_at),
            simulated=session.is_simulated,
            calls_total=total,
            calls=tuple(map(_call_view, session.calls[first:last])),
            between=tuple(
                InterCallEvent(to_datetime(event.at), event.calls_before, event.kind, event.detail)
                for event in session.timeline_events
                if first <= event.calls_before <= last
            ),
            failed=tuple(
                copy_fields(FailedCall, failure, at=to_datetime(failure.at))
                for failure in session.failures[-FAILED_MAX:]
            ),
        )

    calls = context.prompt_views.view_session(request.session_id, make)
    if calls is None:
        raise make_not_found_error("session", request.session_id)
    return calls


def list_compactions(context: AppContext, request: CompactionsRequest) -> CompactionsResponse:
    """The compactions of a session, what left its view by kind, and how to undo the newest."""
    found = _find_compactions(context, request.session_id)
    kinds = dict.fromkeys(content.kind for content in found.dropped)
    by_kind = {kind: [content.tokens for content in found.dropped if content.kind == kind] for kind in kinds}
    return CompactionsResponse(
        compactions=tuple(
            copy_fields(
                CompactionView,
                report,
                at=to_datetime(report.at),
                saving_per_call_usd=to_json_usd(report.saving_per_call_usd),
            )
            for report in found.compactions
        ),
        dropped=tuple(DroppedKind(kind, len(tokens), sum(tokens)) for kind, tokens in by_kind.items()),
        undo=found.undo,
    )


def get_compacted_content(context: AppContext, request: CompactionsRequest) -> CompactedContentResponse:
    """The summary in view and what is not in view; this quotes the prompt."""
    found = _find_compactions(context, request.session_id)
    return CompactedContentResponse(
        compressed_summary=found.compressed_summary,
        dropped=tuple(copy_fields(DroppedView, content) for content in found.dropped[:DROPPED_MAX]),
        notes=tuple(note for report in found.compactions for note in report.notes),
    )


def _find_compactions(context: AppContext, session_id: str) -> SessionCompactions:
    events = list(context.log.read(session_id))
    if not events:
        raise make_not_found_error("session", session_id)
    return report_compactions(events, session_id, context.models)


def get_call(context: AppContext, request: CallRequest) -> CallResponse:
    """One call: its cache plan with reasons, its verdict and its certificate."""
    call = _find_call(context, request)
    certificate = _certificate(context, request.session_id, call.request) if call.request else None
    return _detail(call, certificate)


def get_divergence(context: AppContext, request: CallBytesRequest) -> Divergence:
    """The first byte that differs from the previous call, or from any other one, with context; quotes the prompt."""
    sent = _find_call(context, request).request
    events = context.log.read(request.session_id)
    try:
        result = None
        if request.other_call is not None:
            other = CallRequest(request.other_session or request.session_id, request.other_call)
            result = _compare_requests(context, other, request)
        elif sent is not None:
            result = find_divergence(events, request.session_id, context.models, ordinal=sent.ordinal)
    except UserError as error:
        raise ApiError(404, "bytes_not_found", "these bytes cannot be rebuilt from the log") from error
    if not result:
        raise ApiError(404, "bytes_not_found", "there is no earlier request to compare with")
    return result


def _compare_requests(context: AppContext, before: CallRequest, after: CallRequest) -> Divergence | None:
    first, second = _rebuild_call(context, before), _rebuild_call(context, after)
    return None if first is None or second is None else compare_bytes(first, second)


def _rebuild_call(context: AppContext, request: CallRequest) -> bytes | None:
    sent = _find_call(context, request).request
    events = context.log.read(request.session_id)
    return rebuild_request(events, request.session_id, ordinal=sent.ordinal) if sent else None


def _find_call(context: AppContext, request: CallRequest) -> CallLayers:
    def pick(session: CallTimeline) -> CallLayers | None:
        return session.calls[request.number - 1] if request.number <= len(session.calls) else None

    call = context.prompt_views.view_session(request.session_id, pick)
    if call is None:
        raise make_not_found_error("call", f"{request.number} of {request.session_id}")
    return call


def _certificate(context: AppContext, session_id: str, request: RequestLayers) -> Certificate | None:
    # Certificates come in request order; the one of this call is number `ordinal`.
    certificates = certify(context.log.read(session_id), session_id, context.models)
    try:
        return next(islice(certificates, request.ordinal - 1, request.ordinal), None)
    except UserError:
        # The catalog no longer has this model, so its requests cannot be encoded again.
        return None


def _call_view(call: CallLayers) -> CallView:
    record, verdict, sent = call.entry.record, call.entry.verdict, call.request
    tokens = record.usage.tokens_sent
    return CallView(
        number=record.number,
        at=to_datetime(record.at),
        model=record.model,
        read_tokens=record.usage.cache_read,
        written_tokens=record.usage.cache_write,
        uncached_tokens=record.usage.input,
        output_tokens=record.usage.output,
        cost_usd=None if call.entry.is_unpriced else to_json_usd(record.cost_usd),
        uncached_usd=None if call.entry.is_unpriced else to_json_usd(call.entry.uncached_usd),
        latency_ms=record.latency_ms,
        stop_reason=call.entry.stop_reason,
        source=call.entry.source,
        layers=distribute_tokens(sent, tokens) if sent else (),
        breakpoints=tuple(
            BreakpointTokens(_share(planned.prefix_bytes, sent, tokens), planned.breakpoint.ttl)
            for planned in sent.breakpoints
        )
        if sent
        else (),
        verdict=verdict.kind if verdict else None,
        component=verdict.component if verdict else None,
        is_break=verdict.is_unexpected if verdict else False,
        lost_tokens=verdict.lost_tokens if verdict else 0,
        lost_usd=to_json_usd(verdict.lost_usd if verdict else Decimal(0)),
        first_byte_ms=call.entry.first_byte_ms,
        retries=call.entry.retries,
        outcome="completed" if record.completed else call.entry.stop_reason,
    )


def distribute_tokens(sent: RequestLayers, tokens: int) -> tuple[LayerTokens, ...]:
    """Distributes `tokens` over the layers by their bytes."""
    # Rounding the running total instead of each layer keeps the sum equal to `tokens`.
    layers, bytes_so_far, tokens_so_far = [], 0, 0
    for band in sent.layers:
        bytes_so_far += band.bytes
        tokens_up_to_here = _share(bytes_so_far, sent, tokens)
        layers.append(LayerTokens(band.layer, tokens_up_to_here - tokens_so_far))
        tokens_so_far = tokens_up_to_here
    return tuple(layers)


def _share(size_bytes: int, sent: RequestLayers, tokens: int) -> int:
    return round(tokens * size_bytes / sent.cacheable_bytes) if sent.cacheable_bytes else 0


def _detail(call: CallLayers, certificate: Certificate | None) -> CallResponse:
    entry, sent = call.entry, call.request
    tokens = entry.record.usage.tokens_sent
    planned_breakpoints = sent.breakpoints if sent else ()
    return copy_fields(
        CallResponse,
        entry.plan,
        call=_call_view(call),
        breakpoints=tuple(
            PlannedBreakpoint(
                block=planned.breakpoint.block_index,
                layer=planned.layer,
                tokens=_share(planned.prefix_bytes, sent, tokens) if sent else 0,
                ttl=planned.breakpoint.ttl,
                reason=planned.breakpoint.reason,
                saving_usd=to_json_usd(planned.breakpoint.saving_usd),
            )
            for planned in planned_breakpoints
        ),
        blocks=sent.blocks if sent else 0,
        blocks_shared=entry.record.blocks_shared,
        blocks_before=entry.record.blocks_before,
        body_bytes=sent.body_bytes if sent else 0,
        chain=entry.prompt_digest,
        verdict=_verdict_view(entry.verdict) if entry.verdict else None,
        certificate=certificate,
    )


def _verdict_view(verdict: Verdict) -> VerdictView:
    sources = verdict.evidence
    diagnosis = sources.diagnosis if sources else None
    diagnosis_text = f"{diagnosis.outcome}: {diagnosis.reason}" if diagnosis and diagnosis.reason else None
    return copy_fields(
        VerdictView,
        verdict,
        first_lost=verdict.first_lost_section,
        bytes_verdict=sources.bytes if sources else None,
        usage_verdict=sources.usage if sources else None,
        provider_diagnosis=diagnosis_text or (diagnosis.outcome if diagnosis else None),
    )


ROUTES: tuple[Route, ...] = (
    json_route("GET", "/api/sessions/{session_id}/calls", list_calls, rule="read", error_statuses=(404,)),
    json_route("GET", _COMPACTIONS, list_compactions, rule="read", error_statuses=(404,)),
    json_route("GET", f"{_COMPACTIONS}/content", get_compacted_content, rule="admin", error_statuses=(404,)),
    json_route("GET", _CALL, get_call, rule="read", error_statuses=(404,)),
    json_route("GET", f"{_CALL}/bytes", get_divergence, rule="admin", error_statuses=(404,)),
)
