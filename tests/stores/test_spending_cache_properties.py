"""Sums from the cache are those that are computed without it, whatever happens to the logs and the prices."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.call_histories import SESSIONS, START, call_events
from tests.support.event_examples import MODEL

from holdfast.catalog.lookup import Catalog, shipped_models
from holdfast.events.log import Event, LogPosition
from holdfast.ledger.spending import AuditScope, Spending, SpendingFold
from holdfast.replay.audit import PriceLookup
from holdfast.replay.stored_sessions import AuditedSession, audit_logs, audit_stored_session
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.maintenance import RETAINED_EVENT_TYPES
from holdfast.stores.memory import MemoryStore
from holdfast.stores.spending_cache import SpendingCache, sum_spending

ROW = shipped_models()[MODEL]
CATALOGS = (
    shipped_models(),
    Catalog(
        {
            **shipped_models(),
            MODEL: replace(ROW, prices=tuple(replace(price, output=price.input) for price in ROW.prices)),
        }
    ),
    Catalog({**shipped_models(), MODEL: replace(ROW, cache=replace(ROW.cache, tokens_min=50_000))}),
)
"""The prices of today, others, and other rules of the cache."""


class Append(msgspec.Struct, frozen=True):
    events: tuple[Event, ...]


class Delete(msgspec.Struct, frozen=True):
    session: str


class Prune(msgspec.Struct, frozen=True):
    session: str


steps = st.one_of(
    st.lists(call_events(), min_size=1, max_size=12).map(lambda events: Append(tuple(events))),
    st.builds(Delete, st.sampled_from(SESSIONS)),
    st.builds(Prune, st.sampled_from(SESSIONS)),
)
times = st.sampled_from([0.0, START, START + 1, START + 60_000, START + 90_000, START + 300_000])
scopes = st.builds(
    lambda since, seconds, model, ranges: AuditScope(since, since + seconds, model, ranges),
    times,
    st.sampled_from([0.0, 10.0, 90_000.0, 1e300]),
    st.sampled_from(["", "", "gpt", "anthropic", "nobody"]),
    st.booleans(),
)


@given(
    st.lists(st.tuples(steps, st.sampled_from(CATALOGS), scopes), min_size=2, max_size=6), st.sampled_from(["", "a"])
)
def test_cached_sums_are_those_that_are_computed(
    history: list[tuple[Append | Delete | Prune, Catalog, AuditScope]], project: str
) -> None:
    with TemporaryDirectory() as folder, closing(MemoryStore()) as store:
        path = Path(folder) / "sums.db"
        for step, models, scope in history:
            apply_step(store, step)
            for wanted in (scope, AuditScope(), scope):
                ids = [row.id for row in store.sessions()]
                expected = sum_without_cache(store, ids, models, wanted, project)
                assert sum_with_cache(store, ids, models, wanted, project, path) == expected


def apply_step(store: DatabaseEventLog, step: Append | Delete | Prune) -> None:
    match step:
        case Append(events=events):
            counts = {row.id: row.event_count for row in store.sessions()}
            # The ids of a session that was deleted are used again.
            used = {session: {event.id for event in store.read(session)} for session in counts}
            numbered = []
            for event in events:
                taken = used.setdefault(event.session_id, set())
                id = next(id for id in (f"{event.session_id}{number}" for number in range(10_000)) if id not in taken)
                taken.add(id)
                numbered.append(replace(event, id=id, parent_event_id=None))
            store.append(numbered).result(10)
        case Delete(session=session):
            store.delete(session)
        case Prune(session=session):
            store.prune(session, RETAINED_EVENT_TYPES, before=1e300)


def sum_without_cache(
    store: DatabaseEventLog, ids: list[str], models: Catalog, scope: AuditScope, project: str
) -> Spending:
    fold, prices = SpendingFold(), PriceLookup(models)
    for id in ids:
        conversation = audit_stored_session(store.read(id), id, prices, scope, project=project)
        if conversation is not None:
            fold.add(conversation)
    return fold.build()


def sum_with_cache(
    store: DatabaseEventLog, ids: list[str], models: Catalog, scope: AuditScope, project: str, path: Path
) -> Spending:
    def audit(positions: Mapping[str, LogPosition | None]) -> Iterator[AuditedSession]:
        return audit_logs(store, positions, PriceLookup(models), scope)

    return sum_spending(store, ids, scope, audit, cache=SpendingCache(path, models), project=project)
