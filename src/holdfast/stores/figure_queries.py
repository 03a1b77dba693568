"""What is asked of the tables and of single kinds of events, in the words that all engines share."""

from collections.abc import Sequence

from holdfast.ledger.groups import HOUR_SECONDS, GroupBy, Narrowed
from holdfast.ledger.postings import Sums
from holdfast.ledger.rollups import DAYS
from holdfast.stores.queries import SESSION_COLUMNS, Cell
from holdfast.stores.rows import COLUMNS
from holdfast.stores.table_queries import ARMS, TableQueries

PLAYED = '%"simulated":true%'
"""What the first event of a simulated session has in it."""

_PARENT = "coalesce(parent_session_id, session_id)"
_WORKER = "CASE WHEN parent_session_id IS NULL THEN 0 ELSE 1 END"
_KEYS: dict[GroupBy, str] = {
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
_COLUMNS = {
    "model": "part.model",
    "provider": "part.provider",
    "session": "session_id",
    "gateway_key": "key_id",
    "user": "user_id",
    "team": "team_id",
}
_WHOSE = "session_id, at, day, provider, model, key_id, user_id, team_id"
_SENT = "(input + cache_read + cache_write_5m + cache_write_1h + cache_write_other)"
_BUCKETS = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "cache_write_other", "output")


class FigureQueries:
    def __init__(self, tables: TableQueries) -> None:
        self._tables = tables
        mark, schema = tables.mark, tables.schema
        self._mark, self._schema = mark, schema
        events = f"{schema}events"
        started = f"SELECT 1 FROM {events} AS e WHERE e.session_id = s.id AND e.type = 'session.started'"
        self._not_played = f"NOT EXISTS ({started} AND e.payload LIKE {mark})"
        within = f"{tables.spans(1)} AND simulated <= {mark}"
        self.latencies = (
            f"SELECT model, latency_ms, count(*) FROM {schema}calls WHERE {within} GROUP BY model, latency_ms"
        )
        self.turn = f"SELECT seq, session_id FROM {events} WHERE id = {mark} AND type = 'turn.started'"
        self.behind = (
            f"SELECT seq, {', '.join(COLUMNS)} FROM {events} "
            f"WHERE session_id = {mark} AND seq >= {mark} ORDER BY seq LIMIT {mark}"
        )

    def groups(self, group_by: GroupBy, narrowed: Narrowed, *, spans: int) -> str:
        """From rows. Parameters, for each table: the spans, the greatest `simulated`; then those of `narrowed`."""
        sums = Sums.__struct_fields__
        arms = []
        for name, spellings in ARMS[DAYS.name]:
            spelled = ", ".join(f"{spellings[sum]} AS {sum}" for sum in sums)
            where = f"{self._tables.spans(spans)} AND simulated <= {self._mark}"
            arms.append(f"SELECT {_WHOSE}, {spelled} FROM {self._schema}{name} WHERE {where}")
        return self._grouped(group_by, narrowed, f"({' UNION ALL '.join(arms)}) AS part")

    def session_groups(self, group_by: GroupBy, narrowed: Narrowed) -> str:
        """From the sums of sessions. Parameters: first day, day behind, greatest `simulated`; those of `narrowed`."""
        days = f"day >= {self._mark} AND day < {self._mark} AND simulated <= {self._mark}"
        source = f"(SELECT * FROM {self._schema}session_days WHERE {days}) AS part"
        return self._grouped(group_by, narrowed, source)

    def _grouped(self, group_by: GroupBy, narrowed: Narrowed, source: str) -> str:
        added = ", ".join(f"CAST(coalesce(sum({name}), 0) AS bigint)" for name in Sums.__struct_fields__)
        # A whole number of hours in every engine: one rounds where it is told to cut.
        seconds = "at" if self._mark == "?" else "trunc(at)"
        key = f"CAST({seconds} AS bigint) / {HOUR_SECONDS}" if group_by == "hour" else _KEYS[group_by]
        wanted = [f"{_COLUMNS[name]} = {self._mark}" for name in sorted(narrowed.by)]
        if not narrowed.workers:
            wanted.append("parent_session_id IS NULL")
        where = f" WHERE {' AND '.join(wanted)}" if wanted else ""
        return (
            f"SELECT {key}, {added} FROM {source} LEFT JOIN {self._schema}sessions ON id = session_id{where} GROUP BY 1"
        )

    def sized(self, limits: Sequence[int]) -> str:
        """Parameters: since when, until when, the greatest `simulated`."""
        over = " + ".join(f"CASE WHEN {_SENT} > {limit} THEN 1 ELSE 0 END" for limit in limits) or "0"
        added = ", ".join(f"CAST(sum({name}) AS bigint)" for name in _BUCKETS)
        where = f"{self._tables.spans(1)} AND simulated <= {self._mark}"
        return f"SELECT model, {over} AS sizes, count(*), {added} FROM {self._schema}calls WHERE {where} GROUP BY 1, 2"

    def broken(self, *, kind: bool, component: bool) -> str:
        """Parameters: since when, until when, the greatest `simulated`, kind, component, limit and offset."""
        where = f"kind <> 'held' AND {self._tables.spans(1)} AND simulated <= {self._mark}"
        where += f" AND kind = {self._mark}" * kind + f" AND component = {self._mark}" * component
        order = "lost DESC, session_id, number, event_id"
        # The page is chosen first: rows are wide.
        page = (
            f"SELECT session_id, event_id FROM {self._schema}calls WHERE {where} "
            f"ORDER BY {order} LIMIT {self._mark} OFFSET {self._mark}"
        )
        return (
            f"SELECT session_id, name, number, at, c.model, verdict FROM ({page}) AS page "
            f"JOIN {self._schema}calls AS c USING (session_id, event_id) "
            f"LEFT JOIN {self._schema}sessions ON id = session_id ORDER BY {order}"
        )

    def skill_loads(self, *, simulated: bool) -> str:
        """Parameters: since when, until when, and what simulated sessions have, unless they count."""
        columns = ", ".join(f"k.{name}" for name in COLUMNS)
        played = "" if simulated else f" AND {self._not_played}"
        return (
            f"SELECT {columns} FROM {self._schema}events AS k JOIN {self._schema}sessions AS s ON s.id = k.session_id "
            f"WHERE k.type = 'skill.loaded' AND k.at >= {self._mark} AND k.at < {self._mark}{played} ORDER BY k.seq"
        )

    def session_page(self, order: str, *, simulated: bool) -> str:
        """Parameters: what simulated sessions have, unless they count; limit and offset."""
        columns = ", ".join(f"s.{name}" for name in SESSION_COLUMNS)
        spent = f"SELECT sum(d.spent) FROM {self._schema}session_days AS d WHERE d.session_id = s.id"
        where = "" if simulated else f" WHERE {self._not_played}"
        by = "spent DESC, s.id" if order == "cost" else "s.last_event_at DESC, s.id DESC"
        return (
            f"SELECT {columns}, CAST(coalesce(({spent}), 0) AS bigint) AS spent "
            f"FROM {self._schema}sessions AS s{where} ORDER BY {by} LIMIT {self._mark} OFFSET {self._mark}"
        )

    def last_models(self, sessions: int) -> str:
        ranked = "row_number() OVER (PARTITION BY session_id ORDER BY number DESC, event_id DESC) AS place"
        of = f"session_id IN ({self._tables.marks(sessions)})"
        return (
            f"SELECT session_id, model FROM (SELECT session_id, model, {ranked} FROM {self._schema}calls WHERE {of}) "
            f"AS ranked WHERE place = 1"
        )

    def turns(self, sessions: int) -> str:
        # The types are spelled as in the index: only then it is used.
        return (
            f"SELECT session_id, count(*) FROM {self._schema}events WHERE type IN ('turn.completed', 'turn.cancelled') "
            f"AND session_id IN ({self._tables.marks(sessions)}) GROUP BY session_id"
        )

    def started(self, sessions: int) -> str:
        return (
            f"SELECT {', '.join(COLUMNS)} FROM {self._schema}events WHERE type = 'session.started' "
            f"AND session_id IN ({self._tables.marks(sessions)}) ORDER BY seq"
        )


def cells_of(narrowed: Narrowed) -> tuple[Cell, ...]:
    """The parameters of what is narrowed down."""
    return tuple(getattr(narrowed, name) for name in sorted(narrowed.by))
