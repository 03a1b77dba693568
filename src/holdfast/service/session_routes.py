"""The calls of one session over HTTP: of what layers each prompt was made, what was planned, and what came of it."""

import asyncio
import datetime
from collections.abc import Callable
from decimal import Decimal
from itertools import islice
from typing import Annotated

import msgspec

from holdfast.canonical.prompt import Odds, Place
from holdfast.engine.certify import Certificate, certify
from holdfast.errors import UserError
from holdfast.ledger.call_layers import Sent, Strata, Stratum
from holdfast.ledger.verdicts import Verdict, VerdictKind
from holdfast.service.divergence import Divergence, divergence
from holdfast.service.failures import RefusedError, not_found
from holdfast.service.routes import Route, route
from holdfast.service.service import Service
from holdfast.service.sums import usd
from holdfast.service.times import moment

CALLS_MAX = 1_000
NUMBER_MAX = 10**9


class LayerTokens(msgspec.Struct, frozen=True):
    layer: str
    tokens: int


class MarkTokens(msgspec.Struct, frozen=True):
    """`tokens` lie in front of the mark."""

    tokens: int
    ttl: str


class Call(msgspec.Struct, frozen=True):
    """One call that was paid for. Tokens of layers and marks are shares of what the provider counted, by their bytes.

    `layers` are in the order of the wire; what was put into the history later is summed by layer.
    """

    number: int
    at: datetime.datetime
    model: str
    read_tokens: int
    written_tokens: int
    uncached_tokens: int
    output_tokens: int
    cost_usd: float
    uncached_usd: float
    latency_ms: int
    stop_reason: str
    source: str
    layers: tuple[LayerTokens, ...]
    marks: tuple[MarkTokens, ...]
    verdict: VerdictKind | None
    component: str | None
    is_break: bool
    lost_tokens: int
    lost_usd: float


class BetweenCalls(msgspec.Struct, frozen=True):
    at: datetime.datetime
    calls_before: int
    kind: str
    detail: str


class Calls(msgspec.Struct, frozen=True):
    """A page of the calls, oldest first, and what happened between them; `calls_total` is of the whole session."""

    session_id: str
    name: str | None
    model: str
    simulated: bool
    calls_total: int
    calls: tuple[Call, ...]
    between: tuple[BetweenCalls, ...]


class PlannedMark(msgspec.Struct, frozen=True):
    block: int
    layer: str
    tokens: int
    ttl: str
    reason: str
    saving_usd: float


class ToldVerdict(msgspec.Struct, frozen=True):
    """`diff` shows every letter as x and every digit as 0."""

    kind: VerdictKind
    expected_tokens: int
    read_tokens: int
    component: str | None
    detail: str
    cause: str | None
    byte: int | None
    first_lost: Place | None
    diff: tuple[str, ...]
    bytes_say: str | None
    usage_says: str | None
    provider_says: str | None
    disagreement: str


class CallDetail(msgspec.Struct, frozen=True):
    """`chain` is the digest of all that the call sent; `certificate` is made anew from the log."""

    call: Call
    marks: tuple[PlannedMark, ...]
    notes: tuple[str, ...]
    odds: Odds | None
    floor_tokens: int | None
    expected_read_tokens: int
    blocks: int
    blocks_shared: int
    blocks_before: int
    body_bytes: int
    chain: str
    verdict: ToldVerdict | None
    certificate: Certificate | None


class CallsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Without `after` the newest calls are told."""

    session_id: str
    after: Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=CALLS_MAX)] = 200


class OneCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    session_id: str
    number: Annotated[int, msgspec.Meta(ge=1, le=NUMBER_MAX)]


async def list_calls(service: Service, request: CallsRequest) -> Calls:
    def make(strata: Strata) -> Calls:
        total = len(strata.calls)
        first = max(0, total - request.limit) if request.after is None else min(request.after, total)
        last = first + request.limit
        return Calls(
            session_id=strata.session_id,
            name=strata.name,
            model=strata.model,
            simulated=strata.simulated,
            calls_total=total,
            calls=tuple(map(_told, strata.calls[first:last])),
            between=tuple(
                BetweenCalls(moment(it.at), it.calls_before, it.kind, it.detail)
                for it in strata.happenings
                if first <= it.calls_before <= last
            ),
        )

    return await asyncio.to_thread(_of, service, request.session_id, make)


async def show_call(service: Service, request: OneCall) -> CallDetail:
    def read() -> CallDetail:
        stratum = _found(service, request)
        certificate = _certificate(service, request.session_id, stratum.sent) if stratum.sent else None
        return _detail(stratum, certificate)

    return await asyncio.to_thread(read)


async def show_bytes(service: Service, request: OneCall) -> Divergence:
    def read() -> Divergence:
        sent = _found(service, request).sent
        events = service.log.read(request.session_id)
        try:
            found = sent and divergence(events, request.session_id, service.models, ordinal=sent.ordinal)
        except UserError as error:
            raise RefusedError(404, "bytes_not_found", "the log does not make these bytes again") from error
        if not found:
            raise RefusedError(404, "bytes_not_found", "no request came before it that it could be compared with")
        return found

    return await asyncio.to_thread(read)


def _of(service: Service, session_id: str, make: Callable[[Strata], Calls]) -> Calls:
    found = service.watched.of(session_id, lambda strata: make(strata) if strata.model else None)
    if found is None:
        raise not_found("session", session_id)
    return found


def _found(service: Service, request: OneCall) -> Stratum:
    def pick(strata: Strata) -> Stratum | None:
        return strata.calls[request.number - 1] if request.number <= len(strata.calls) else None

    found = service.watched.of(request.session_id, pick)
    if found is None:
        raise not_found("call", f"{request.number} of {request.session_id}")
    return found


def _certificate(service: Service, session_id: str, sent: Sent) -> Certificate | None:
    made = certify(service.log.read(session_id), session_id, service.models)
    try:
        return next(islice(made, sent.ordinal - 1, sent.ordinal), None)
    except UserError:
        # A model that the catalog no longer knows: nobody can spell its requests again.
        return None


def _told(stratum: Stratum) -> Call:
    record, verdict, sent = stratum.entry.record, stratum.entry.verdict, stratum.sent
    tokens = record.usage.tokens_sent
    return Call(
        number=record.number,
        at=moment(record.at),
        model=record.model,
        read_tokens=record.usage.cache_read,
        written_tokens=record.usage.cache_write,
        uncached_tokens=record.usage.input,
        output_tokens=record.usage.output,
        cost_usd=usd(record.cost_usd),
        uncached_usd=usd(stratum.entry.uncached_usd),
        latency_ms=record.latency_ms,
        stop_reason=stratum.entry.stop_reason,
        source=stratum.entry.source,
        layers=layers_of(sent, tokens) if sent else (),
        marks=tuple(MarkTokens(_share(it.bytes, sent, tokens), it.mark.ttl) for it in sent.marks) if sent else (),
        verdict=verdict.kind if verdict else None,
        component=verdict.component if verdict else None,
        is_break=verdict.is_break if verdict else False,
        lost_tokens=verdict.lost_tokens if verdict else 0,
        lost_usd=usd(verdict.lost_usd if verdict else Decimal(0)),
    )


def layers_of(sent: Sent, tokens: int) -> tuple[LayerTokens, ...]:
    """Shares of all tokens that add up to them."""
    told, passed_bytes, passed_tokens = [], 0, 0
    for band in sent.bands:
        passed_bytes += band.bytes
        upto = _share(passed_bytes, sent, tokens)
        told.append(LayerTokens(band.layer, upto - passed_tokens))
        passed_tokens = upto
    return tuple(told)


def _share(size_bytes: int, sent: Sent, tokens: int) -> int:
    return round(tokens * size_bytes / sent.bytes) if sent.bytes else 0


def _detail(stratum: Stratum, certificate: Certificate | None) -> CallDetail:
    entry, sent = stratum.entry, stratum.sent
    tokens = entry.record.usage.tokens_sent
    marks = sent.marks if sent else ()
    return CallDetail(
        call=_told(stratum),
        marks=tuple(
            PlannedMark(
                block=it.mark.piece,
                layer=it.layer,
                tokens=_share(it.bytes, sent, tokens) if sent else 0,
                ttl=it.mark.ttl,
                reason=it.mark.reason,
                saving_usd=usd(it.mark.saving_usd),
            )
            for it in marks
        ),
        notes=entry.plan.notes,
        odds=entry.plan.odds,
        floor_tokens=entry.plan.floor_tokens,
        expected_read_tokens=entry.plan.expected_read_tokens,
        blocks=sent.blocks if sent else 0,
        blocks_shared=entry.record.blocks_shared,
        blocks_before=entry.record.blocks_before,
        body_bytes=sent.body_bytes if sent else 0,
        chain=entry.chain,
        verdict=_judged(entry.verdict) if entry.verdict else None,
        certificate=certificate,
    )


def _judged(verdict: Verdict) -> ToldVerdict:
    sources = verdict.sources
    diagnosis = sources.diagnosis if sources else None
    said = f"{diagnosis.outcome}: {diagnosis.reason}" if diagnosis and diagnosis.reason else None
    return ToldVerdict(
        kind=verdict.kind,
        expected_tokens=verdict.expected_tokens,
        read_tokens=verdict.read_tokens,
        component=verdict.component,
        detail=verdict.detail,
        cause=verdict.cause,
        byte=verdict.byte,
        first_lost=verdict.first_lost,
        diff=verdict.diff,
        bytes_say=sources.bytes if sources else None,
        usage_says=sources.usage if sources else None,
        provider_says=said or (diagnosis.outcome if diagnosis else None),
        disagreement=verdict.disagreement,
    )


ROUTES: tuple[Route, ...] = (
    route(
        "GET",
        "/api/sessions/{session_id}/calls",
        list_calls,
        request=CallsRequest,
        reply=Calls,
        rule="read",
        summary="A page of the calls of a session: layers, marks, what was read, and the verdict.",
        refusals=(404,),
    ),
    route(
        "GET",
        "/api/sessions/{session_id}/calls/{number}",
        show_call,
        request=OneCall,
        reply=CallDetail,
        rule="read",
        summary="One call: its plan with reasons, its verdict, its certificate.",
        refusals=(404,),
    ),
    route(
        "GET",
        "/api/sessions/{session_id}/calls/{number}/bytes",
        show_bytes,
        request=OneCall,
        reply=Divergence,
        rule="admin",
        summary="Where its bytes leave those of the call before, as they were sent: this quotes the prompt.",
        refusals=(404,),
    ),
)
