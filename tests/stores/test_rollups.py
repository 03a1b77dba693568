"""The tables next to the log: filled as events are written, brought up to date, and never in the way of an append."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
from msgspec.json import decode
from msgspec.structs import replace
from tests.support.event_examples import MODEL, call_event, call_events, event, message_event

from holdfast.catalog.lookup import shipped_models
from holdfast.errors import StoreError, UserError
from holdfast.events.log import Event
from holdfast.events.payloads.cache import CachePinged
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.events.records import ledger_key
from holdfast.ledger.analytics.queries import PAGE_MAX, LedgerScope
from holdfast.ledger.analytics.results import CostQueries
from holdfast.ledger.cache.verdicts import Verdict
from holdfast.ledger.postings import iter_postings
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.maintenance import RETAINED_EVENT_TYPES, find_differences
from holdfast.stores.migrate import load_migrations, migrate_sqlite
from holdfast.stores.open import open_store
from holdfast.stores.postgres.server import migrate_postgres as bring_server_forward
from holdfast.stores.sql.rollups import STORED_EVERY_EVENTS, QueryPort, RollUpWriter
from holdfast.types.prompt import Plan
from holdfast.types.usage import Usage

START = 1_800_000_000.0

STORED_OF_A_CALL = ("number", "chain", "price_version", "latency_ms", "plan", "verdict")


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "log.db")
    url: str = request.getfixturevalue("postgres")
    return url


@pytest.fixture
def store(address: str) -> Iterator[DatabaseEventLog]:
    with closing(opened(address)) as store:
        yield store


def opened(address: str) -> DatabaseEventLog:
    store = open_store(address)
    assert isinstance(store, DatabaseEventLog)
    return store


def run_sql(address: str, statement: str) -> None:
    """Runs a statement without the store's knowledge."""
    if "://" in address:
        with psycopg.connect(address) as server:
            server.execute("SET search_path = holdfast")
            server.execute(statement.encode())
    else:
        with closing(sqlite3.connect(address)) as file, file:
            file.execute(statement)


def check(store: DatabaseEventLog) -> None:
    assert list(find_differences(store, shipped_models())) == []


def test_a_call_is_in_every_table_as_soon_as_its_append_is_acknowledged(store: DatabaseEventLog, address: str) -> None:
    store.append(call_events(40)).result(10)
    with closing(opened(address)) as other:
        assert other.read_facts().pending_sessions == 0
        assert other.read_facts().calls == 10
        totals = other.cost_queries().totals()
        assert (totals.calls, totals.hits, totals.spent_usd) == (10, 8, Decimal("0.123"))
        assert totals.usage == Usage(input=100, cache_read=160_000, cache_write_5m=41_000, output=500)
        (model,) = other.cost_queries().models()
        assert (model.provider, model.model, model.amounts) == ("anthropic", MODEL, totals)
        assert [(cause.kind, cause.calls) for cause in other.cost_queries().causes()] == [("provider_side", 9)]
        (outcome,) = other.cost_queries().outcomes()
        assert (outcome.outcome, outcome.calls, outcome.latency_ms_median_under) == ("completed", 10, 1_024)


def test_a_call_is_stored_with_its_plan_digest_price_version_latency_and_verdict(store: DatabaseEventLog) -> None:
    store.append(call_events(40)).result(10)
    entries = [posting.entry for posting in iter_postings(call_events(40), shipped_models()) if posting.entry]
    rows = sorted(store.table_rows("calls", STORED_OF_A_CALL, "s"))
    assert [row[:-2] for row in rows] == [
        (call.record.number, call.prompt_digest, call.pricing_version, call.record.latency_ms) for call in entries
    ]
    assert [decode(str(row[-2]), type=Plan) for row in rows] == [call.plan for call in entries]
    assert [decode(str(row[-1]), type=Verdict) for row in rows] == [call.verdict for call in entries]


def test_a_call_that_fails_without_cost_is_not_a_call_but_an_outcome(store: DatabaseEventLog) -> None:
    failed = LlmCallFailed(MODEL, "anthropic", "rate_limit", "slow down", 2, 100, "r")
    store.append([event("e1", failed, at=START)]).result(10)
    assert store.cost_queries().totals().calls == 0
    (outcome,) = store.cost_queries().outcomes(LedgerScope(since=START - 1))
    assert (outcome.outcome, outcome.calls, outcome.retries) == ("rate_limit", 1, 2)
    assert store.cost_queries().outcomes(LedgerScope(since=START + 1)) == ()
    check(store)


def test_costs_without_a_call_are_counted_too(store: DatabaseEventLog) -> None:
    ping = CachePinged("refresh", MODEL, "5m", Usage(cache_read=20_000), Decimal("0.006"), "v")
    store.append([event("e1", ping, at=START), *call_events(4, start=4)]).result(10)
    (day,) = store.cost_queries().days()
    assert (day.amounts.calls, day.amounts.spent_usd) == (1, Decimal("0.0183"))
    # Without a cache there would have been no ping: 20,110 tokens at 2 dollars and 50 at 10.
    assert day.amounts.uncached_usd == Decimal("0.04072")
    assert day.amounts == store.cost_queries().totals() == store.cost_queries().totals(LedgerScope(session_id="s"))


def test_a_deleted_session_leaves_nothing_in_any_sum(store: DatabaseEventLog, address: str) -> None:
    store.append(call_events(20, "gone")).result(10)
    store.append(call_events(12, "stays")).result(10)
    before = store.cost_queries().totals(LedgerScope(session_id="stays"))
    store.delete("gone")
    assert store.cost_queries().totals() == before
    store.delete("stays")
    for table in ("calls", "days", "session_days", "verdict_days", "outcome_days"):
        assert store.table_rows(table, ("*",)) == []


def test_events_that_another_program_appended_in_between_influence_the_verdict(
    store: DatabaseEventLog, address: str
) -> None:
    with closing(opened(address)) as other:
        for number in range(60):
            (store, other)[number % 3 == 0].append([call_event(number)]).result(10)
    check(store)
    assert sorted(store.table_rows("calls", ("number",), "s"))[9] == (10,)


def test_a_session_deleted_and_restarted_by_another_program_is_judged_from_its_new_start(
    store: DatabaseEventLog, address: str
) -> None:
    store.append(call_events(12)).result(10)
    with closing(opened(address)) as other:
        other.delete("s")
        restarted = [replace(event, id=f"new {event.id}") for event in call_events(12, start=400)]
        other.append(restarted).result(10)
    store.append([replace(event, id=f"new {event.id}") for event in call_events(4, start=412)]).result(10)
    check(store)
    assert len(store.table_rows("calls", ("number",), "s")) == 4


def test_a_long_session_is_continued_with_its_newest_events_only(store: DatabaseEventLog, address: str) -> None:
    length = STORED_EVERY_EVENTS * 2 + 12
    store.append(call_events(STORED_EVERY_EVENTS + 8)).result(10)
    store.append(call_events(length - STORED_EVERY_EVENTS - 8, start=STORED_EVERY_EVENTS + 8)).result(10)
    read: list[int] = []

    class Counting(RollUpWriter):
        def _relevant_events(self, port: QueryPort, session_id: str, seq: int = 0) -> Iterator[Event]:
            events = list(super()._relevant_events(port, session_id, seq))
            read.append(len(events))
            return iter(events)

    with closing(opened(address)) as other:
        parts = vars(other._writer._commit.__self__).items()  # type: ignore[attr-defined]
        (name,) = [name for name, part in parts if isinstance(part, RollUpWriter)]
        setattr(other._writer._commit.__self__, name, Counting(shipped_models()))  # type: ignore[attr-defined]
        other.append(call_events(8, start=length)).result(10)
        assert read == [0]
        check(other)
        other.prune("s", RETAINED_EVENT_TYPES, before=2 * START)
        assert other.records.find_shared([ledger_key("s")]) == {}


def test_state_dropped_from_memory_is_rebuilt_from_the_log(tmp_path: Path) -> None:
    with closing(opened(str(tmp_path / "log.db"))) as store:
        parts = vars(store._writer._commit.__self__).values()  # type: ignore[attr-defined]
        small = next(part for part in parts if isinstance(part, RollUpWriter))
        small._sessions_max = 1
        for number in range(40):
            for session in ("a", "b"):
                store.append([call_event(number, session)]).result(10)
        assert len(small._cached) == 1
        check(store)


def test_a_log_from_before_the_tables_is_recorded_on_the_first_query(address: str) -> None:
    with closing(opened(address)) as store:
        store.append(call_events(40)).result(10)
        expected = store.cost_queries().totals()
    run_sql(address, "DELETE FROM calls")
    run_sql(address, "DELETE FROM days")
    run_sql(address, "DELETE FROM session_days")
    run_sql(address, "DELETE FROM verdict_days")
    run_sql(address, "DELETE FROM outcome_days")
    run_sql(address, "UPDATE sessions SET entered_events = 0")
    with closing(open_store(address, migration_mode="migrate")) as store:
        assert store.read_facts().pending_sessions == 1
        assert store.cost_queries().totals() == expected
        assert store.read_facts().pending_sessions == 0
        check(store)


def test_a_session_that_continues_before_it_was_recorded_is_then_recorded_completely(address: str) -> None:
    with closing(opened(address)) as store:
        store.append(call_events(20)).result(10)
    run_sql(address, "UPDATE sessions SET entered_events = 3")
    with closing(opened(address)) as store:
        store.append([message_event(20)]).result(10)
        assert store.read_facts().pending_sessions == 1
        store.append(call_events(20, start=24)).result(10)
        assert store.read_facts().pending_sessions == 0
        check(store)


def test_events_of_a_program_without_tables_are_recorded_with_the_next_relevant_event(
    store: DatabaseEventLog, address: str
) -> None:
    store.append(call_events(20)).result(10)
    run_sql(address, "UPDATE sessions SET event_count = event_count + 1")
    run_sql(
        address,
        "INSERT INTO events (id, at, session_id, type, actor, sensitivity, version, payload) "
        "VALUES ('old', 1, 's', 'turn.cancelled', 'agent', 'private', 1, "
        """'{"type":"turn.cancelled","reason":"timeout","partial_llm_calls":0,"partial_tool_calls":0}')""",
    )
    assert store.read_facts().pending_sessions == 1
    store.append(call_events(4, start=20)).result(10)
    assert store.read_facts().pending_sessions == 0
    check(store)


def test_tables_of_other_rules_are_rebuilt(address: str) -> None:
    with closing(opened(address)) as store:
        store.append(call_events(20)).result(10)
    run_sql(address, "UPDATE ledger SET version = 0")
    run_sql(address, "UPDATE days SET spent = 5")
    with closing(open_store(address, migration_mode="migrate")) as store:
        assert store.read_facts().pending_sessions == 1
        check(store)
    with closing(open_store(address, migration_mode="migrate")) as store:
        assert store.read_facts().pending_sessions == 0


def test_a_refused_append_removes_nothing_that_its_neighbours_recorded(address: str) -> None:
    with closing(opened(address)) as store:
        store.append(call_events(20)).result(10)
        store.append(call_events(8, "t")).result(10)
    run_sql(address, "UPDATE sessions SET entered_events = -1")
    with closing(opened(address)) as store:
        appends = [
            call_events(4, "u"),
            [call_event(3)],
            call_events(4, start=20),
            [call_event(1, "t"), call_event(11, "t")],
        ]
        answers = [done.exception(timeout=10) for done in [store.append(events) for events in appends]]
        assert [type(answer) for answer in answers] == [type(None), StoreError, type(None), StoreError]
        check(store)
        assert store.cost_queries().totals().calls == 9


def test_a_damaged_event_does_not_keep_its_session_from_continuing(address: str) -> None:
    with closing(opened(address)) as store:
        store.append(call_events(20)).result(10)
    run_sql(address, "UPDATE events SET payload = '{}' WHERE id = 's-000003'")
    with closing(opened(address)) as store:
        store.append(call_events(4, start=20)).result(10)
        store.clear_tables()
        assert store.cost_queries().totals().calls == 5


def test_manually_changed_tables_are_reported_and_a_rebuild_repairs_them(store: DatabaseEventLog, address: str) -> None:
    store.append(call_events(20)).result(10)
    run_sql(address, "UPDATE verdict_days SET lost = lost + 1")
    run_sql(address, "UPDATE calls SET spent = 7 WHERE number = 2")
    assert sorted(find_differences(store, shipped_models())) == ["calls of session 's'", "verdict_days"]
    store.clear_tables()
    check(store)


def test_a_damaged_call_is_reported_in_one_line(store: DatabaseEventLog, address: str) -> None:
    store.append(call_events(40)).result(10)
    run_sql(address, "UPDATE calls SET verdict = '{'")
    with pytest.raises(
        StoreError, match="the roll-up tables are damaged: `holdfast db rebuild` rebuilds them from the log"
    ):
        store.analytics_queries().cache_breaks(limit=10, skip=0)


@pytest.mark.parametrize(
    ("change", "query"),
    [
        ("UPDATE days SET day = '2026-02-30'", lambda costs: costs.days()),
        ("UPDATE verdict_days SET kind = 'unheard-of' || kind", lambda costs: costs.verdicts()),
    ],
)
def test_a_roll_up_with_an_impossible_key_is_reported_in_one_line(
    store: DatabaseEventLog, address: str, change: str, query: Callable[[CostQueries], object]
) -> None:
    store.append(call_events(8)).result(10)
    run_sql(address, change)
    with pytest.raises(StoreError, match="the roll-up tables are damaged: `holdfast db rebuild`"):
        query(store.cost_queries())


@pytest.mark.parametrize("limit", [0, PAGE_MAX + 1])
def test_an_invalid_page_is_refused(store: DatabaseEventLog, limit: int) -> None:
    with pytest.raises(UserError, match="limit must be 1 to 500"):
        store.cost_queries().session_amounts(limit=limit)
    with pytest.raises(UserError, match="limit must be 1 to 500"):
        store.cost_queries().session_amounts(offset=-1)


def test_a_pruned_session_keeps_its_costs(store: DatabaseEventLog) -> None:
    store.append(call_events(20, "old")).result(10)
    store.append([replace(event, at=event.at + 1_000) for event in call_events(20, "new")]).result(10)
    before = store.cost_queries().totals()
    assert store.list_prunable(RETAINED_EVENT_TYPES, before=START + 500) == (("old", 15),)
    assert store.prune("new", RETAINED_EVENT_TYPES, before=START + 500) == 0
    assert store.prune("old", RETAINED_EVENT_TYPES, before=START + 500) == 15
    assert len(list(store.read("old"))) == 5
    after = store.cost_queries().totals()
    assert (after.calls, after.spent_usd, after.uncached_usd) == (before.calls, before.spent_usd, before.uncached_usd)
    assert after.lost_usd == before.lost_usd / 2
    check(store)
    assert store.list_prunable(RETAINED_EVENT_TYPES, before=START + 500) == ()


def test_a_pruned_session_without_a_call_leaves_nothing(store: DatabaseEventLog) -> None:
    store.append([message_event(1)]).result(10)
    assert store.prune("s", RETAINED_EVENT_TYPES, before=START + 500) == 1
    assert store.sessions() == ()


def test_migrating_creates_the_tables_and_leaves_filling_them_to_the_first_query(address: str) -> None:
    if "://" in address:
        with closing(psycopg.connect(address, autocommit=True)) as server:
            bring_server_forward(server, load_migrations("postgres")[:3], "here")
    else:
        with closing(sqlite3.connect(address, isolation_level=None)) as file:
            migrate_sqlite(file, load_migrations("sqlite")[:3])
    run_sql(address, "INSERT INTO sessions VALUES ('s', NULL, 'm', 1, 1, 1, NULL)")
    run_sql(
        address,
        "INSERT INTO events (id, at, session_id, type, actor, sensitivity, version, payload) "
        "VALUES ('e', 1800000000, 's', 'cache.explicit_cache', 'agent', 'private', 1, "
        """'{"type":"cache.explicit_cache","action":"created","name":"c","model":"gemini:m","digest":"d","tokens":5,"""
        """"expires_at":1,"cost_usd":"0.25","storage_cost_usd":"0.5"}')""",
    )
    with closing(open_store(address, migration_mode="migrate")) as store:
        assert store.read_facts().pending_sessions == 1
        assert store.cost_queries().totals().spent_usd == Decimal("0.75")
        check(store)


def test_a_window_around_all_calls_is_answered_by_the_rows_of_sessions(store: DatabaseEventLog, address: str) -> None:
    store.append(call_events(20, "s")).result(10)
    store.append(call_events(20, "other")).result(10)
    first, last = (min(row.started_at for row in store.sessions()), max(row.last_event_at for row in store.sessions()))
    around, later = LedgerScope(first, last + 1), LedgerScope(first + 1, last + 1)
    costs = store.cost_queries()
    assert costs.list_sessions(around) == costs.list_sessions()
    assert costs.count_sessions(around) == 2
    # The sums of their days are read for a part of the time only.
    run_sql(address, "DELETE FROM session_days")
    run_sql(address, "DELETE FROM calls")
    assert (costs.count_sessions(around), costs.count_sessions(later)) == (2, 0)
    assert [row.id for row in costs.list_sessions(around)] == [row.id for row in store.cost_queries().list_sessions()]
    assert costs.list_sessions(LedgerScope(first, last)) == ()
