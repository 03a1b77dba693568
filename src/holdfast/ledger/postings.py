"""What each event adds to the tables: a call, a charge that is no call, or a call that failed and cost nothing.

Tables and reports are sums of postings, wherever they are added up.
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

LEDGER_VERSION = 3
"""Rises when the same events are judged or booked in another way than before: tables of an older one are made anew."""

POSTED = (*ENTERED, CacheKept)
_UNCALLED: frozenset[type[msgspec.Struct]] = frozenset((LlmCallFailed, CachePinged, CacheKept))
_POSTED: frozenset[type[msgspec.Struct]] = frozenset(POSTED)
POSTED_TYPES = tuple(
    sorted(kind.__struct_config__.tag for kind in POSTED if isinstance(kind.__struct_config__.tag, str))
)


class Sums(msgspec.Struct, frozen=True):
    """What some postings add up to; `hits` are calls that read anything at all, money is in picodollars."""

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
        return Sums(*(one + two for one, two in zip(cells(self), cells(other), strict=True)))

    @property
    def usage(self) -> Usage:
        return Usage(*cells(self)[3:9])


class Posting(msgspec.Struct, frozen=True):
    """`day` is that of `at` in UTC. A call that was paid for has an entry; whatever ended a call has an outcome."""

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
    """Whether an event changes the books or is posted; those that do neither need not be looked at."""
    if isinstance(payload, MessageAppended):
        return any(map(has_image, payload.message.content))
    return type(payload) in _POSTED


def posted(books: Books, event: Event, models: Models) -> tuple[Books, Posting | None]:
    """The books with one more event, and what it adds to the tables, if it does. Whatever the event, nothing fails."""
    books, entry = entered(books, event, models)
    if entry is not None:
        # What a kept reply has answered cost nobody anything, and is no call of a provider's.
        return books, _call(books, event, entry) if entry.source != "completion-cache" else None
    if type(event.payload) not in _UNCALLED:
        return books, None
    event = bounded(event)
    match event.payload:
        case LlmCallFailed() as it:
            return books, _failure(books, event, it)
        case CachePinged(model=model, cost_usd=cost):
            return books, _charge(books, event, model, picodollars(cost))
        case CacheKept(model=model, cost_usd=cost, storage_cost_usd=storage):
            return books, _charge(books, event, model, picodollars(cost) + picodollars(storage))
        case _:
            return books, None


def postings(events: Iterable[Event], models: Models) -> Iterator[Posting]:
    """What a session adds to the tables, from its first event on."""
    books = Books()
    for event in events:
        if isinstance(event.payload, POSTED):
            books, posting = posted(books, event, models)
            if posting is not None:
                yield posting


def _call(books: Books, event: Event, entry: Entry) -> Posting:
    if entry.completion_key or entry.completion_kept:
        # Whether its reply was kept for equal requests is no amount, and not in the tables.
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
        simulated=books.simulated,
        payer=entry.payer,
    )


def _charge(books: Books, event: Event, model: str, spent: int) -> Posting:
    """What is no call: it kept a cache, and without one nobody would have paid it."""
    return Posting(
        event_id=event.id,
        session_id=event.session_id,
        at=event.at,
        day=day_of(event.at),
        provider=model.partition(":")[0],
        model=model,
        type=type_of(event.payload),
        sums=Sums(entries=1, spent=spent),
        simulated=books.simulated,
        payer=books.payer,
    )


def _failure(books: Books, event: Event, it: LlmCallFailed) -> Posting:
    """A call that nothing was paid for."""
    return Posting(
        event_id=event.id,
        session_id=event.session_id,
        at=event.at,
        day=day_of(event.at),
        provider=it.provider,
        model=it.model,
        type=type_of(it),
        outcome=it.error_class,
        latency_ms=it.latency_ms,
        retries=it.retry_count,
        simulated=books.simulated,
    )


def at_fault(component: str | None) -> str:
    """What is at fault as a key; nothing is the empty text."""
    return (component or "")[:NAME_CHARACTERS_MAX]
