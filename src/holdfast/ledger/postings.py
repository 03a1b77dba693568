"""What each event adds to the tables: a call, a charge that is not a call, or a call that failed at no cost.

Roll-up tables and reports are sums of postings, wherever they are computed.
"""

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.events.log import Event, event_type_of
from holdfast.events.payloads.cache import CachePinged, ExplicitCacheChanged
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.events.payloads.session import MessageAppended
from holdfast.events.payloads.union import AnyPayload
from holdfast.ledger.accounting import ACCOUNTED_PAYLOADS, AccountingState, LedgerEntry, record_event
from holdfast.ledger.money import NAME_CHARACTERS_MAX, NO_PAYER, Payer, clamp_event, format_utc_day, to_picodollars
from holdfast.providers.cache_inputs import has_image
from holdfast.types.usage import Usage

# Increase it when the same events lead to different verdicts or amounts: tables of an older version are rebuilt.
LEDGER_VERSION = 5
POSTED_PAYLOADS = (*ACCOUNTED_PAYLOADS, ExplicitCacheChanged)
_NOT_CALLS: frozenset[type[msgspec.Struct]] = frozenset((LlmCallFailed, CachePinged, ExplicitCacheChanged))
_POSTED_SET: frozenset[type[msgspec.Struct]] = frozenset(POSTED_PAYLOADS)

_TAGS = (kind.__struct_config__.tag for kind in POSTED_PAYLOADS)
POSTED_EVENT_TYPES = tuple(sorted(tag for tag in _TAGS if isinstance(tag, str)))

Cell = str | int
Key = tuple[Cell, ...]
Addition = tuple[str, Key, tuple[int, ...]]

# Additions to one key that are collected before they are summed: bounds memory, and sums 1,000 at a time.
PENDING_ADDITIONS_MAX = 1_000


class Sums(msgspec.Struct, frozen=True):
    """Sums over postings. `hits` are calls that read anything from the cache; money is in picodollars."""

    entries: int = 0
    calls: int = 0
    hits: int = 0
    input: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    cache_write_other: int = 0
    output: int = 0
    spent: int = 0
    uncached: int = 0
    lost: int = 0
    latency_ms: int = 0
    stable_written: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        return Sums(*(left + right for left, right in zip(struct_values(self), struct_values(other), strict=True)))

    def __sub__(self, other: "Sums") -> "Sums":
        return Sums(*(left - right for left, right in zip(struct_values(self), struct_values(other), strict=True)))

    @property
    def usage(self) -> Usage:
        # Fields 3 to 8, input to output, are in the order of the fields of `Usage`.
        return Usage(*struct_values(self)[3:9])


def struct_values(struct: msgspec.Struct) -> tuple[int, ...]:
    return msgspec.structs.astuple(struct)


class Posting(msgspec.Struct, frozen=True):
    """`day` is the UTC day of `at`. A charged call has an entry; every ended call, charged or not, has an outcome."""

    event_id: str
    session_id: str
    at: float
    day: str
    provider: str
    model: str
    type: str
    sums: Sums = Sums()
    entry: LedgerEntry | None = None
    outcome: str | None = None
    latency_ms: int = 0
    retries: int = 0
    is_simulated: bool = False
    payer: Payer = Payer()


def affects_ledger(payload: AnyPayload) -> bool:
    """Whether an event changes the accounting state or is posted; all others can be skipped."""
    if isinstance(payload, MessageAppended):
        return any(map(has_image, payload.message.content))
    return type(payload) in _POSTED_SET


def post_event(state: AccountingState, event: Event, models: Models) -> tuple[AccountingState, Posting | None]:
    """The state after one more event, and what the event adds to the tables, if anything. Never raises."""
    state, entry = record_event(state, event, models)
    if entry is not None:
        # A reply from the completion cache cost nothing and is not a provider call.
        return state, _post_call(state, event, entry) if entry.source != "completion-cache" else None
    if type(event.payload) not in _NOT_CALLS:
        return state, None
    event = clamp_event(event)
    match event.payload:
        case LlmCallFailed() as failure:
            return state, _post_failure(state, event, failure)
        case CachePinged(model=model, cost_usd=cost):
            return state, _post_charge(state, event, model, to_picodollars(cost))
        case ExplicitCacheChanged(model=model, cost_usd=cost, storage_cost_usd=storage):
            return state, _post_charge(state, event, model, to_picodollars(cost) + to_picodollars(storage))
        case _:
            return state, None


def iter_postings(events: Iterable[Event], models: Models) -> Iterator[Posting]:
    """What a session adds to the tables, from its first event on."""
    state = AccountingState()
    for event in events:
        if isinstance(event.payload, POSTED_PAYLOADS):
            state, posting = post_event(state, event, models)
            if posting is not None:
                yield posting


def _post_call(state: AccountingState, event: Event, entry: LedgerEntry) -> Posting:
    if entry.completion_key or entry.is_completion_cached:
        # The tables hold amounts only, not whether the reply was stored in the completion cache.
        entry = msgspec.structs.replace(entry, completion_key="", is_completion_cached=False)
    call = entry.record
    usage = call.usage
    sums = Sums(
        entries=1,
        calls=1,
        hits=int(usage.cache_read > 0),
        input=usage.input,
        cache_read=usage.cache_read,
        cache_write_5m=usage.cache_write_5m,
        cache_write_1h=usage.cache_write_1h,
        cache_write_other=usage.cache_write_other,
        output=usage.output,
        spent=to_picodollars(call.cost_usd),
        uncached=to_picodollars(entry.uncached_usd),
        lost=to_picodollars(entry.verdict.lost_usd) if entry.verdict and entry.verdict.lost_usd else 0,
        latency_ms=call.latency_ms,
        stable_written=entry.stable_write_tokens,
    )
    return Posting(
        event_id=event.id,
        session_id=event.session_id,
        at=call.at,
        day=format_utc_day(call.at),
        provider=entry.provider,
        model=call.model,
        type=event_type_of(event.payload),
        sums=sums,
        entry=entry,
        outcome="completed" if call.completed else entry.stop_reason,
        latency_ms=call.latency_ms,
        retries=entry.retries,
        is_simulated=state.is_simulated,
        payer=entry.payer,
    )


def _post_charge(state: AccountingState, event: Event, model: str, spent: int) -> Posting:
    """A charge that is not a call: it kept a cache alive, and would not exist without caching."""
    posting = _post_event(state, event, model.partition(":")[0], model)
    return msgspec.structs.replace(posting, sums=Sums(entries=1, spent=spent), payer=state.payer)


def _post_failure(state: AccountingState, event: Event, failure: LlmCallFailed) -> Posting:
    """A call that failed at no cost."""
    posting = _post_event(state, event, failure.provider, failure.model)
    outcome, latency_ms, retries = failure.error_class, failure.latency_ms, failure.retry_count
    return msgspec.structs.replace(posting, outcome=outcome, latency_ms=latency_ms, retries=retries)


def _post_event(state: AccountingState, event: Event, provider: str, model: str) -> Posting:
    return Posting(
        event_id=event.id,
        session_id=event.session_id,
        at=event.at,
        day=format_utc_day(event.at),
        provider=provider,
        model=model,
        type=event_type_of(event.payload),
        is_simulated=state.is_simulated,
    )


def component_key(component: str | None) -> str:
    """The component that caused a miss, as a table key; empty if there is none."""
    return (component or "")[:NAME_CHARACTERS_MAX]


class VerdictSums(msgspec.Struct, frozen=True):
    """How often a verdict was given, how often it meant a loss, and what was lost."""

    calls: int = 0
    losses: int = 0
    tokens: int = 0
    lost: int = 0


class OutcomeSums(msgspec.Struct, frozen=True):
    """Calls with one outcome, and their total latency and retries."""

    calls: int = 0
    latency_ms: int = 0
    retries: int = 0


class RollUp(msgspec.Struct, frozen=True):
    """One row per key; a row whose first sum has dropped to 0 is deleted."""

    name: str
    keys: tuple[str, ...]
    sums: tuple[str, ...]


DAYS = RollUp("days", ("day", "provider", "model", "simulated"), Sums.__struct_fields__)
SESSION_DAYS = RollUp("session_days", ("session_id", "day", "simulated"), Sums.__struct_fields__)
VERDICT_DAYS = RollUp("verdict_days", ("day", "kind", "component", "simulated"), VerdictSums.__struct_fields__)

# A latency of n bits is under 2**n ms. Counts per n can be subtracted when a session is deleted; a maximum cannot.
_OUTCOME_KEYS = ("day", "provider", "model", "outcome", "latency_bits", "simulated")
OUTCOME_DAYS = RollUp("outcome_days", _OUTCOME_KEYS, OutcomeSums.__struct_fields__)

# Postings without a payer are not stored: they are the difference to the totals of `DAYS`.
ACCOUNT_DAYS = RollUp("account_days", ("day", "key_id", "user_id", "team_id", "simulated"), Sums.__struct_fields__)
ROLLUPS = (DAYS, SESSION_DAYS, VERDICT_DAYS, OUTCOME_DAYS, ACCOUNT_DAYS)


def iter_additions(posting: Posting) -> Iterator[Addition]:
    day, simulated = posting.day, int(posting.is_simulated)
    if posting.sums.entries:
        sums = struct_values(posting.sums)
        yield DAYS.name, (day, posting.provider, posting.model, simulated), sums
        yield SESSION_DAYS.name, (posting.session_id, day, simulated), sums
        if posting.payer != NO_PAYER:
            payer = posting.payer
            yield ACCOUNT_DAYS.name, (day, payer.key_id, payer.user_id, payer.team_id, simulated), sums
    verdict = posting.entry.verdict if posting.entry else None
    if verdict is not None:
        lost = posting.sums.lost
        verdict_sums = (1, int(lost > 0), verdict.lost_tokens if lost else 0, lost)
        yield VERDICT_DAYS.name, (day, verdict.kind, component_key(verdict.component), simulated), verdict_sums
    if posting.outcome is not None:
        key = (day, posting.provider, posting.model, posting.outcome, posting.latency_ms.bit_length(), simulated)
        yield OUTCOME_DAYS.name, key, (1, posting.latency_ms, posting.retries)


class RollUpTotals:
    """Collects additions and sums them when they are read."""

    def __init__(self) -> None:
        self._pending: dict[str, dict[Key, list[tuple[int, ...]]]] = {table.name: {} for table in ROLLUPS}

    def add(self, table: str, key: Key, amounts: tuple[int, ...]) -> None:
        pending = self._pending[table].setdefault(key, [])
        pending.append(amounts)
        # Adding tuples one by one would build a new tuple per posting; summing many at once is faster.
        if len(pending) >= PENDING_ADDITIONS_MAX:
            pending[:] = [_sum(pending)]

    def rows(self, table: RollUp) -> dict[Key, tuple[int, ...]]:
        return {key: _sum(pending) for key, pending in self._pending[table.name].items()}

    def clear(self) -> None:
        for pending in self._pending.values():
            pending.clear()

    def post(self, postings: Iterable[Posting]) -> None:
        for posting in postings:
            for addition in iter_additions(posting):
                self.add(*addition)


def _sum(rows: list[tuple[int, ...]]) -> tuple[int, ...]:
    return rows[0] if len(rows) == 1 else tuple(map(sum, zip(*rows, strict=True)))
