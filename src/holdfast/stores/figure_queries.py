"""SQL of the analytics queries, shared by all engines."""

from collections.abc import Sequence

from holdfast.ledger.groups import HOUR_SECONDS, GroupBy, Narrowed
from holdfast.ledger.postings import Sums
from holdfast.ledger.rollups import DAYS
from holdfast.stores.queries import SESSION_COLUMNS, Cell
from holdfast.stores.rows import COLUMNS
from holdfast.stores.table_queries import ARMS, TableQueries

# Matches the payload of the first event of a simulated session.
PLAYED = '%"simulated":true%'

_PARENT = "coalesce(parent_session_id, session_id)"
_WORKER = "CASE WHEN parent_session_id IS NULL THEN 0 ELSE 1 END"
_GROUP_KEYS: dict[GroupBy, str] = {
    "model": "part.model",
    "provider": "part.provider",
    "session": "session_id",
    "day": "day",
    "gateway_key": "key_id",
    "user": "user_id",
    "team": "team_id",
    "parent_session": _PARENT,
    "is_worker": _WORKER,
    "none": "0",
}
_FILTER_COLUMNS = {
    "model": "part.model",
    "provider": "part.provider",
    "session": "session_id",
    "gateway_key": "key_id",
    "user": "user_id",
    "team": "team_id",
}
_ROW_COLUMNS = "session_id, at, day, provider, model, key_id, user_id, team_id"
_TOKENS_SENT = "(input + cache_read + cache_write_5m + cache_write_1h + cache_write_other)"
_BUCKETS = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "cache_write_other", "output")


class FigureQueries:
    def __init__(self, tables: TableQueries) -> None:
        self._tables = tables
        param, schema = tables.mark, tables.schema
        self._param, self._schema = param, schema
        events = f"{schema}events"
        started = f"SELECT 1 FROM {events} AS e WHERE e.session_id = s.id AND e.type = 'session.started'"
        self._not_simulated = f"NOT EXISTS ({started} AND e.payload LIKE {param})"
        in_scope = f"{tables.spans(1)} AND simulated <= {param}"
        self.latencies = (
            f"SELECT model, latency_ms, count(*) FROM {schema}calls WHERE {in_scope} GROUP BY model, latency_ms"
        )
        self.turn = f"SELECT seq, session_id FROM {events} WHERE id = {param} AND type = 'turn.started'"
        self.behind = (
            f"SELECT seq, {', '.join(COLUMNS)} FROM {events} "
            f"WHERE session_id = {param} AND seq >= {param} ORDER BY seq LIMIT {param}"
        )

    def groups(self, group_by: GroupBy, filter_: Narrowed, *, spans: int) -> str:
        """From the rows.

        Parameters, for each table: the spans and the maximum of `simulated`; then those of the filter.
        """
        sums = Sums.__struct_fields__
        selects = []
        for table, expressions in ARMS[DAYS.name]:
            columns = ", ".join(f"{expressions[sum]} AS {sum}" for sum in sums)
            where = f"{self._tables.spans(spans)} AND simulated <= {self._param}"
            selects.append(f"SELECT {_ROW_COLUMNS}, {columns} FROM {self._schema}{table} WHERE {where}")
        return self._group(group_by, filter_, f"({' UNION ALL '.join(selects)}) AS part")

    def session_groups(self, group_by: GroupBy, filter_: Narrowed) -> str:
        """From the session roll-up.

        Parameters: first day, day after the last, maximum of `simulated`, and those of the filter.
        """
        days = f"day >= {self._param} AND day < {self._param} AND simulated <= {self._param}"
        source = f"(SELECT * FROM {self._schema}session_days WHERE {days}) AS part"
        return self._group(group_by, filter_, source)

    def _group(self, group_by: GroupBy, filter_: Narrowed, source: str) -> str:
        sums = ", ".join(f"CAST(coalesce(sum({name}), 0) AS bigint)" for name in Sums.__struct_fields__)
        # CAST to bigint truncates in SQLite but rounds in PostgreSQL, so PostgreSQL needs trunc() first.
        seconds = "at" if self._param == "?" else "trunc(at)"
        key = f"CAST({seconds} AS bigint) / {HOUR_SECONDS}" if group_by == "hour" else _GROUP_KEYS[group_by]
        conditions = [f"{_FILTER_COLUMNS[name]} = {self._param}" for name in sorted(filter_.by)]
        if not filter_.workers:
            conditions.append("parent_session_id IS NULL")
        where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
        return (
            f"SELECT {key}, {sums} FROM {source} LEFT JOIN {self._schema}sessions ON id = session_id{where} GROUP BY 1"
        )

    def sized(self, limits: Sequence[int]) -> str:
        """Parameters: since, until, maximum of `simulated`."""
        exceeded = " + ".join(f"CASE WHEN {_TOKENS_SENT} > {limit} THEN 1 ELSE 0 END" for limit in limits) or "0"
        sums = ", ".join(f"CAST(sum({name}) AS bigint)" for name in _BUCKETS)
        where = f"{self._tables.spans(1)} AND simulated <= {self._param}"
        return (
            f"SELECT model, {exceeded} AS sizes, count(*), {sums} FROM {self._schema}calls WHERE {where} GROUP BY 1, 2"
        )

    def broken(self, *, kind: bool, component: bool) -> str:
        """Parameters: since, until, maximum of `simulated`, kind, component, limit and offset."""
        where = f"kind <> 'held' AND {self._tables.spans(1)} AND simulated <= {self._param}"
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
        columns = ", ".join(f"k.{name}" for name in COLUMNS)
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
        of_sessions = f"session_id IN ({self._tables.marks(sessions)})"
        return (
            f"SELECT session_id, model FROM (SELECT session_id, model, {ranked} FROM {self._schema}calls "
            f"WHERE {of_sessions}) AS ranked WHERE place = 1"
        )

    def turns(self, sessions: int) -> str:
        # The partial index is used only if the types are literals, written as in its definition.
        return (
            f"SELECT session_id, count(*) FROM {self._schema}events WHERE type IN ('turn.completed', 'turn.cancelled') "
            f"AND session_id IN ({self._tables.marks(sessions)}) GROUP BY session_id"
        )

    def started(self, sessions: int) -> str:
        return (
            f"SELECT {', '.join(COLUMNS)} FROM {self._schema}events WHERE type = 'session.started' "
            f"AND session_id IN ({self._tables.marks(sessions)}) ORDER BY seq"
        )


def cells_of(filter_: Narrowed) -> tuple[Cell, ...]:
    """The parameters of a filter."""
    return tuple(getattr(filter_, name) for name in sorted(filter_.by))
