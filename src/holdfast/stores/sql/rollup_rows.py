"""Maps postings to table rows: calls, charges that are not calls, and calls that failed at no cost."""

import msgspec
from msgspec.structs import astuple

from holdfast.ledger.accounting import LedgerEntry
from holdfast.ledger.postings import Posting, component_key
from holdfast.types.reply import ReplySource

_encode = msgspec.json.Encoder().encode


class _LedgerRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The columns that all three tables have."""

    session_id: str
    event_id: str
    at: float
    day: str
    provider: str
    model: str
    simulated: int


class CallRow(_LedgerRow, frozen=True, array_like=True, gc=False):
    number: int
    turn_id: str | None
    input: int
    cache_read: int
    cache_write_5m: int
    cache_write_1h: int
    cache_write_other: int
    output: int
    spent: int
    uncached: int
    lost: int
    price_version: str
    latency_ms: int
    latency_bits: int
    retries: int
    outcome: str
    stop_reason: str
    request_id: str
    chain: str
    blocks_shared: int
    blocks_before: int
    moved_layer: str | None
    moved_byte: int | None
    plan: str
    kind: str | None
    component: str | None
    lost_tokens: int
    verdict: str | None
    stable_written: int
    key_id: str
    user_id: str
    team_id: str
    source: ReplySource


class ChargeRow(_LedgerRow, frozen=True, array_like=True, gc=False):
    type: str
    spent: int
    key_id: str
    user_id: str
    team_id: str


class FailureRow(_LedgerRow, frozen=True, array_like=True, gc=False):
    outcome: str
    latency_ms: int
    latency_bits: int
    retries: int


TableRow = CallRow | ChargeRow | FailureRow

TABLE_NAMES: dict[type[TableRow], str] = {CallRow: "calls", ChargeRow: "charges", FailureRow: "failures"}


def encode_posting(posting: Posting) -> TableRow:
    common = (
        *(posting.session_id, posting.event_id, posting.at, posting.day, posting.provider, posting.model),
        int(posting.is_simulated),
    )
    if posting.entry is not None:
        return _call_row(common, posting, posting.entry)
    if posting.outcome is None:
        return ChargeRow(*common, posting.type, posting.sums.spent, *astuple(posting.payer))
    latency_ms = posting.latency_ms
    return FailureRow(*common, posting.outcome, latency_ms, latency_ms.bit_length(), posting.retries)


def _call_row(common: tuple[str, str, float, str, str, str, int], posting: Posting, entry: LedgerEntry) -> CallRow:
    call, sums, verdict = entry.record, posting.sums, entry.verdict
    return CallRow(
        *common,
        number=call.number,
        turn_id=entry.turn_id,
        input=sums.input,
        cache_read=sums.cache_read,
        cache_write_5m=sums.cache_write_5m,
        cache_write_1h=sums.cache_write_1h,
        cache_write_other=sums.cache_write_other,
        output=sums.output,
        spent=sums.spent,
        uncached=sums.uncached,
        lost=sums.lost,
        price_version=entry.pricing_version,
        latency_ms=posting.latency_ms,
        latency_bits=posting.latency_ms.bit_length(),
        retries=posting.retries,
        outcome=posting.outcome or "",
        stop_reason=entry.stop_reason,
        request_id=call.request_id,
        chain=entry.prompt_digest,
        blocks_shared=call.blocks_shared,
        blocks_before=call.blocks_before,
        moved_layer=call.changed_layer,
        moved_byte=call.changed_byte,
        plan=_encode(entry.plan).decode(),
        kind=verdict.kind if verdict else None,
        component=component_key(verdict.component) if verdict else None,
        lost_tokens=verdict.lost_tokens if verdict else 0,
        verdict=_encode(verdict).decode() if verdict else None,
        stable_written=sums.stable_written,
        key_id=posting.payer.key_id,
        user_id=posting.payer.user_id,
        team_id=posting.payer.team_id,
        source=entry.source,
    )
