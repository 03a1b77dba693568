"""What is exported with its content and imported elsewhere is the same: event by event, and sum by sum."""

from io import BytesIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.call_histories import call_events
from tests.support.strategies import events_with

from holdfast.errors import UserError
from holdfast.events.log import Event
from holdfast.ledger.analytics.queries import LedgerScope
from holdfast.ledger.report import build_report
from holdfast.stores.export import EVENT_TIME_MAX, ImportedSession, export_lines, import_lines, read_export_header
from holdfast.stores.memory import MemoryStore

SLOW = (HealthCheck.too_slow,)

logs = st.lists(call_events() | events_with(), max_size=12)


def kept(events: list[Event]) -> MemoryStore:
    """A log of what can be kept of some events, at times that a clock can say."""
    store = MemoryStore()
    for number, event in enumerate(events):
        if 0 <= event.at < EVENT_TIME_MAX:
            store.append([replace(event, id=f"{number}", parent_event_id=None)]).exception()
    return store


def exported_bytes(store: MemoryStore) -> bytes:
    sessions = [row.id for row in reversed(store.sessions())]
    return b"".join(export_lines(store, sessions, content=True, now=5.0))


def take_in(told: bytes, store: MemoryStore) -> list[ImportedSession]:
    file = BytesIO(told)
    read_export_header(file, "a file")
    return [one for one in import_lines(file, store, "a file") if isinstance(one, ImportedSession)]


@settings(max_examples=40, suppress_health_check=SLOW)
@given(logs)
def test_an_export_is_imported_as_it_was_and_a_second_time_changes_nothing(events: list[Event]) -> None:
    here, there = kept(events), MemoryStore()
    told = exported_bytes(here)
    first = take_in(told, there)
    assert [one.added for one in first] == [row.event_count for row in reversed(here.sessions())]
    for again in range(2):
        assert there.sessions() == here.sessions()
        for row in here.sessions():
            assert list(there.read(row.id)) == list(here.read(row.id))
        assert build_report(there.cost_queries(), LedgerScope()) == build_report(here.cost_queries(), LedgerScope())
        if not again:
            assert sum(one.added for one in take_in(told, there)) == 0


@settings(max_examples=60, suppress_health_check=SLOW)
@given(logs, st.data())
def test_a_file_that_was_cut_brings_whole_sessions_only_and_the_whole_file_brings_the_rest(
    events: list[Event], cuts: st.DataObject
) -> None:
    here, there = kept(events), MemoryStore()
    told = exported_bytes(here)
    cut = told[: cuts.draw(st.integers(0, len(told) - 2))]
    with pytest.raises(UserError) as refusal:
        take_in(cut, there)
    assert "\n" not in str(refusal.value)
    for row in there.sessions():
        assert list(there.read(row.id)) == list(here.read(row.id))
    take_in(told, there)
    assert there.sessions() == here.sessions()


@settings(max_examples=60, suppress_health_check=SLOW)
@given(logs, st.data())
def test_a_file_with_any_bytes_in_it_is_imported_or_refused_in_one_line(
    events: list[Event], cuts: st.DataObject
) -> None:
    told = exported_bytes(kept(events))
    start = cuts.draw(st.integers(0, len(told)))
    end = cuts.draw(st.integers(start, len(told)))
    damaged = told[:start] + cuts.draw(st.binary(max_size=5)) + told[end:]
    assert "\n" not in outcome(damaged)


def outcome(told: bytes) -> str:
    try:
        return str(take_in(told, MemoryStore()))
    except UserError as error:
        return str(error)
