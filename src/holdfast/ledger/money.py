"""Exact units and bounds of the ledger: amounts are integers, and every number fits into a table; accounts.

Money is counted in picodollars (10**-12 USD). A price is dollars per million tokens with at most six decimals, that is
a multiple of 10**-6 / 10**6 = 10**-12 USD per token, so tokens * price is always a whole number of picodollars and sums
are exact in any order. Storage billed by the second is rounded to the nearest one. A signed 64-bit sum holds 2**63 /
10**12 = 9.2 million dollars.
"""

import datetime
from decimal import Decimal

import msgspec
from msgspec.structs import astuple, replace

from holdfast.catalog.lookup import utc_date
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CachePinged, ExplicitCacheChanged
from holdfast.events.payloads.calls import LlmCallCompleted, LlmCallFailed
from holdfast.events.payloads.union import AnyPayload
from holdfast.types.usage import TOKENS_MAX, Usage, clamp_token_count

# The largest cost booked for one event: a larger amount is an error, and would overflow the sums that include it.
USD_MAX = Decimal(1_000)
NAME_CHARACTERS_MAX = 200  # Longer than any model or account name; keeps table keys indexable.
INTEGER_MAX = 2**62  # Well within the signed 64-bit integers of SQLite and PostgreSQL.
LATENCY_MS_MAX = 2**31 - 1  # 24 days, in 31 bits.
AT_MAX = 253_402_300_799.0  # 9999-12-31T23:59:59Z, the last second that `datetime` can represent.
_BILLED: frozenset[type[AnyPayload]] = frozenset((LlmCallCompleted, LlmCallFailed, CachePinged, ExplicitCacheChanged))
_PICO_DIGITS = 12
_PICODOLLARS_PER_DOLLAR = Decimal(10) ** _PICO_DIGITS


class Payer(msgspec.Struct, frozen=True):
    """The account of a call: a gateway key, a user, a team; empty where there is none."""

    key_id: str = ""
    user_id: str = ""
    team_id: str = ""


NO_PAYER = Payer()


def build_payer(*, key_id: str | None = None, user_id: str | None = None, team_id: str | None = None) -> Payer:
    return Payer(*((name or "")[:NAME_CHARACTERS_MAX] for name in (key_id, user_id, team_id)))


def to_picodollars(usd: Decimal) -> int:
    clamped = min(max(usd, -USD_MAX), USD_MAX)
    return round(clamped.scaleb(_PICO_DIGITS))  # Half to even, independent of the decimal context.


def to_dollars(pico: int) -> Decimal:
    """Exact: dividing by a power of ten loses no digit, and equal amounts get equal representations."""
    return Decimal(pico) / _PICODOLLARS_PER_DOLLAR


def round_usd(usd: Decimal) -> Decimal:
    """The amount in whole picodollars; unchanged, representation included, if it already is."""
    return usd if is_exact_usd(usd) else to_dollars(to_picodollars(usd))


def is_exact_usd(usd: Decimal) -> bool:
    """Whether an amount can be booked without rounding or clamping."""
    return -USD_MAX <= usd <= USD_MAX and usd.scaleb(_PICO_DIGITS) % 1 == 0


def clamp_integer(number: int) -> int:
    return min(max(number, -INTEGER_MAX), INTEGER_MAX)


def format_utc_day(at: float) -> str:
    return utc_date(at).isoformat()


def utc_day_start(day: str) -> float:
    return datetime.datetime.fromisoformat(day).replace(tzinfo=datetime.UTC).timestamp()


def clamp_event(event: Event) -> Event:
    """The event with its time, numbers and names clamped to what the tables can hold."""
    if not 0.0 <= event.at <= AT_MAX:
        event = replace(event, at=min(max(event.at, 0.0), AT_MAX))
    if type(event.payload) not in _BILLED:
        return event
    match event.payload:
        case LlmCallCompleted() | LlmCallFailed() as payload if _is_within_bounds(payload):
            return event
        case LlmCallCompleted() | LlmCallFailed() as payload:
            latency_ms = min(max(payload.latency_ms, 0), LATENCY_MS_MAX)
            clamped = replace(
                payload,
                **_clamp_costs(payload),
                latency_ms=latency_ms,
                retry_count=clamp_integer(payload.retry_count),
                provider=_truncate_name(payload.provider),
            )
            return replace(event, payload=clamped)
        case CachePinged() as payload:
            return replace(event, payload=replace(payload, **_clamp_costs(payload)))
        case ExplicitCacheChanged() as payload:
            costs = {"cost_usd": round_usd(payload.cost_usd), "storage_cost_usd": round_usd(payload.storage_cost_usd)}
            return replace(event, payload=replace(payload, model=_truncate_name(payload.model), **costs))
        case _:
            return event


def _is_within_bounds(payload: LlmCallCompleted | LlmCallFailed) -> bool:
    buckets: tuple[int, ...] = astuple(payload.usage)
    numbers_fit = min(buckets) >= 0 and max(buckets) <= TOKENS_MAX and 0 <= payload.latency_ms <= LATENCY_MS_MAX
    names_fit = len(payload.model) <= NAME_CHARACTERS_MAX and len(payload.provider) <= NAME_CHARACTERS_MAX
    return numbers_fit and names_fit and abs(payload.retry_count) <= INTEGER_MAX and is_exact_usd(payload.cost_usd)


def _clamp_costs(payload: LlmCallCompleted | LlmCallFailed | CachePinged) -> dict[str, object]:
    usage = Usage(*map(clamp_token_count, astuple(payload.usage)))
    return {"usage": usage, "cost_usd": round_usd(payload.cost_usd), "model": _truncate_name(payload.model)}


def _truncate_name(name: str) -> str:
    return name[:NAME_CHARACTERS_MAX]
