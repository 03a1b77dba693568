"""SQL of the roll-up tables, shared by all engines."""

from collections.abc import Sequence
from functools import cache

from holdfast.ledger.postings import POSTED_TYPES, Sums
from holdfast.ledger.rollups import ACCOUNT_DAYS, DAYS, OUTCOME_DAYS, ROLLUPS, SESSION_DAYS, VERDICT_DAYS, RollUp
from holdfast.ledger.tables import SessionOrder
from holdfast.stores.queries import SESSION_COLUMNS
from holdfast.stores.rows import COLUMNS
from holdfast.stores.table_rows import TABLES

ORDERS: dict[SessionOrder, str] = {
    "lost": "lost DESC, spent DESC, id",
    "spent": "spent DESC, lost DESC, id",
    "newest": "last_event_at DESC, id DESC",
}

_SUMS = Sums.__struct_fields__
_ROW_COLUMNS = ("session_id", "at", "day", "provider", "model", "simulated")

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

ARMS: dict[str, tuple[tuple[str, dict[str, str]], ...]] = {
    DAYS.name: (
        ("calls", {name: _CALL_SUMS.get(name, name) for name in _SUMS}),
        ("charges", {name: _CHARGE_SUMS.get(name, "0") for name in _SUMS}),
    ),
    VERDICT_DAYS.name: (("calls", _VERDICT_SUMS),),
    OUTCOME_DAYS.name: (("calls", _OUTCOME_SUMS), ("failures", _OUTCOME_SUMS)),
}
# For each roll-up, the tables it sums over and the expression for each sum.
ARMS[SESSION_DAYS.name] = ARMS[ACCOUNT_DAYS.name] = ARMS[DAYS.name]

_CONDITIONS = {
    VERDICT_DAYS.name: " AND kind IS NOT NULL",
    ACCOUNT_DAYS.name: " AND (key_id <> '' OR user_id <> '' OR team_id <> '')",
}


class TableQueries:
    """The queries of an engine that writes `param` for a parameter and `schema` before a table name."""

    def __init__(self, param: str, *, schema: str = "") -> None:
        self.mark, self.schema = param, schema
        events, sessions = f"{schema}events", f"{schema}sessions"
        self.version = f"SELECT version FROM {schema}ledger"
        self.set_version = f"UPDATE {schema}ledger SET version = {param}"
        self.unenter = f"UPDATE {sessions} SET entered_events = -1"
        self.empty = [
            f"DELETE FROM {schema}{name}" for name in (*TABLES.values(), *(rollup.name for rollup in ROLLUPS))
        ]
        self.to_enter = (
            f"SELECT id FROM {sessions} WHERE entered_events <> event_count AND id >= {param} ORDER BY id LIMIT {param}"
        )
        self.is_to_enter = f"SELECT 1 FROM {sessions} WHERE entered_events <> event_count LIMIT 1"
        self.mark_entered = f"UPDATE {sessions} SET entered_events = event_count WHERE id = {param}"
        event_types = ", ".join(f"'{event_type}'" for event_type in POSTED_TYPES)
        # Only messages with an image matter, and their payload contains the word.
        self.to_post = (
            f"SELECT seq, {', '.join(COLUMNS)} FROM {events} WHERE session_id = {param} AND seq > {param} "
            f"AND type IN ({event_types}) AND (type <> 'message.appended' OR payload LIKE {param}) "
            f"ORDER BY seq LIMIT {param}"
        )
        self.session = f"SELECT {', '.join(SESSION_COLUMNS)} FROM {sessions} WHERE id = {param}"
        self.forget = [f"DELETE FROM {schema}{name} WHERE session_id = {param}" for name in TABLES.values()]

    @cache  # noqa: B019 - one object per engine
    def states(self, count: int) -> str:
        last = f"SELECT e.id FROM {self.schema}events AS e WHERE e.session_id = s.id ORDER BY e.seq DESC LIMIT 1"
        return (
            f"SELECT s.id, s.event_count, s.entered_events, ({last}) FROM {self.schema}sessions AS s "
            f"WHERE s.id IN ({self.marks(count)})"
        )

    def marks(self, count: int) -> str:
        return ", ".join([self.mark] * count)

    def insert(self, table: str, columns: tuple[str, ...]) -> str:
        # An append must not fail because someone edited the tables by hand.
        values = f"VALUES ({self.marks(len(columns))}) ON CONFLICT DO NOTHING"
        return f"INSERT INTO {self.schema}{table} ({', '.join(columns)}) {values}"

    def add(self, table: RollUp) -> str:
        sums = ", ".join(f"{name} = kept.{name} + excluded.{name}" for name in table.sums)
        return (
            f"INSERT INTO {self.schema}{table.name} AS kept ({', '.join(table.keys + table.sums)}) "
            f"VALUES ({self.marks(len(table.keys + table.sums))}) "
            f"ON CONFLICT ({', '.join(table.keys)}) DO UPDATE SET {sums}"
        )

    def rows_of(self, table: str, columns: Sequence[str], *, session: bool) -> str:
        where = f" WHERE session_id = {self.mark}" if session else ""
        return f"SELECT {', '.join(columns)} FROM {self.schema}{table}{where}"

    def drop_empty(self, table: RollUp) -> str:
        key = " AND ".join(f"{name} = {self.mark}" for name in table.keys)
        return f"DELETE FROM {self.schema}{table.name} WHERE {key} AND {table.sums[0]} = 0"

    def rolled_up(self, table: RollUp, keys: tuple[str, ...], *, sums: Sequence[str] = (), sessions: int = 0) -> str:
        """Parameters: first day, day after the last, maximum of `simulated`, and the session ids."""
        where = f"day >= {self.mark} AND day < {self.mark} AND simulated <= {self.mark}{self._in_sessions(sessions)}"
        return _sum_query(keys, sums or table.sums, f"{self.schema}{table.name} WHERE {where}")

    def within(
        self, table: RollUp, keys: tuple[str, ...], *, sums: Sequence[str] = (), sessions: int = 0, spans: int = 1
    ) -> str:
        """The same from the rows of the tables.

        Parameters, once for each table: since and until for each span, maximum of `simulated`, and the session ids.
        """
        where = f"{self.spans(spans)} AND simulated <= {self.mark}{self._in_sessions(sessions)}"
        selects = []
        for table_name, expressions in ARMS[table.name]:
            columns = ", ".join(f"{expression} AS {sum}" for sum, expression in expressions.items())
            conditions = where + _CONDITIONS.get(table.name, "")
            selects.append(
                f"SELECT {', '.join(table.keys)}, {columns} FROM {self.schema}{table_name} WHERE {conditions}"
            )
        return _sum_query(keys, sums or table.sums, f"({' UNION ALL '.join(selects)}) AS part")

    def spans(self, count: int) -> str:
        """Parameters: since and until, `count` times."""
        return f"({' OR '.join([f'at >= {self.mark} AND at < {self.mark}'] * count)})"

    def _in_sessions(self, sessions: int) -> str:
        return f" AND session_id IN ({self.marks(sessions)})" if sessions else ""

    def session_page(self, order: SessionOrder, *, spans: int) -> str:
        """Which sessions are on a page.

        Parameters: those of `sum_rollups`, those of `sum_rows` if some days count partly, limit and offset.
        """
        sums = ("calls", "spent", "lost")
        totals = self.rolled_up(SESSION_DAYS, ("session_id",), sums=sums)
        if spans:
            partial_days = self.within(SESSION_DAYS, ("session_id",), sums=sums, spans=spans)
            combined = f"({totals} UNION ALL {partial_days}) AS parts"
            totals = _sum_query(("session_id",), sums, combined)
        return (
            f"SELECT {', '.join(SESSION_COLUMNS)} FROM ({totals}) AS added JOIN {self.schema}sessions "
            f"ON id = session_id WHERE calls > 0 OR spent <> 0 "
            f"ORDER BY {ORDERS[order]} LIMIT {self.mark} OFFSET {self.mark}"
        )

    def worst(self, sessions: int) -> str:
        """Parameters: since, until, maximum of `simulated`, the session ids."""
        ranked = "row_number() OVER (PARTITION BY session_id ORDER BY lost DESC, number) AS place"
        where = (
            f"lost > 0 AND at >= {self.mark} AND at < {self.mark} AND simulated <= {self.mark} "
            f"AND session_id IN ({self.marks(sessions)})"
        )
        return (
            f"SELECT session_id, kind FROM (SELECT session_id, kind, {ranked} FROM {self.schema}calls WHERE {where}) "
            f"AS ranked WHERE place = 1"
        )


def _sum_query(keys: tuple[str, ...], sums: Sequence[str], source: str) -> str:
    columns = [f"CAST(coalesce(sum({name}), 0) AS bigint) AS {name}" for name in sums]
    group_by = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join([*keys, *columns])} FROM {source}{group_by}"
