"""What is written to and asked of the tables beside the log, in the words that all engines share."""

from collections.abc import Sequence
from functools import cache

from holdfast.ledger.postings import POSTED_TYPES, Sums
from holdfast.ledger.rollups import ACCOUNT_DAYS, DAYS, OUTCOME_DAYS, ROLLUPS, SESSION_DAYS, VERDICT_DAYS, RollUp
from holdfast.ledger.tables import SessionOrder
from holdfast.stores.queries import SESSION_COLUMNS
from holdfast.stores.rows import COLUMNS
from holdfast.stores.table_rows import TABLES, CallRow

ORDERS: dict[SessionOrder, str] = {
    "lost": "lost DESC, spent DESC, id",
    "spent": "spent DESC, lost DESC, id",
    "newest": "last_event_at DESC, id DESC",
}

_SUMS = Sums.__struct_fields__
_WHOSE = ("session_id", "at", "day", "provider", "model", "simulated")

# What a row of a table is to a roll-up: the roll-up's sums, in its words.
_CALL = {"entries": "1", "calls": "1", "hits": "CASE WHEN cache_read > 0 THEN 1 ELSE 0 END"}
_CHARGE = {"entries": "1", "spent": "spent"}
_GIVEN = {
    "calls": "1",
    "losses": "CASE WHEN lost > 0 THEN 1 ELSE 0 END",
    "tokens": "CASE WHEN lost > 0 THEN lost_tokens ELSE 0 END",
    "lost": "lost",
}
_ENDED = {"calls": "1", "latency_ms": "latency_ms", "retries": "retries"}

ARMS: dict[str, tuple[tuple[str, dict[str, str]], ...]] = {
    DAYS.name: (
        ("calls", {name: _CALL.get(name, name) for name in _SUMS}),
        ("charges", {name: _CHARGE.get(name, "0") for name in _SUMS}),
    ),
    VERDICT_DAYS.name: (("calls", _GIVEN),),
    OUTCOME_DAYS.name: (("calls", _ENDED), ("failures", _ENDED)),
}
ARMS[SESSION_DAYS.name] = ARMS[ACCOUNT_DAYS.name] = ARMS[DAYS.name]
"""For each roll-up, the tables it is the sum of."""

_ONLY = {
    VERDICT_DAYS.name: " AND kind IS NOT NULL",
    ACCOUNT_DAYS.name: " AND (key_id <> '' OR user_id <> '' OR team_id <> '')",
}


class TableQueries:
    """The queries of an engine that writes `mark` for a parameter, and `schema` in front of a table."""

    def __init__(self, mark: str, *, schema: str = "") -> None:
        self.mark, self.schema = mark, schema
        events, sessions = f"{schema}events", f"{schema}sessions"
        self.version = f"SELECT version FROM {schema}ledger"
        self.set_version = f"UPDATE {schema}ledger SET version = {mark}"
        self.unenter = f"UPDATE {sessions} SET entered_events = -1"
        self.empty = [f"DELETE FROM {schema}{name}" for name in (*TABLES.values(), *(one.name for one in ROLLUPS))]
        self.to_enter = (
            f"SELECT id FROM {sessions} WHERE entered_events <> event_count AND id >= {mark} ORDER BY id LIMIT {mark}"
        )
        self.is_to_enter = f"SELECT 1 FROM {sessions} WHERE entered_events <> event_count LIMIT 1"
        self.mark_entered = f"UPDATE {sessions} SET entered_events = event_count WHERE id = {mark}"
        kinds = ", ".join(f"'{kind}'" for kind in POSTED_TYPES)
        # Of messages only those with an image matter, and they say so somewhere.
        self.to_post = (
            f"SELECT seq, {', '.join(COLUMNS)} FROM {events} WHERE session_id = {mark} AND seq > {mark} "
            f"AND type IN ({kinds}) AND (type <> 'message.appended' OR payload LIKE {mark}) ORDER BY seq LIMIT {mark}"
        )
        self.session = f"SELECT {', '.join(SESSION_COLUMNS)} FROM {sessions} WHERE id = {mark}"
        self.forget = [f"DELETE FROM {schema}{name} WHERE session_id = {mark}" for name in TABLES.values()]
        self.calls = (
            f"SELECT {', '.join(CallRow.__struct_fields__)} FROM {schema}calls "
            f"WHERE session_id = {mark} AND number > {mark} ORDER BY number, event_id LIMIT {mark}"
        )

    @cache  # noqa: B019 - one object an engine
    def states(self, count: int) -> str:
        last = f"SELECT e.id FROM {self.schema}events AS e WHERE e.session_id = s.id ORDER BY e.seq DESC LIMIT 1"
        return (
            f"SELECT s.id, s.event_count, s.entered_events, ({last}) FROM {self.schema}sessions AS s "
            f"WHERE s.id IN ({self.marks(count)})"
        )

    def marks(self, count: int) -> str:
        return ", ".join([self.mark] * count)

    def insert(self, table: str, columns: tuple[str, ...]) -> str:
        # Whatever was done to the tables by hand, an append does not fail for it.
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
        """Parameters: the first day, the one behind the last, the greatest `simulated`, and so many sessions."""
        where = f"day >= {self.mark} AND day < {self.mark} AND simulated <= {self.mark}{self._of(sessions)}"
        return _added(keys, sums or table.sums, f"{self.schema}{table.name} WHERE {where}")

    def within(
        self, table: RollUp, keys: tuple[str, ...], *, sums: Sequence[str] = (), sessions: int = 0, spans: int = 1
    ) -> str:
        """The same from the rows of the tables.

        Parameters, once for each table: since when and until when for each of so many spans, the greatest `simulated`,
        and so many sessions.
        """
        where = f"{self.spans(spans)} AND simulated <= {self.mark}{self._of(sessions)}"
        arms = []
        for name, spellings in ARMS[table.name]:
            spelled = ", ".join(f"{spelling} AS {sum}" for sum, spelling in spellings.items())
            given = where + _ONLY.get(table.name, "")
            arms.append(f"SELECT {', '.join(table.keys)}, {spelled} FROM {self.schema}{name} WHERE {given}")
        return _added(keys, sums or table.sums, f"({' UNION ALL '.join(arms)}) AS part")

    def spans(self, count: int) -> str:
        """Parameters: since when and until when, so often."""
        return f"({' OR '.join([f'at >= {self.mark} AND at < {self.mark}'] * count)})"

    def _of(self, sessions: int) -> str:
        return f" AND session_id IN ({self.marks(sessions)})" if sessions else ""

    def session_page(self, order: SessionOrder, *, spans: int) -> str:
        """Which sessions stand on a page.

        Parameters: those of `rolled_up`, those of `within` if some days count partly, limit and offset.
        """
        by = ("calls", "spent", "lost")
        added = self.rolled_up(SESSION_DAYS, ("session_id",), sums=by)
        if spans:
            partly = self.within(SESSION_DAYS, ("session_id",), sums=by, spans=spans)
            both = f"({added} UNION ALL {partly}) AS parts"
            added = _added(("session_id",), by, both)
        return (
            f"SELECT {', '.join(SESSION_COLUMNS)} FROM ({added}) AS added JOIN {self.schema}sessions "
            f"ON id = session_id WHERE calls > 0 OR spent <> 0 "
            f"ORDER BY {ORDERS[order]} LIMIT {self.mark} OFFSET {self.mark}"
        )

    def worst(self, sessions: int) -> str:
        """Parameters: since when, until when, the greatest `simulated`, the sessions."""
        ranked = "row_number() OVER (PARTITION BY session_id ORDER BY lost DESC, number) AS place"
        where = (
            f"lost > 0 AND at >= {self.mark} AND at < {self.mark} AND simulated <= {self.mark} "
            f"AND session_id IN ({self.marks(sessions)})"
        )
        return (
            f"SELECT session_id, kind FROM (SELECT session_id, kind, {ranked} FROM {self.schema}calls WHERE {where}) "
            f"AS ranked WHERE place = 1"
        )


def _added(keys: tuple[str, ...], sums: Sequence[str], source: str) -> str:
    added = [f"CAST(coalesce(sum({name}), 0) AS bigint) AS {name}" for name in sums]
    grouped = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join([*keys, *added])} FROM {source}{grouped}"
