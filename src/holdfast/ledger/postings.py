"""What each event adds to the tables: a call, a charge that is not a call, or a call that failed at no cost.

Tables and reports are sums of postings, wherever they are computed.
"""

from collections.abc import Iterable, Iterator

import msgspec

from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import Models
from holdfast.events.envelope import Event, type_of
from holdfast.events.payloads import AnyPayload, CacheKept, CachePinged, LlmCallFailed, MessageAppended
from holdfast.ledger.books import ENTERED, Books, Entry, entered, has_image
from holdfast.ledger.money import NAME_CHARACTERS_MAX, bounded, day_of, picodollars
from holdfast.ledger.shares import Payer

# Increase it when the same events lead to different verdicts or amounts: tables of an older version are rebuilt.
LEDGER_VERSION = 3

POSTED = (*ENTERED, CacheKept)
_NOT_CALLS: frozenset[type[msgspec.Struct]] = frozenset((LlmCallFailed, CachePinged, CacheKept))
_POSTED_SET: frozenset[type[msgspec.Struct]] = frozenset(POSTED)
POSTED_TYPES = tuple(
    sorted(kind.__struct_config__.tag for kind in POSTED if isinstance(kind.__struct_config__.tag, str))
)


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
        return Sums(*(left + right for left, right in zip(cells(self), cells(other), strict=True)))

    @property
    def usage(self) -> Usage:
        # Fields 3 to 8, input to output, are in the order of the fields of `Usage`.
        return Usage(*cells(self)[3:9])


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
    entry: Entry | None = None
    outcome: str | None = None
    latency_ms: int = 0
    retries: int = 0
    simulated: bool = False
    payer: Payer = Payer()


def cells(struct: msgspec.Struct) -> tuple[int, ...]:
    return msgspec.structs.astuple(struct)


def matters(payload: AnyPayload) -> bool:
    """Whether an event changes the accounting state or is posted; all others can be skipped."""
    if isinstance(payload, MessageAppended):
        return any(map(has_image, payload.message.content))
    return type(payload) in _POSTED_SET


def posted(state: Books, event: Event, models: Models) -> tuple[Books, Posting | None]:
    """The state after one more event, and what the event adds to the tables, if anything. Never raises."""
    state, entry = entered(state, event, models)
    if entry is not None:
        # A reply from the completion cache cost nothing and is not a provider call.
        return state, _post_call(state, event, entry) if entry.source != "completion-cache" else None
    if type(event.payload) not in _NOT_CALLS:
        return state, None
    event = bounded(event)
    match event.payload:
        case LlmCallFailed() as failure:
            return state, _post_failure(state, event, failure)
        case CachePinged(model=model, cost_usd=cost):
            return state, _post_charge(state, event, model, picodollars(cost))
        case CacheKept(model=model, cost_usd=cost, storage_cost_usd=storage):
            return state, _post_charge(state, event, model, picodollars(cost) + picodollars(storage))
        case _:
            return state, None


def postings(events: Iterable[Event], models: Models) -> Iterator[Posting]:
    """What a session adds to the tables, from its first event on."""
    state = Books()
    for event in events:
        if isinstance(event.payload, POSTED):
            state, posting = posted(state, event, models)
            if posting is not None:
                yield posting


def _post_call(state: Books, event: Event, entry: Entry) -> Posting:
    if entry.completion_key or entry.completion_kept:
        # The tables hold amounts only, not whether the reply was stored in the completion cache.
        entry = msgspec.structs.replace(entry, completion_key="", completion_kept=False)
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
        spent=picodollars(call.cost_usd),
        uncached=picodollars(entry.uncached_usd),
        lost=picodollars(entry.verdict.lost_usd) if entry.verdict and entry.verdict.lost_usd else 0,
        latency_ms=call.latency_ms,
        stable_written=entry.stable_written,
    )
    return Posting(
        event_id=event.id,
        session_id=event.session_id,
        at=call.at,
        day=day_of(call.at),
        provider=entry.provider,
        model=call.model,
        type=type_of(event.payload),
        sums=sums,
        entry=entry,
        outcome="completed" if call.completed else entry.stop_reason,
        latency_ms=call.latency_ms,
        retries=entry.retries,
        simulated=state.simulated,
        payer=entry.payer,
    )


def _post_charge(state: Books, event: Event, model: str, spent: int) -> Posting:
    """A charge that is not a call: it kept a cache alive, and would not exist without caching."""
    return Posting(
        event_id=event.id,
        session_id=event.session_id,
        at=event.at,
        day=day_of(event.at),
        provider=model.partition(":")[0],
        model=model,
        type=type_of(event.payload),
        sums=Sums(entries=1, spent=spent),
        simulated=state.simulated,
        payer=state.payer,
    )


def _post_failure(state: Books, event: Event, failure: LlmCallFailed) -> Posting:
    """A call that failed at no cost."""
    return Posting(
        event_id=event.id,
        session_id=event.session_id,
        at=event.at,
        day=day_of(event.at),
        provider=failure.provider,
        model=failure.model,
        type=type_of(failure),
        outcome=failure.error_class,
        latency_ms=failure.latency_ms,
        retries=failure.retry_count,
        simulated=state.simulated,
    )


def at_fault(component: str | None) -> str:
    """The component that caused a miss, as a table key; empty if there is none."""
    return (component or "")[:NAME_CHARACTERS_MAX]
