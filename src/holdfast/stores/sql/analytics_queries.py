"""SQL of the roll-up tables and of the analytics queries, shared by all engines."""

from collections.abc import Sequence
from functools import cache

from holdfast.ledger.analytics.queries import HOUR_SECONDS, GroupBy, GroupFilter, SessionOrder
from holdfast.ledger.postings import (
    ACCOUNT_DAYS,
    DAYS,
    OUTCOME_DAYS,
    POSTED_EVENT_TYPES,
    ROLLUPS,
    SESSION_DAYS,
    VERDICT_DAYS,
    RollUp,
    Sums,
)
from holdfast.stores.sql.events import EVENT_COLUMNS, SESSION_COLUMNS, Cell

POSTING_TABLES = ("calls", "charges", "failures")

SESSION_ORDER_SQL: dict[SessionOrder, str] = {
    "lost": "lost DESC, spent DESC, id",
    "spent": "spent DESC, lost DESC, id",
    "newest": "last_event_at DESC, id DESC",
}

_SUMS = Sums.__struct_fields__

# How a row of a table contributes to each sum of a roll-up, as SQL expressions.
_CALL_SUMS = {"entries": "1", "calls": "1", "hits": "CASE WHEN cache_read > 0 THEN 1 ELSE 0 END"}
_CHARGE_SUMS = {"entries": "1", "spent": "spent"}

_VERDICT_SUMS = {
    "calls": "1",
    "losses": "CASE WHEN lost > 0 THEN 1 ELSE 0 END",
    "tokens": "CASE WHEN lost > 0 THEN lost_tokens ELSE 0 END",
    "lost": "lost",
}

_OUTCOME_SUMS = {"calls": "1", "latency_ms": "latency_ms", "retries": "retries"}

ROLLUP_SOURCES: dict[str, tuple[tuple[str, dict[str, str]], ...]] = {
    DAYS.name: (
        ("calls", {name: _CALL_SUMS.get(name, name) for name in _SUMS}),
        ("charges", {name: _CHARGE_SUMS.get(name, "0") for name in _SUMS}),
    ),
    VERDICT_DAYS.name: (("calls", _VERDICT_SUMS),),
    OUTCOME_DAYS.name: (("calls", _OUTCOME_SUMS), ("failures", _OUTCOME_SUMS)),
}

# For each roll-up, the tables it sums over and the expression for each sum.
ROLLUP_SOURCES[SESSION_DAYS.name] = ROLLUP_SOURCES[ACCOUNT_DAYS.name] = ROLLUP_SOURCES[DAYS.name]

_CONDITIONS = {
    VERDICT_DAYS.name: " AND kind IS NOT NULL",
    ACCOUNT_DAYS.name: " AND (key_id <> '' OR user_id <> '' OR team_id <> '')",
}

# Matches the payload of the first event of a simulated session.
SIMULATED_PATTERN = '%"simulated":true%'

# The expression for each grouping; filters compare the same columns.
_GROUP_KEYS: dict[str, str] = {
    "model": "part.model",
    "provider": "part.provider",
    "session": "session_id",
    "day": "day",
    "gateway_key": "key_id",
    "user": "user_id",
    "team": "team_id",
    "parent_session": "coalesce(parent_session_id, session_id)",
    "is_worker": "CASE WHEN parent_session_id IS NULL THEN 0 ELSE 1 END",
    "none": "0",
}
_ROW_COLUMNS = "session_id, at, day, provider, model, key_id, user_id, team_id"
_TOKENS_SENT = "(input + cache_read + cache_write_5m + cache_write_1h + cache_write_other)"
_BUCKETS = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "cache_write_other", "output")


class RollUpSql:
    """The queries of an engine that writes `param` for a parameter and `schema` before a table name."""

    def __init__(self, param: str, *, schema: str = "") -> None:
        self.param, self.schema = param, schema
        events, sessions = f"{schema}events", f"{schema}sessions"
        self.version = f"SELECT version FROM {schema}ledger"
        self.set_version = f"UPDATE {schema}ledger SET version = {param}"
        self.reset_sessions = f"UPDATE {sessions} SET entered_events = -1"
        self.clear_tables = [
            f"DELETE FROM {schema}{name}" for name in (*POSTING_TABLES, *(rollup.name for rollup in ROLLUPS))
        ]
        self.pending_sessions = (
            f"SELECT id FROM {sessions} WHERE entered_events <> event_count AND id >= {param} ORDER BY id LIMIT {param}"
        )
        self.any_pending_session = f"SELECT 1 FROM {sessions} WHERE entered_events <> event_count LIMIT 1"
        self.mark_rolled_up = f"UPDATE {sessions} SET entered_events = event_count WHERE id = {param}"
        event_types = ", ".join(f"'{event_type}'" for event_type in POSTED_EVENT_TYPES)
        # Only messages with an image matter, and their payload contains the word.
        self.ledger_events = (
            f"SELECT seq, {', '.join(EVENT_COLUMNS)} FROM {events} WHERE session_id = {param} AND seq > {param} "
            f"AND type IN ({event_types}) AND (type <> 'message.appended' OR payload LIKE {param}) "
            f"ORDER BY seq LIMIT {param}"
        )
        self.session = f"SELECT {', '.join(SESSION_COLUMNS)} FROM {sessions} WHERE id = {param}"
        self.delete_session_rows = [f"DELETE FROM {schema}{name} WHERE session_id = {param}" for name in POSTING_TABLES]

    @cache  # noqa: B019 - one object per engine
    def session_states(self, count: int) -> str:
        last = f"SELECT e.id FROM {self.schema}events AS e WHERE e.session_id = s.id ORDER BY e.seq DESC LIMIT 1"
        return (
            f"SELECT s.id, s.event_count, s.entered_events, ({last}) FROM {self.schema}sessions AS s "
            f"WHERE s.id IN ({self.params(count)})"
        )

    def params(self, count: int) -> str:
        return ", ".join([self.param] * count)

    def insert(self, table: str, columns: tuple[str, ...]) -> str:
        # An append must not fail because someone edited the tables by hand.
        values = f"VALUES ({self.params(len(columns))}) ON CONFLICT DO NOTHING"
        return f"INSERT INTO {self.schema}{table} ({', '.join(columns)}) {values}"

    def upsert_sums(self, table: RollUp) -> str:
        sums = ", ".join(f"{name} = kept.{name} + excluded.{name}" for name in table.sums)
        return (
            f"INSERT INTO {self.schema}{table.name} AS kept ({', '.join(table.keys + table.sums)}) "
            f"VALUES ({self.params(len(table.keys + table.sums))}) "
            f"ON CONFLICT ({', '.join(table.keys)}) DO UPDATE SET {sums}"
        )

    def select_rows(self, table: str, columns: Sequence[str], *, session: bool) -> str:
        where = f" WHERE session_id = {self.param}" if session else ""
        return f"SELECT {', '.join(columns)} FROM {self.schema}{table}{where}"

    def drop_empty(self, table: RollUp) -> str:
        key = " AND ".join(f"{name} = {self.param}" for name in table.keys)
        return f"DELETE FROM {self.schema}{table.name} WHERE {key} AND {table.sums[0]} = 0"

    def sum_rollups(self, table: RollUp, keys: tuple[str, ...], *, sums: Sequence[str] = (), sessions: int = 0) -> str:
        """Parameters: first day, day after the last, maximum of `simulated`, and the session ids."""
        where = f"day >= {self.param} AND day < {self.param} AND simulated <= {self.param}{self._in_sessions(sessions)}"
        return _sum_query(keys, sums or table.sums, f"{self.schema}{table.name} WHERE {where}")

    def sum_rows(
        self, table: RollUp, keys: tuple[str, ...], *, sums: Sequence[str] = (), sessions: int = 0, spans: int = 1
    ) -> str:
        """The same from the rows of the tables.

        Parameters, once for each table: since and until for each span, maximum of `simulated`, and the session ids.
        """
        where = f"{self.time_condition(spans)} AND simulated <= {self.param}{self._in_sessions(sessions)}"
        selects = []
        for table_name, expressions in ROLLUP_SOURCES[table.name]:
            columns = ", ".join(f"{expression} AS {sum}" for sum, expression in expressions.items())
            conditions = where + _CONDITIONS.get(table.name, "")
            selects.append(
                f"SELECT {', '.join(table.keys)}, {columns} FROM {self.schema}{table_name} WHERE {conditions}"
            )
        return _sum_query(keys, sums or table.sums, f"({' UNION ALL '.join(selects)}) AS part")

    def time_condition(self, count: int) -> str:
        """Parameters: since and until, `count` times."""
        return f"({' OR '.join([f'at >= {self.param} AND at < {self.param}'] * count)})"

    def _in_sessions(self, sessions: int) -> str:
        return f" AND session_id IN ({self.params(sessions)})" if sessions else ""

    def session_page(self, order: SessionOrder, *, spans: int) -> str:
        """Which sessions are on a page.

        Parameters: those of `sum_rollups`, those of `sum_rows` if some days count partly, limit and offset.
        """
        sums = ("calls", "spent", "lost")
        totals = self.sum_rollups(SESSION_DAYS, ("session_id",), sums=sums)
        if spans:
            partial_days = self.sum_rows(SESSION_DAYS, ("session_id",), sums=sums, spans=spans)
            combined = f"({totals} UNION ALL {partial_days}) AS parts"
            totals = _sum_query(("session_id",), sums, combined)
        return (
            f"SELECT {', '.join(SESSION_COLUMNS)} FROM ({totals}) AS added JOIN {self.schema}sessions "
            f"ON id = session_id WHERE calls > 0 OR spent <> 0 "
            f"ORDER BY {SESSION_ORDER_SQL[order]} LIMIT {self.param} OFFSET {self.param}"
        )

    def worst_verdicts(self, sessions: int) -> str:
        """Parameters: since, until, maximum of `simulated`, the session ids."""
        ranked = "row_number() OVER (PARTITION BY session_id ORDER BY lost DESC, number) AS place"
        where = (
            f"lost > 0 AND at >= {self.param} AND at < {self.param} AND simulated <= {self.param} "
            f"AND session_id IN ({self.params(sessions)})"
        )
        return (
            f"SELECT session_id, kind FROM (SELECT session_id, kind, {ranked} FROM {self.schema}calls WHERE {where}) "
            f"AS ranked WHERE place = 1"
        )


def _sum_query(keys: tuple[str, ...], sums: Sequence[str], source: str) -> str:
    columns = [f"CAST(coalesce(sum({name}), 0) AS bigint) AS {name}" for name in sums]
    group_by = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join([*keys, *columns])} FROM {source}{group_by}"


class AnalyticsSql:
    def __init__(self, tables: RollUpSql) -> None:
        self._tables = tables
        param, schema = tables.param, tables.schema
        self._param, self._schema = param, schema
        events = f"{schema}events"
        started = f"SELECT 1 FROM {events} AS e WHERE e.session_id = s.id AND e.type = 'session.started'"
        self._not_simulated = f"NOT EXISTS ({started} AND e.payload LIKE {param})"
        in_scope = f"{tables.time_condition(1)} AND simulated <= {param}"
        self.latencies = (
            f"SELECT model, latency_ms, count(*) FROM {schema}calls WHERE {in_scope} GROUP BY model, latency_ms"
        )
        self.turn_start = f"SELECT seq, session_id FROM {events} WHERE id = {param} AND type = 'turn.started'"
        self.events_from = (
            f"SELECT seq, {', '.join(EVENT_COLUMNS)} FROM {events} "
            f"WHERE session_id = {param} AND seq >= {param} ORDER BY seq LIMIT {param}"
        )

    def groups(self, group_by: GroupBy, filter_: GroupFilter, *, spans: int) -> str:
        """From the rows.

        Parameters, for each table: the spans and the maximum of `simulated`; then those of the filter.
        """
        sums = Sums.__struct_fields__
        selects = []
        for table, expressions in ROLLUP_SOURCES[DAYS.name]:
            columns = ", ".join(f"{expressions[sum]} AS {sum}" for sum in sums)
            where = f"{self._tables.time_condition(spans)} AND simulated <= {self._param}"
            selects.append(f"SELECT {_ROW_COLUMNS}, {columns} FROM {self._schema}{table} WHERE {where}")
        return self._group(group_by, filter_, f"({' UNION ALL '.join(selects)}) AS part")

    def session_groups(self, group_by: GroupBy, filter_: GroupFilter) -> str:
        """From the session roll-up.

        Parameters: first day, day after the last, maximum of `simulated`, and those of the filter.
        """
        days = f"day >= {self._param} AND day < {self._param} AND simulated <= {self._param}"
        source = f"(SELECT * FROM {self._schema}session_days WHERE {days}) AS part"
        return self._group(group_by, filter_, source)

    def _group(self, group_by: GroupBy, filter_: GroupFilter, source: str) -> str:
        sums = ", ".join(f"CAST(coalesce(sum({name}), 0) AS bigint)" for name in Sums.__struct_fields__)
        # CAST to bigint truncates in SQLite but rounds in PostgreSQL, so PostgreSQL needs trunc() first.
        seconds = "at" if self._param == "?" else "trunc(at)"
        key = f"CAST({seconds} AS bigint) / {HOUR_SECONDS}" if group_by == "hour" else _GROUP_KEYS[group_by]
        conditions = [f"{_GROUP_KEYS[name]} = {self._param}" for name in sorted(filter_.filtered_fields)]
        if not filter_.workers:
            conditions.append("parent_session_id IS NULL")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return (
            f"SELECT {key}, {sums} FROM {source} LEFT JOIN {self._schema}sessions ON id = session_id{where} GROUP BY 1"
        )

    def usage_by_size(self, limits: Sequence[int]) -> str:
        """Parameters: since, until, maximum of `simulated`."""
        exceeded = " + ".join(f"CASE WHEN {_TOKENS_SENT} > {limit} THEN 1 ELSE 0 END" for limit in limits) or "0"
        sums = ", ".join(f"CAST(sum({name}) AS bigint)" for name in _BUCKETS)
        where = f"{self._tables.time_condition(1)} AND simulated <= {self._param}"
        return (
            f"SELECT model, {exceeded} AS sizes, count(*), {sums} FROM {self._schema}calls WHERE {where} GROUP BY 1, 2"
        )

    def cache_breaks(self, *, kind: bool, component: bool) -> str:
        """Parameters: since, until, maximum of `simulated`, kind, component, limit and offset."""
        where = f"kind <> 'held' AND {self._tables.time_condition(1)} AND simulated <= {self._param}"
        where += f" AND kind = {self._param}" * kind + f" AND component = {self._param}" * component
        order = "lost DESC, session_id, number, event_id"
        # Choose the page first and join the wide rows afterwards, so that they are not sorted.
        page = (
            f"SELECT session_id, event_id FROM {self._schema}calls WHERE {where} "
            f"ORDER BY {order} LIMIT {self._param} OFFSET {self._param}"
        )
        return (
            f"SELECT session_id, name, number, at, c.model, verdict FROM ({page}) AS page "
            f"JOIN {self._schema}calls AS c USING (session_id, event_id) "
            f"LEFT JOIN {self._schema}sessions ON id = session_id ORDER BY {order}"
        )

    def skill_loads(self, *, simulated: bool) -> str:
        """Parameters: since, until, and the pattern of simulated sessions unless they are included."""
        columns = ", ".join(f"k.{name}" for name in EVENT_COLUMNS)
        exclusion = "" if simulated else f" AND {self._not_simulated}"
        return (
            f"SELECT {columns} FROM {self._schema}events AS k JOIN {self._schema}sessions AS s ON s.id = k.session_id "
            f"WHERE k.type = 'skill.loaded' AND k.at >= {self._param} AND k.at < {self._param}{exclusion} "
            "ORDER BY k.seq"
        )

    def session_page(self, order: str, *, simulated: bool) -> str:
        """Parameters: the pattern of simulated sessions unless they are included; limit and offset."""
        columns = ", ".join(f"s.{name}" for name in SESSION_COLUMNS)
        spent = f"SELECT sum(d.spent) FROM {self._schema}session_days AS d WHERE d.session_id = s.id"
        where = "" if simulated else f" WHERE {self._not_simulated}"
        by = "spent DESC, s.id" if order == "cost" else "s.last_event_at DESC, s.id DESC"
        return (
            f"SELECT {columns}, CAST(coalesce(({spent}), 0) AS bigint) AS spent "
            f"FROM {self._schema}sessions AS s{where} ORDER BY {by} LIMIT {self._param} OFFSET {self._param}"
        )

    def last_models(self, sessions: int) -> str:
        ranked = "row_number() OVER (PARTITION BY session_id ORDER BY number DESC, event_id DESC) AS place"
        of_sessions = f"session_id IN ({self._tables.params(sessions)})"
        return (
            f"SELECT session_id, model FROM (SELECT session_id, model, {ranked} FROM {self._schema}calls "
            f"WHERE {of_sessions}) AS ranked WHERE place = 1"
        )

    def turn_counts(self, sessions: int) -> str:
        # The partial index is used only if the types are literals, written as in its definition.
        return (
            f"SELECT session_id, count(*) FROM {self._schema}events WHERE type IN ('turn.completed', 'turn.cancelled') "
            f"AND session_id IN ({self._tables.params(sessions)}) GROUP BY session_id"
        )

    def session_starts(self, sessions: int) -> str:
        return (
            f"SELECT {', '.join(EVENT_COLUMNS)} FROM {self._schema}events WHERE type = 'session.started' "
            f"AND session_id IN ({self._tables.params(sessions)}) ORDER BY seq"
        )


def filter_parameters(filter_: GroupFilter) -> tuple[Cell, ...]:
    """The parameters of a filter."""
    return tuple(getattr(filter_, name) for name in sorted(filter_.filtered_fields))
