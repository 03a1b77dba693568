"""What is written and read for one call does not grow with what is stored, counted in steps of the database."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
from benchmarks._calls import START, short_session
from tests.support.event_examples import EVENTS_A_CALL, call_events, session_started_event
from tests.support.operations import counting_steps

from holdfast.catalog.lookup import shipped_models
from holdfast.events.records import BudgetCharge, SharedValue
from holdfast.ledger.analytics.queries import SessionFilter, SessionOrdering
from holdfast.service.context import CacheStateStore
from holdfast.stores.memory import MemoryStore

FEW, MANY = 30, 300
PAGE = 10
DAY = "2026-11-17"
LIMIT = 10**15


class Filled(NamedTuple):
    """A store with so many sessions, and one of them, `s`, with as many calls."""

    store: MemoryStore
    size: int
    states: CacheStateStore

    @property
    def last_event(self) -> str:
        return call_events(1, start=EVENTS_A_CALL * self.size - 1)[0].id


def fill(size: int) -> Filled:
    store = MemoryStore()
    states = CacheStateStore(store, shipped_models())
    store.append([session_started_event("s", at=START), *call_events(EVENTS_A_CALL * size)]).result()
    records = store.records
    for number in range(size):
        store.append(short_session(number, at=START + 10_000.0 + number)).result()
        charge = BudgetCharge(f"call{number}", "key1", DAY, 5, 1_000.0 + number)
        records.reserve_budget(charge, limit=LIMIT)
        records.settle_budget(charge)
        records.put_shared([SharedValue(f"plan {number}", "text", 1_000.0 + number)])
        records.take_requests(f"key{number}", number, 1, limit=10)
        records.shared.take_lease(f"lease {number}", "another", seconds=1_000.0)
    states.list_newest(limit=PAGE, simulated=True)
    return Filled(store, size, states)


def reserve(filled: Filled) -> object:
    records, charge = filled.store.records, BudgetCharge("new", "key1", DAY, 5, 5_000.0)
    earlier = records.sum_budget_days("key1", "2026-11-01", DAY)
    assert records.reserve_budget(charge, limit=LIMIT - earlier.spent - earlier.reserved)
    return records.settle_budget(charge, output_tokens=7)


def list_states(filled: Filled) -> object:
    return filled.states.list_newest(limit=PAGE, simulated=True)


def find_page(filled: Filled) -> object:
    return filled.store.analytics_queries().find_sessions(SessionFilter(), SessionOrdering(), limit=PAGE)


def read_feed(filled: Filled) -> object:
    records = filled.store.records
    return records.events_after(records.newest_position() - 1, limit=128)


OPERATIONS: dict[str, Callable[[Filled], object]] = {
    "append a call": lambda filled: filled.store.append(
        call_events(EVENTS_A_CALL, start=EVENTS_A_CALL * filled.size)
    ).exception(),
    "append a session": lambda filled: filled.store.append(short_session(filled.size, at=START)).exception(),
    "read what is new": lambda filled: tuple(filled.store.read("s", after=filled.last_event)),
    "find the end of a log": lambda filled: filled.store.read_positions(["s"]),
    "find the head of a session": lambda filled: filled.store.records.shared.find_head("s"),
    "find the session of an event": lambda filled: filled.store.find_sessions([filled.last_event]),
    "read the live feed": read_feed,
    "read what was learned": lambda filled: filled.store.learned_events(limit=PAGE),
    "find the controls of a session": lambda filled: filled.store.records.controls("s"),
    "admit and settle a call of a key with a budget": reserve,
    "admit a request of a key with a rate": lambda filled: filled.store.records.take_requests(
        "key1", 5_000, 1, limit=10
    ),
    "find abandoned reservations": lambda filled: filled.store.records.expire_reservations(10_000.0),
    "find a shared value": lambda filled: filled.store.records.find_shared(["plan 3"]),
    "share a value": lambda filled: filled.store.records.put_shared([SharedValue("plan 3", "other", 5_000.0)]),
    "find a conversation": lambda filled: filled.store.records.shared.find_conversations(["0" * 32]),
    "take a lease": lambda filled: filled.store.records.shared.take_lease("lease x", "me", seconds=1_000.0),
    "a page of sessions": find_page,
    "a page of cache states": list_states,
}


@pytest.fixture(scope="module")
def stores() -> tuple[Filled, Filled]:
    return fill(FEW), fill(MANY)


@pytest.mark.parametrize("name", OPERATIONS)
def test_ten_times_as_much_in_the_store_costs_no_more_steps(name: str, stores: tuple[Filled, Filled]) -> None:
    counts = []
    for filled in stores:
        with counting_steps(filled.store) as steps:
            OPERATIONS[name](filled)
        counts.append(steps.count)
    assert 0 < counts[1] < 1.1 * counts[0] + 5, counts
