"""What a page or the live feed costs does not grow with what is stored, counted in statements, rows and operations."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from benchmarks._calls import START, short_session
from tests.support.event_examples import (
    EVENTS_A_CALL,
    call_events,
    message_event,
    message_events,
    session_started_event,
)
from tests.support.instruction_service import open_store_of_kind
from tests.support.operations import OperationCounter

from holdfast.catalog.lookup import shipped_models
from holdfast.clock import system_clock
from holdfast.events.records import PositionedEvent
from holdfast.service.api.session_list import SessionsRequest, find_page
from holdfast.service.context import AppContext, CacheStateStore
from holdfast.service.live.hub import RING_EVENTS_MAX, EventHub
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.memory import MemoryStore
from holdfast.stores.sql.events import Cell

PAGE = 10
FEW, MANY = 40, 200
REPEATS = 5


class CountingReader:
    """Passes queries on to the store's own reader, and counts them and their rows."""

    def __init__(self, store: DatabaseEventLog) -> None:
        self._reader, store._reads = store._reads, self
        self._statements = self._rows = 0

    def fetch(self, query: str, parameters: Sequence[Cell]) -> list[tuple[object, ...]]:
        rows = self._reader.fetch(query, parameters)
        self._statements, self._rows = self._statements + 1, self._rows + len(rows)
        return rows

    def close(self) -> None:
        self._reader.close()

    def count(self, run: Callable[[], object]) -> tuple[int, int]:
        """The statements and rows of a call."""
        before = self._statements, self._rows
        run()
        return self._statements - before[0], self._rows - before[1]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_page_of_sessions_reads_as_many_rows_among_200_as_among_40(kind: str, tmp_path: Path) -> None:
    requests = (SessionsRequest(limit=PAGE), SessionsRequest(limit=PAGE, sort="lost", model="gpt"))
    counts = []
    with open_store_of_kind(kind, tmp_path) as store:
        context = AppContext(store, store.records, shipped_models())
        reader, filled = CountingReader(store), 0
        for sessions in (FEW, MANY):
            # In another order than they are listed in.
            for number in range(filled, sessions):
                store.append(short_session(number, at=START - 100.0 * number)).result(10)
            filled, first = sessions, find_page(context, requests[0])
            requests_and_next = (*requests, SessionsRequest(limit=PAGE, after=first.next))
            counts.append([reader.count(lambda: find_page(context, request)) for request in requests_and_next])  # noqa: B023
    assert [statements for statements, _ in counts[0]] == [statements for statements, _ in counts[1]]
    # Of each session its row, its sums and the model of its last call, and of some a verdict.
    assert all(PAGE < rows <= 4 * (PAGE + 1) for page_counts in counts for _, rows in page_counts)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_cache_states_read_only_the_newest_call_of_a_long_session(kind: str, tmp_path: Path) -> None:
    with open_store_of_kind(kind, tmp_path) as store:
        states, reader = CacheStateStore(store, shipped_models()), CountingReader(store)

        def count_after_one_more_call(calls: int) -> tuple[int, int]:
            store.append(call_events(EVENTS_A_CALL, "s0", start=EVENTS_A_CALL * calls)).result(10)
            return reader.count(lambda: states.list_newest(limit=PAGE, simulated=True))

        for number in range(PAGE):
            events = [session_started_event(f"s{number}"), *call_events(EVENTS_A_CALL * FEW, f"s{number}")]
            store.append(events).result(10)
        states.list_newest(limit=PAGE, simulated=True)
        short = count_after_one_more_call(FEW)
        store.append(call_events(EVENTS_A_CALL * (MANY - FEW), "s0", start=EVENTS_A_CALL * (FEW + 1))).result(10)
        states.list_newest(limit=PAGE, simulated=True)
        assert count_after_one_more_call(MANY + 1) == short


async def test_a_listener_looks_only_at_the_events_that_are_new_to_it() -> None:
    counts: list[int] = []
    with OperationCounter().open() as counter, MemoryStore() as store:
        hub = EventHub(store.records, system_clock, poll_seconds=0.01)
        feed = hub.listen(0)
        for events in (10, RING_EVENTS_MAX - 50):
            known = hub.position or 0
            store.append(message_events(events - known, start=known)).result()
            for _ in range(events - known):
                await anext(feed)
            repeats = list[int]()
            for number in range(events, events + REPEATS):
                store.append([message_event(number)]).result()
                with counter.counting() as operations:
                    assert isinstance(await anext(feed), PositionedEvent)
                # How often the store was looked at meanwhile depends on the time.
                repeats.append(sum(count for name, count in operations.items() if "EventHub._page" in name))
            counts.append(min(repeats))
        await feed.aclose()
        await hub.close()
    assert 0 < counts[1] < 2 * counts[0], counts
