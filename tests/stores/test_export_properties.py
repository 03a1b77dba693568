"""An export with content that is imported elsewhere is the same: event by event, and sum by sum."""

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
from holdfast.stores.export import EVENT_TIME_MAX, ImportedSession, export_lines, import_lines, read_export_header
from holdfast.stores.memory import MemoryStore

SLOW = (HealthCheck.too_slow,)

logs = st.lists(call_events() | events_with(), max_size=12)


def stored_log(events: list[Event]) -> MemoryStore:
    """A log of those events that can be stored, at times that a clock can return."""
    store = MemoryStore()
    for number, event in enumerate(events):
        if 0 <= event.at < EVENT_TIME_MAX:
            store.append([replace(event, id=f"{number}", parent_event_id=None)]).exception()
    return store


def exported_bytes(store: MemoryStore) -> bytes:
    sessions = [row.id for row in reversed(store.sessions())]
    return b"".join(export_lines(store, sessions, content=True, now=5.0))


def import_bytes(exported: bytes, store: MemoryStore) -> list[ImportedSession]:
    file = BytesIO(exported)
    read_export_header(file, "a file")
    return [item for item in import_lines(file, store, "a file") if isinstance(item, ImportedSession)]


@settings(max_examples=40, suppress_health_check=SLOW)
@given(logs)
def test_an_export_is_imported_unchanged_and_a_second_import_changes_nothing(events: list[Event]) -> None:
    here, there = stored_log(events), MemoryStore()
    exported = exported_bytes(here)
    first = import_bytes(exported, there)
    assert [session.added for session in first] == [row.event_count for row in reversed(here.sessions())]
    for again in range(2):
        assert there.sessions() == here.sessions()
        for row in here.sessions():
            assert list(there.read(row.id)) == list(here.read(row.id))
        sent, received = here.cost_queries(), there.cost_queries()
        for query in ("totals", "days", "causes", "session_amounts", "outcomes"):
            assert getattr(received, query)(LedgerScope()) == getattr(sent, query)(LedgerScope())
        if not again:
            assert sum(session.added for session in import_bytes(exported, there)) == 0


@settings(max_examples=60, suppress_health_check=SLOW)
@given(logs, st.data())
def test_a_truncated_file_imports_complete_sessions_only_and_the_complete_file_adds_the_rest(
    events: list[Event], cuts: st.DataObject
) -> None:
    here, there = stored_log(events), MemoryStore()
    exported = exported_bytes(here)
    truncated = exported[: cuts.draw(st.integers(0, len(exported) - 2))]
    with pytest.raises(UserError) as refusal:
        import_bytes(truncated, there)
    assert "\n" not in str(refusal.value)
    for row in there.sessions():
        assert list(there.read(row.id)) == list(here.read(row.id))
    import_bytes(exported, there)
    assert there.sessions() == here.sessions()


@settings(max_examples=60, suppress_health_check=SLOW)
@given(logs, st.data())
def test_a_file_with_arbitrary_bytes_is_imported_or_refused_in_one_line(
    events: list[Event], cuts: st.DataObject
) -> None:
    exported = exported_bytes(stored_log(events))
    start = cuts.draw(st.integers(0, len(exported)))
    end = cuts.draw(st.integers(start, len(exported)))
    damaged = exported[:start] + cuts.draw(st.binary(max_size=5)) + exported[end:]
    assert "\n" not in outcome(damaged)


def outcome(exported: bytes) -> str:
    try:
        return str(import_bytes(exported, MemoryStore()))
    except UserError as error:
        return str(error)
