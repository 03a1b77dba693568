"""Every query is written once: what the dialects make of it, and that both engines accept all of them."""

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.instruction_service import open_store_of_kind

from holdfast.ledger.analytics.queries import GroupFilter
from holdfast.ledger.postings import ROLLUPS
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.instructions import tables
from holdfast.stores.sql import analytics_queries as analytics
from holdfast.stores.sql import events, records
from holdfast.stores.sql.dialect import POSTGRES, SQLITE

QUOTED = st.text(st.sampled_from("?%a' .")).map(lambda text: "'" + text.replace("'", "''") + "'")
PIECES = st.lists(st.one_of(QUOTED, st.sampled_from(["?", "%", "a", ", ", "truncated", "holdfasts.x"])))


@given(PIECES)
def test_quoted_text_stays_and_every_parameter_and_percent_sign_outside_is_translated(pieces: list[str]) -> None:
    query = " ".join(pieces)
    expected = " ".join({"?": "%s", "%": "%%"}.get(piece, piece) for piece in pieces)
    assert POSTGRES.translate(query) == expected
    assert SQLITE.translate(query) == query


def test_sqlite_has_no_schema_and_other_names_for_some_functions() -> None:
    query = "SELECT least(a, 1), greatest(b, ?), strpos(c, ?), CAST(trunc(d) AS bigint), 'holdfast.e' FROM holdfast.f"
    assert SQLITE.translate(query) == (
        "SELECT min(a, 1), max(b, ?), instr(c, ?), CAST((d) AS bigint), 'holdfast.e' FROM f"
    )


def constant_queries() -> Iterator[tuple[str, str]]:
    modules: tuple[ModuleType, ...] = (events, records, analytics)
    for module in modules:
        for name, value in vars(module).items():
            if name.startswith("_") or not name.isupper():
                continue
            for query in value if isinstance(value, list) else [value]:
                if isinstance(query, str) and query.strip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE")):
                    yield name, query


def built_queries() -> Iterator[tuple[str, str]]:
    yield "prunable", events.build_prunable_query(2)
    yield "states", analytics.select_session_states(2)
    for rollup in ROLLUPS:
        yield f"upsert {rollup.name}", analytics.upsert_sums(rollup)
        yield f"empty {rollup.name}", analytics.delete_empty_sums(rollup)
        yield f"sum {rollup.name}", analytics.sum_rollups(rollup, rollup.keys)
        yield f"rows {rollup.name}", analytics.sum_rows(rollup, rollup.keys, spans=2)
    for order in ("lost", "spent", "newest"):
        yield f"page {order}", analytics.select_session_page(order, spans=1)
    yield "count", analytics.count_sessions(spans=1)
    yield "key spending", analytics.sum_key_spending()
    yield "worst", analytics.select_worst_verdicts(2)
    yield "hours", analytics.group_rows("hour", GroupFilter(model="m"), spans=1)
    yield "workers", analytics.group_session_days("is_worker", GroupFilter())
    yield "sizes", analytics.sum_usage_by_size((1, 2))
    yield "unpriced", analytics.sum_unpriced(session=True)
    yield "breaks", analytics.select_cache_breaks(kind=True, component=True)
    yield "skills", analytics.select_skill_loads(simulated=False)
    yield "skill uses", analytics.select_skill_uses()
    yield "costs", analytics.select_session_costs("cost", simulated=False)
    yield "models", analytics.select_last_models(2)
    yield "turns", analytics.count_turns(2)
    yield "starts", analytics.select_session_starts(2)
    for name, table in vars(tables).items():
        if isinstance(table, tables.InstructionTable):
            yield f"insert {name}", table.insert
            yield f"select {name}", table.select


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DatabaseEventLog]:
    with open_store_of_kind(request.param, tmp_path) as store:
        yield store


def test_both_engines_can_plan_every_query(store: DatabaseEventLog) -> None:
    queries = [*constant_queries(), *built_queries()]
    assert len(queries) > 65
    for name, query in queries:
        # Of no value it is known whether it is text or a number, so that it fits every column.
        assert store._fetch(f"EXPLAIN {query}", (None,) * query.count("?")), name
