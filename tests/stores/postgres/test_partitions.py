"""Tables partitioned by time: partitions ahead, retention by partition, chains across partitions, rows of writers."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import psycopg
import pytest
from msgspec.structs import replace
from tests.support.event_examples import call_events, message_event, session_started_event
from tests.support.postgres_server import run

from holdfast.catalog.lookup import shipped_models
from holdfast.events.log import Event
from holdfast.events.records import SharedValue, snapshot_key
from holdfast.stores.maintenance import RETAINED_EVENT_TYPES, find_differences
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.upkeep import WRITER_SUMS, keep_up
from holdfast.stores.sql.events import as_int
from holdfast.stores.sql.rollups import TABLE_NAMES

PARTITIONED = {"events", "conversation_keys", *TABLE_NAMES.values()}
# Tables of settings and records: small, and copied to every server of a distributed database.
REFERENCE_TABLES = {"versions", "api_keys", "settings", "leases", "shared_values", "boot_stubs"}
DAY = 86_400.0
NOW = time.time()


@pytest.fixture
def store(postgres: str) -> Iterator[PostgresStore]:
    with PostgresStore(postgres) as store:
        yield store


def shifted(events: list[Event], start: float) -> list[Event]:
    return [replace(event, at=start + number) for number, event in enumerate(events)]


def month_start(months: int) -> float:
    """The start of a month (UTC), counted from this one."""
    today = datetime.fromtimestamp(NOW, UTC)
    year, month = divmod(today.year * 12 + today.month - 1 + months, 12)
    return datetime(year, month + 1, 1, tzinfo=UTC).timestamp()


def split_first_partition(url: str) -> None:
    """As if the store were months old: one partition each for this month and the last two, one for the time before."""
    run(
        url,
        "ALTER TABLE holdfast.events DETACH PARTITION holdfast.events_first",
        "ALTER TABLE holdfast.events ATTACH PARTITION holdfast.events_first "
        f"FOR VALUES FROM (MINVALUE) TO ('{month_start(-2)}')",
        *(
            f"CREATE TABLE holdfast.events_{number} PARTITION OF holdfast.events "
            f"FOR VALUES FROM ('{month_start(-number)}') TO ('{month_start(1 - number)}')"
            for number in range(3)
        ),
    )


def rows_by_partition(url: str) -> dict[str, int]:
    query = "SELECT c.relname, count(*) FROM holdfast.events AS e JOIN pg_class AS c ON c.oid = e.tableoid GROUP BY 1"
    return {str(name): as_int(count) for name, count in run(url, query)}


def test_partitions_exist_for_this_month_and_the_next_two(store: PostgresStore, postgres: str) -> None:
    last = run(postgres, "SELECT parent, max(until) FROM holdfast.partitions GROUP BY 1")
    assert set(last) == {(parent, month_start(3)) for parent in PARTITIONED}


def test_an_event_of_any_time_is_stored_and_moved_when_its_month_gets_a_partition(
    store: PostgresStore, postgres: str
) -> None:
    times = [-1e9, 0.0, NOW, month_start(3) + 5.0, 1e12]
    events = [replace(message_event(number), at=at) for number, at in enumerate(times)]
    store.append(events).result(10)
    assert rows_by_partition(postgres) == {"events_first": 3, "events_other": 2}
    run(postgres, "SELECT holdfast.add_partitions(3)")
    month = datetime.fromtimestamp(month_start(3), UTC).strftime("%Y_%m")
    assert rows_by_partition(postgres)[f"events_{month}"] == 1
    assert list(store.read("s")) == events


def test_a_month_that_came_without_a_partition_gets_one_with_the_next_append(postgres: str) -> None:
    with PostgresStore(postgres) as store:
        store.append([message_event(0)]).result(10)
    tables = [name for (name,) in run(postgres, "SELECT name FROM holdfast.partitions WHERE since IS NOT NULL")]
    run(postgres, f"DROP TABLE {', '.join(f'holdfast.{name}' for name in tables)}")
    with PostgresStore(postgres) as store:
        store.append([message_event(1)]).result(10)
    assert {name for (name,) in run(postgres, "SELECT name FROM holdfast.partitions")} >= set(tables)


def test_a_chain_is_not_forked_by_events_in_another_partition(store: PostgresStore) -> None:
    """An index of a partition does not know the others; the head of the session does."""
    first = replace(message_event(0), at=NOW)
    here = replace(message_event(1), at=NOW, parent_event_id=first.id)
    there = replace(message_event(2), at=month_start(2), parent_event_id=first.id)
    store.append([first]).result(10)
    store.append([here]).result(10)
    assert "was continued elsewhere" in str(store.append([there]).exception(10))
    assert list(store.read("s")) == [first, here]


def test_two_appends_of_one_commit_do_not_fork_a_chain_across_partitions(postgres: str) -> None:
    first = replace(message_event(0), at=NOW)
    steps = [
        replace(message_event(1), at=NOW, parent_event_id=first.id),
        replace(message_event(2), at=month_start(2), parent_event_id=first.id),
    ]
    with PostgresStore(postgres) as store:
        futures = [store.append([event]) for event in (first, *steps)]
        errors = [future.exception(10) for future in futures]
    assert [error is None for error in errors] == [True, True, False]


def test_retention_empties_a_partition_at_once_and_leaves_what_pruning_each_session_leaves(
    store: PostgresStore, postgres: str
) -> None:
    split_first_partition(postgres)
    before = month_start(-1) + 5 * DAY
    old = [
        *shifted([session_started_event("a"), *call_events(40, "a")], month_start(-2) + DAY),
        *shifted(call_events(8, "b"), month_start(-2) + 2 * DAY),
    ]
    # Past the limit as well, but in a month that is not.
    partly = shifted(call_events(8, "c"), month_start(-1) + DAY)
    recent = shifted(call_events(8, "d"), NOW - 10.0)
    store.append([*old, *partly, *recent]).result(20)
    prunable = store.list_prunable(RETAINED_EVENT_TYPES, before=before)
    expected = [event for event in store.read("a") if event.payload.__struct_config__.tag in RETAINED_EVENT_TYPES]

    store.records.put_shared([SharedValue(snapshot_key(id), "x", 0.0) for id in ("a", "d")])
    removed = store.clear_partitions(RETAINED_EVENT_TYPES, before=before)
    assert list(store.records.find_shared([snapshot_key("a"), snapshot_key("d")])) == [snapshot_key("d")]
    assert (removed, sum(count for _, count in prunable)) == (36, 42)
    assert list(store.read("a")) == expected
    assert len(list(store.read("c"))) == 8
    # Also if it is interrupted here.
    assert list(find_differences(store, shipped_models())) == []
    removed += sum(store.prune(session_id, RETAINED_EVENT_TYPES, before=before) for session_id, _ in prunable)
    assert removed == 42
    assert store.list_prunable(RETAINED_EVENT_TYPES, before=before) == ()
    assert list(find_differences(store, shipped_models())) == []
    assert list(store.read("d")) == recent
    assert store.cost_queries().totals().calls == 16


def test_a_month_of_a_session_that_went_on_is_kept(store: PostgresStore, postgres: str) -> None:
    split_first_partition(postgres)
    events = shifted(call_events(8), month_start(-2) + DAY)
    store.append([*events, replace(message_event(99), at=NOW)]).result(10)
    assert store.clear_partitions(RETAINED_EVENT_TYPES, before=month_start(-1)) == 0
    assert len(list(store.read("s"))) == 9


def test_partitions_without_rows_are_dropped_once_they_are_past_the_limit(store: PostgresStore, postgres: str) -> None:
    split_first_partition(postgres)
    store.append(shifted(call_events(8), month_start(-2) + DAY)).result(10)
    before = month_start(-1)
    store.clear_partitions((), before=before)
    assert [store.prune(id, ("",), before=before) for id, _ in store.list_prunable(("",), before=before)] == [0]
    assert store.sessions() == ()
    store.drop_empty_partitions(before=before)
    names = {name for (name,) in run(postgres, "SELECT name FROM holdfast.partitions WHERE parent = 'events'")}
    assert {"events_1", "events_0", "events_other"} <= names
    assert not names & {"events_first", "events_2"}
    again = shifted(call_events(4), month_start(-2) + DAY)
    store.append(again).result(10)
    assert list(store.read("s")) == again


def test_each_writer_adds_to_rows_of_its_own_and_sums_are_exact(postgres: str) -> None:
    with PostgresStore(postgres) as one, PostgresStore(postgres) as two:
        one.append(call_events(40, "a")).result(10)
        two.append(call_events(20, "b")).result(10)
        assert run(postgres, "SELECT count(DISTINCT simulated), max(simulated) FROM holdfast.days") == [(2, -1)]
        # Removed by a writer that did not add it.
        one.delete("b")
        assert one.cost_queries().totals().calls == 10
        assert list(find_differences(two, shipped_models())) == []
        two.delete("a")
        assert two.cost_queries().models() == ()
        assert two.analytics_queries().failures() == {}


def test_writers_of_one_day_do_not_wait_for_each_other(postgres: str) -> None:

    with PostgresStore(postgres, lock_seconds_max=1) as store, psycopg.connect(postgres) as other:
        store.append(call_events(4, "a")).result(10)
        number = run(postgres, "SELECT simulated FROM holdfast.days")[0][0]
        other.execute("SELECT 1 FROM holdfast.days FOR UPDATE")
        other.execute(
            "INSERT INTO holdfast.days SELECT day, provider, model, simulated - 1, entries, calls, hits, input, "
            "cache_read, cache_write_5m, cache_write_1h, cache_write_other, output, spent, uncached, lost, latency_ms, "
            "stable_written FROM holdfast.days"
        )
        run(postgres, "SELECT setval('holdfast.writer_numbers', 7)")
        with PostgresStore(postgres, lock_seconds_max=1) as third:
            third.append(call_events(4, "b")).result(10)
        assert number == -1


def test_rows_of_writers_are_merged_when_their_day_is_over(postgres: str) -> None:
    past, today = shifted(call_events(8, "a"), NOW - 5 * DAY), shifted(call_events(8, "b"), NOW)
    with PostgresStore(postgres) as one, PostgresStore(postgres) as two:
        for number, store in enumerate((one, two)):
            for events in (past, today):
                renamed = [replace(e, id=f"{number}{e.id}", session_id=f"{number}{e.session_id}") for e in events]
                store.append(renamed).result(10)

        with psycopg.connect(postgres, autocommit=True) as connection:
            keep_up(connection)
            keep_up(connection)
        for table in WRITER_SUMS:
            days = run(
                postgres,
                f"SELECT day, max(simulated), min(simulated) FROM holdfast.{table.name} GROUP BY day ORDER BY 1",
            )
            assert [(most, least) for _, most, least in days] in ([(0, 0), (-1, -2)], [])
        assert one.cost_queries().totals().calls == 8
        assert list(find_differences(one, shipped_models())) == []


def test_every_key_of_a_table_that_grows_contains_the_session_or_the_tenant(postgres: str) -> None:
    """So that the tables can be distributed by session, or by key, on a sharded PostgreSQL."""
    with PostgresStore(postgres):
        rows = run(
            postgres,
            "SELECT c.relname, i.relname, array_agg(a.attname) FROM pg_index AS x "
            "JOIN pg_class AS c ON c.oid = x.indrelid JOIN pg_class AS i ON i.oid = x.indexrelid "
            "JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = ANY(x.indkey) "
            "WHERE c.relnamespace = 'holdfast'::regnamespace AND x.indisunique AND c.relkind IN ('r', 'p') "
            "GROUP BY 1, 2",
        )
        tables = {
            name
            for (name,) in run(
                postgres,
                "SELECT relname FROM pg_class WHERE relnamespace = 'holdfast'::regnamespace "
                "AND relkind IN ('r', 'p') AND NOT relispartition",
            )
        }
    sums = {table.name for table in WRITER_SUMS}  # One row for each day and model: as small as settings.
    small = REFERENCE_TABLES | sums | {str(name) for name in tables if str(name).startswith("instruction_")}
    without = {
        f"{table}.{index}"
        for table, index, columns in rows
        if table not in small and not {"session_id", "key_id"} & set(columns)  # type: ignore[call-overload] # names
    }
    # The row of a session is its own key. The other is there for programs of the version before.
    assert without == {"sessions.sessions_pkey", "reservations.reservations_by_id"}
    assert {table for table, _, _ in rows} | {"ledger"} == tables | {
        str(name) for (name,) in run(postgres, "SELECT name FROM holdfast.partitions")
    }
