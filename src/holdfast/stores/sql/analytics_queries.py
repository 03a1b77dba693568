"""SQL of the roll-up tables and of the analytics queries, shared by all engines."""

from collections.abc import Sequence
from functools import cache

from holdfast.ledger.analytics.queries import (
    HOUR_SECONDS,
    GroupBy,
    GroupFilter,
    SessionFilter,
    SessionOrder,
    SessionOrdering,
    SessionSort,
)
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
from holdfast.stores.sql.dialect import repeat_params
from holdfast.stores.sql.events import EVENT_COLUMNS, SESSION_COLUMNS, Cell, chain_head

POSTING_TABLES = ("calls", "charges", "failures")

SESSION_ORDER_SQL: dict[SessionOrder, str] = {
    "lost": "lost DESC, spent DESC, session_id",
    "spent": "spent DESC, lost DESC, session_id",
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

# Part of the payload of the first event of a simulated session.
SIMULATED_MARK = '"simulated":true'

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
_EVENT_LIST = ", ".join(EVENT_COLUMNS)
_EVENT_TYPES = ", ".join(f"'{event_type}'" for event_type in POSTED_EVENT_TYPES)
LEDGER_VERSION_QUERY = "SELECT version FROM holdfast.ledger"
SET_LEDGER_VERSION = "UPDATE holdfast.ledger SET version = ?"
SESSION_SUMS = ("calls_total", "sent_total", "read_total", "spent_total", "lost_total")
"""What the session list is sorted by, in the rows of sessions."""
RESET_SESSIONS = (
    f"UPDATE holdfast.sessions SET entered_events = -1, {', '.join(f'{name} = 0' for name in SESSION_SUMS)}"
)
ADD_SESSION_SUMS = (
    f"UPDATE holdfast.sessions SET {', '.join(f'{name} = {name} + ?' for name in SESSION_SUMS)} WHERE id = ?"
)
CLEAR_TABLES = [f"DELETE FROM holdfast.{name}" for name in (*POSTING_TABLES, *(rollup.name for rollup in ROLLUPS))]
DELETE_SESSION_ROWS = [f"DELETE FROM holdfast.{name} WHERE session_id = ?" for name in POSTING_TABLES]
PENDING_SESSIONS = (
    "SELECT id FROM holdfast.sessions WHERE entered_events <> event_count AND id >= ? ORDER BY id LIMIT ?"
)
# Not with LIMIT: PostgreSQL expects the two to differ in most rows, and would read the table up to the first.
ANY_PENDING_SESSION = "SELECT 1 FROM holdfast.sessions WHERE entered_events <> event_count GROUP BY 1"
MARK_ROLLED_UP = "UPDATE holdfast.sessions SET entered_events = event_count WHERE id = ?"
SESSION_STATE = f"SELECT s.event_count, s.entered_events, {chain_head('s')} FROM holdfast.sessions AS s WHERE s.id = ?"
COUNT_EVENTS_AFTER = "SELECT count(*) FROM holdfast.events WHERE session_id = ? AND seq > ?"
# Only messages with an image matter, and their payload contains the word.
LEDGER_EVENTS = (
    f"SELECT seq, {_EVENT_LIST} FROM holdfast.events WHERE session_id = ? AND seq > ? AND type IN ({_EVENT_TYPES}) "
    "AND (type <> 'message.appended' OR strpos(payload, ?) > 0) ORDER BY seq LIMIT ?"
)
LATENCIES = (
    "SELECT model, latency_ms, count(*) FROM holdfast.calls "
    "WHERE at >= ? AND at < ? AND simulated <= ? GROUP BY model, latency_ms"
)
TURN_START = "SELECT seq, session_id FROM holdfast.events WHERE id = ? AND type = 'turn.started'"
EVENTS_FROM = f"SELECT seq, {_EVENT_LIST} FROM holdfast.events WHERE session_id = ? AND seq >= ? ORDER BY seq LIMIT ?"
_NOT_SIMULATED = (
    "NOT EXISTS (SELECT 1 FROM holdfast.events AS e WHERE e.session_id = s.id AND e.type = 'session.started' "
    "AND strpos(e.payload, ?) > 0)"
)

FAILED_SESSIONS = "SELECT DISTINCT session_id FROM holdfast.failures WHERE day >= ? ORDER BY session_id"
_IS_FORWARDED = (
    # The recorder writes it right after the start, so a long session of another kind is not searched for it.
    "'gateway.forwarded' IN (SELECT e.type FROM holdfast.events AS e WHERE e.session_id = s.id ORDER BY e.seq LIMIT 2)"
)


@cache
def select_session_states(count: int) -> str:
    """The last event is that before the newest append, which the same transaction has made."""
    return (
        "SELECT id, event_count, entered_events, previous_event_id FROM holdfast.sessions "
        f"WHERE id IN ({repeat_params(count)})"
    )


@cache
def insert_rows(table: str, columns: tuple[str, ...]) -> str:
    # An append must not fail because someone edited the tables by hand.
    values = f"VALUES ({repeat_params(len(columns))}) ON CONFLICT DO NOTHING"
    return f"INSERT INTO holdfast.{table} ({', '.join(columns)}) {values}"


@cache
def upsert_sums(table: RollUp) -> str:
    sums = ", ".join(f"{name} = kept.{name} + excluded.{name}" for name in table.sums)
    return (
        f"INSERT INTO holdfast.{table.name} AS kept ({', '.join(table.keys + table.sums)}) "
        f"VALUES ({repeat_params(len(table.keys + table.sums))}) "
        f"ON CONFLICT ({', '.join(table.keys)}) DO UPDATE SET {sums}"
    )


def select_rows(table: str, columns: Sequence[str], *, session: bool) -> str:
    where = " WHERE session_id = ?" if session else ""
    return f"SELECT {', '.join(columns)} FROM holdfast.{table}{where}"


@cache
def delete_empty_sums(table: RollUp) -> str:
    """All sums: in the row of one writer, those of a call that another one added may be left."""
    key = " AND ".join(f"{name} = ?" for name in table.keys)
    return f"DELETE FROM holdfast.{table.name} WHERE {key} AND {_are_zero(table)}"


def _are_zero(table: RollUp) -> str:
    return " AND ".join(f"{name} = 0" for name in table.sums)


def merge_writer_rows(table: RollUp) -> str:
    """Adds the rows of writers to those with 0, for the days before a parameter (PostgreSQL's `%s`)."""
    keys, sums = table.keys[:-1], ", ".join(f"sum({name})::bigint AS {name}" for name in table.sums)
    columns, changes = (
        ", ".join(table.keys + table.sums),
        ", ".join(f"{n} = kept.{n} + excluded.{n}" for n in table.sums),
    )
    return f"""
WITH moved AS (DELETE FROM holdfast.{table.name} WHERE simulated < 0 AND day < %s RETURNING *),
    merged AS (SELECT {", ".join(keys)}, 0 AS simulated, {sums} FROM moved GROUP BY {", ".join(keys)})
INSERT INTO holdfast.{table.name} AS kept ({columns}) SELECT {columns} FROM merged
ON CONFLICT ({", ".join(table.keys)}) DO UPDATE SET {changes}"""


def sum_rollups(table: RollUp, keys: tuple[str, ...], *, sums: Sequence[str] = (), sessions: int = 0) -> str:
    """Parameters: first day, day after the last, maximum of `simulated`, and the session ids."""
    where = f"day >= ? AND day < ? AND simulated <= ?{_in_sessions(sessions)}"
    return _build_sum_query(keys, sums or table.sums, f"holdfast.{table.name} WHERE {where}")


def sum_rows(
    table: RollUp, keys: tuple[str, ...], *, sums: Sequence[str] = (), sessions: int = 0, spans: int = 1
) -> str:
    """The same from the rows of the tables.

    Parameters, once for each table: since and until for each span, maximum of `simulated`, and the session ids.
    """
    where = f"{_time_condition(spans)} AND simulated <= ?{_in_sessions(sessions)}{_CONDITIONS.get(table.name, '')}"
    return _build_sum_query(keys, sums or table.sums, _unite_rows(table, ", ".join(table.keys), where))


def _unite_rows(table: RollUp, columns: str, where: str) -> str:
    """The rows that a roll-up sums over, from all tables."""
    selects = []
    for table_name, expressions in ROLLUP_SOURCES[table.name]:
        sums = ", ".join(f"{expression} AS {sum}" for sum, expression in expressions.items())
        selects.append(f"SELECT {columns}, {sums} FROM holdfast.{table_name} WHERE {where}")
    return f"({' UNION ALL '.join(selects)}) AS part"


def _time_condition(count: int) -> str:
    """Parameters: since and until, `count` times."""
    return f"({' OR '.join(['at >= ? AND at < ?'] * count)})"


def _in_sessions(sessions: int) -> str:
    return f" AND session_id IN ({repeat_params(sessions)})" if sessions else ""


def select_session_page(order: SessionOrder, *, spans: int, calls_only: bool = False) -> str:
    """Which sessions are on a page.

    Parameters: those of `sum_rollups`, those of `sum_rows` if some days count partly, limit and offset.
    """
    page, by = f"({_sum_sessions(spans, calls_only=calls_only)})", SESSION_ORDER_SQL[order]
    limit = f"ORDER BY {by} LIMIT ? OFFSET ?"
    if order != "newest":
        # Choose the page first and join the rows afterwards, so that not every session is looked up.
        page, limit = f"(SELECT * FROM {page} AS added {limit})", f"ORDER BY {by}"
    columns = ", ".join(SESSION_COLUMNS)
    return f"SELECT {columns} FROM {page} AS page JOIN holdfast.sessions ON id = session_id {limit}"


def count_sessions(*, spans: int, calls_only: bool = False) -> str:
    """Parameters: those of `select_session_page`, without limit and offset."""
    return f"SELECT count(*) FROM ({_sum_sessions(spans, calls_only=calls_only)}) AS added"


_TOTAL_ORDER_SQL: dict[SessionOrder, str] = {
    "lost": "s.lost_total DESC, s.spent_total DESC, s.id",
    "spent": "s.spent_total DESC, s.lost_total DESC, s.id",
    "newest": "s.last_event_at DESC, s.id DESC",
}


# Every call is between these times. Both are looked up in an index.
TIME_SPAN = (
    "SELECT (SELECT s.started_at FROM holdfast.sessions AS s ORDER BY s.started_at LIMIT 1), "
    "(SELECT s.last_event_at FROM holdfast.sessions AS s ORDER BY s.last_event_at DESC LIMIT 1)"
)
# Sessions that were continued as simulated ones: their sums contain calls of both kinds.
ANY_MIXED_SESSION = (
    "SELECT 1 FROM holdfast.sessions AS s WHERE s.is_simulated > 0 AND EXISTS "
    "(SELECT 1 FROM holdfast.session_days AS d WHERE d.session_id = s.id AND d.simulated <= 0) LIMIT 1"
)


def select_sessions_of_all_time(order: SessionOrder, *, calls_only: bool) -> str:
    """The same page for all time, by the sums in the rows of sessions. Parameters: `simulated`, limit and offset."""
    columns, where = ", ".join(f"s.{name}" for name in SESSION_COLUMNS), _has_spent(calls_only=calls_only)
    by = _TOTAL_ORDER_SQL[order]
    return f"SELECT {columns} FROM holdfast.sessions AS s WHERE {where} ORDER BY {by} LIMIT ? OFFSET ?"


def count_sessions_of_all_time(*, calls_only: bool) -> str:
    """Parameter: maximum of `simulated`."""
    return f"SELECT count(*) FROM holdfast.sessions AS s WHERE {_has_spent(calls_only=calls_only)}"


def _has_spent(*, calls_only: bool) -> str:
    return f"s.is_simulated <= ? AND (s.calls_total > 0{'' if calls_only else ' OR s.spent_total <> 0'})"


def _sum_sessions(spans: int, *, calls_only: bool) -> str:
    """The sessions that made a call or, unless `calls_only`, spent anything, with their sums."""
    sums = ("calls", "spent", "lost")
    totals = sum_rollups(SESSION_DAYS, ("session_id",), sums=sums)
    if spans:
        partial_days = sum_rows(SESSION_DAYS, ("session_id",), sums=sums, spans=spans)
        totals = _build_sum_query(("session_id",), sums, f"({totals} UNION ALL {partial_days}) AS parts")
    return f"SELECT * FROM ({totals}) AS totals WHERE calls > 0{'' if calls_only else ' OR spent <> 0'}"


def select_worst_verdicts(sessions: int) -> str:
    """Parameters: since, until, maximum of `simulated`, the session ids."""
    where = f"lost > 0 AND at >= ? AND at < ? AND simulated <= ?{_in_sessions(sessions)}"
    return _select_first_call("kind", "lost DESC, number", where)


def select_session_rows(sessions: int) -> str:
    return f"SELECT {', '.join(SESSION_COLUMNS)} FROM holdfast.sessions WHERE id IN ({repeat_params(sessions)})"


def select_last_models(sessions: int) -> str:
    return _select_first_call("model", "number DESC, event_id DESC", f"session_id IN ({repeat_params(sessions)})")


def select_last_verdicts(sessions: int) -> str:
    where = f"verdict IS NOT NULL AND session_id IN ({repeat_params(sessions)})"
    return _select_first_call("verdict", "number DESC, event_id DESC", where)


def _select_first_call(column: str, order: str, where: str) -> str:
    """A column of the call of each session that comes first."""
    ranked = f"row_number() OVER (PARTITION BY session_id ORDER BY {order}) AS place"
    calls = f"SELECT session_id, {column}, {ranked} FROM holdfast.calls WHERE {where}"
    return f"SELECT session_id, {column} FROM ({calls}) AS ranked WHERE place = 1"


def _build_sum_query(keys: tuple[str, ...], sums: Sequence[str], source: str) -> str:
    columns = [f"CAST(coalesce(sum({name}), 0) AS bigint) AS {name}" for name in sums]
    group_by = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join([*keys, *columns])} FROM {source}{group_by}"


def group_rows(group_by: GroupBy, filter_: GroupFilter, *, spans: int) -> str:
    """From the rows.

    Parameters, for each table: the spans and the maximum of `simulated`; then those of the filter.
    """
    where = f"{_time_condition(spans)} AND simulated <= ?"
    return _build_group_query(group_by, filter_, _unite_rows(DAYS, _ROW_COLUMNS, where))


def group_session_days(group_by: GroupBy, filter_: GroupFilter) -> str:
    """From the session roll-up.

    Parameters: first day, day after the last, maximum of `simulated`, and those of the filter.
    """
    days = "day >= ? AND day < ? AND simulated <= ?"
    source = f"(SELECT * FROM holdfast.session_days WHERE {days}) AS part"
    return _build_group_query(group_by, filter_, source)


def _build_group_query(
    group_by: GroupBy, filter_: GroupFilter, source: str, columns: Sequence[str] = Sums.__struct_fields__
) -> str:
    sums = ", ".join(f"CAST(coalesce(sum({name}), 0) AS bigint)" for name in columns)
    key = f"CAST(trunc(at) AS bigint) / {HOUR_SECONDS}" if group_by == "hour" else _GROUP_KEYS[group_by]
    conditions = [f"{_GROUP_KEYS[name]} = ?" for name in sorted(filter_.filtered_fields)]
    if not filter_.workers:
        conditions.append("parent_session_id IS NULL")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {key}, {sums} FROM {source} LEFT JOIN holdfast.sessions ON id = session_id{where} GROUP BY 1"


def sum_usage_by_size(limits: Sequence[int]) -> str:
    """Parameters: since, until, maximum of `simulated`."""
    exceeded = " + ".join(f"CASE WHEN {_TOKENS_SENT} > {limit} THEN 1 ELSE 0 END" for limit in limits) or "0"
    sums = ", ".join(f"CAST(sum({name}) AS bigint)" for name in _BUCKETS)
    where = f"{_time_condition(1)} AND simulated <= ?"
    return f"SELECT model, {exceeded} AS sizes, count(*), {sums} FROM holdfast.calls WHERE {where} GROUP BY 1, 2"


def group_unpriced(group_by: GroupBy, filter_: GroupFilter) -> str:
    """Parameters: since, until, maximum of `simulated`, the pricing version of unpriced calls; those of the filter."""
    where = f"{_time_condition(1)} AND simulated <= ? AND price_version = ?"
    columns = f"{_ROW_COLUMNS}, 1 AS calls, {_TOKENS_SENT} + output AS tokens"
    source = f"(SELECT {columns} FROM holdfast.calls WHERE {where}) AS part"
    return _build_group_query(group_by, filter_, source, ("calls", "tokens"))


def sum_unpriced(*, session: bool) -> str:
    """Parameters: since, until, maximum of `simulated`, the pricing version of unpriced calls, and the session."""
    sums = ", ".join(f"CAST(sum({name}) AS bigint)" for name in _BUCKETS)
    where = f"{_time_condition(1)} AND simulated <= ? AND price_version = ?{' AND session_id = ?' * session}"
    return f"SELECT session_id, model, count(*), {sums} FROM holdfast.calls WHERE {where} GROUP BY 1, 2 ORDER BY 1, 2"


# The name of a key's sessions was the name of the key when they began.
KEY_LABELS = "SELECT s.caller_key_id, max(s.name) FROM holdfast.sessions AS s WHERE s.caller_key_id <> '' GROUP BY 1"


def sum_key_spending() -> str:
    """Calls and pings of forwarded sessions, by day and key.

    Parameters: the pricing version of unpriced calls, the first day, the version again, the first day twice.
    """
    # With a key, the roll-up has the sums, but for unpriced tokens; its other charges than pings are subtracted.
    rolled_up = "SELECT day, key_id, calls, spent, 0 AS unpriced FROM holdfast.account_days"
    unpriced = f"CASE WHEN price_version = ? THEN {_TOKENS_SENT} + output ELSE 0 END"
    keyless = "CASE WHEN key_id = '' THEN 1 ELSE 0 END AS calls, CASE WHEN key_id = '' THEN spent ELSE 0 END AS spent"
    calls = f"SELECT session_id, day, key_id, {keyless}, {unpriced} AS unpriced FROM holdfast.calls"
    charges = "SELECT session_id, day, key_id, 0, CASE WHEN key_id = '' THEN spent ELSE -spent END, 0"
    postings = (
        f"({calls} WHERE day >= ? AND (key_id = '' OR price_version = ?) UNION ALL {charges} FROM holdfast.charges "
        "WHERE day >= ? AND (type = 'cache.pinged') = (key_id = '')) AS postings"
    )
    sums = ("calls", "spent", "unpriced")
    # By session first: whether a session was forwarded is then looked up once, and only for calls without a key.
    by_session = _build_sum_query(("session_id", "day", "key_id"), sums, postings)
    source = f"({by_session}) AS part JOIN holdfast.sessions AS s ON s.id = part.session_id"
    others = f"SELECT day, key_id, calls, spent, unpriced FROM {source} WHERE key_id <> '' OR {_IS_FORWARDED}"
    parts = f"({others} UNION ALL {rolled_up} WHERE day >= ? AND key_id <> '') AS parts"
    return _build_sum_query(("day", "key_id"), sums, parts)


def select_cache_breaks(*, kind: bool, component: bool) -> str:
    """Parameters: since, until, maximum of `simulated`, kind, component, limit and offset."""
    where = f"kind <> 'held' AND {_time_condition(1)} AND simulated <= ?"
    where += " AND kind = ?" if kind else " AND kind <> 'first_use'"
    where += " AND component = ?" * component
    order = "lost DESC, session_id, number, event_id"
    # Choose the page first and join the wide rows afterwards, so that they are not sorted.
    page = f"SELECT session_id, event_id FROM holdfast.calls WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
    return (
        f"SELECT session_id, name, number, at, c.model, verdict FROM ({page}) AS page "
        f"JOIN holdfast.calls AS c USING (session_id, event_id) "
        f"LEFT JOIN holdfast.sessions ON id = session_id ORDER BY {order}"
    )


def select_call_failures(*, outcome: bool) -> str:
    """Parameters, twice: since, until, maximum of `simulated`, outcome, limit plus offset. Then limit and offset."""
    # That it did not complete is a literal: only then is the partial index used.
    conditions = {"calls": " AND outcome <> 'completed'", "failures": ""}
    chosen = " AND outcome = ?" * outcome
    newest = " UNION ALL ".join(
        f"SELECT * FROM (SELECT session_id, event_id, at, model, outcome, latency_ms, retries FROM holdfast.{table} "
        f"WHERE at >= ? AND at < ? AND simulated <= ?{condition}{chosen} ORDER BY at DESC, event_id DESC LIMIT ?) "
        f"AS {table}_part"
        for table, condition in conditions.items()
    )
    columns = ", ".join(f"s.{name}" for name in SESSION_COLUMNS)
    return (
        f"SELECT {columns}, f.at, f.model, f.outcome, f.latency_ms, f.retries FROM ({newest}) AS f "
        "JOIN holdfast.sessions AS s ON s.id = f.session_id ORDER BY f.at DESC, f.event_id DESC LIMIT ? OFFSET ?"
    )


def select_skill_loads(*, simulated: bool) -> str:
    """Parameters: since, until, and the mark of simulated sessions unless they are included."""
    columns = ", ".join(f"k.{name}" for name in EVENT_COLUMNS)
    exclusion = "" if simulated else f" AND {_NOT_SIMULATED}"
    return (
        f"SELECT {columns} FROM holdfast.events AS k JOIN holdfast.sessions AS s ON s.id = k.session_id "
        f"WHERE k.type = 'skill.loaded' AND k.at >= ? AND k.at < ?{exclusion} "
        "ORDER BY k.seq"
    )


def select_skill_uses() -> str:
    """Parameters: since and until. The uses of the sessions with a skill load in this time, whenever they were."""
    columns = ", ".join(f"k.{name}" for name in EVENT_COLUMNS)
    loading = "SELECT session_id FROM holdfast.events WHERE type = 'skill.loaded' AND at >= ? AND at < ?"
    # The partial index is used only if the type is a literal.
    return f"SELECT {columns} FROM holdfast.events AS k WHERE k.type = 'skill.used' AND k.session_id IN ({loading})"


def select_session_costs(order: str, *, simulated: bool) -> str:
    """Parameters: the mark of simulated sessions unless they are included; limit and offset."""
    columns = ", ".join(f"s.{name}" for name in SESSION_COLUMNS)
    spent = "SELECT sum(d.spent) FROM holdfast.session_days AS d WHERE d.session_id = s.id"
    where = "" if simulated else f" WHERE {_NOT_SIMULATED}"
    by = "spent DESC, s.id" if order == "cost" else "s.last_event_at DESC, s.id DESC"
    return (
        f"SELECT {columns}, CAST(coalesce(({spent}), 0) AS bigint) AS spent "
        f"FROM holdfast.sessions AS s{where} ORDER BY {by} LIMIT ? OFFSET ?"
    )


# The value by which sessions are sorted.
_SORT_VALUES: dict[SessionSort, str] = {
    "activity": "s.last_event_at",
    "started": "s.started_at",
    "spent": "s.spent_total",
    "lost": "s.lost_total",
    "calls": "s.calls_total",
    # In millionths, so that the value of a position is exact.
    "read_share": "s.read_total * 1000000 / greatest(s.sent_total, 1)",
}
_SEARCHED = ("s.name", "s.id", "s.client", "s.model")
_MATCHES_TEXT = "strpos(lower({}), lower(?)) > 0"


def select_sessions(filter_: SessionFilter, ordering: SessionOrdering) -> str:
    """Parameters: those of `session_conditions`, value and id of the position if there is one, limit."""
    columns = ", ".join(f"s.{name}" for name in SESSION_COLUMNS)
    conditions, _ = session_conditions(filter_)
    value = _SORT_VALUES[ordering.sort]
    if ordering.after is not None:
        conditions = (*conditions, f"({value}, s.id) {'<' if ordering.descending else '>'} (?, ?)")
    direction = "DESC" if ordering.descending else "ASC"
    return (
        f"SELECT {columns}, {value} FROM holdfast.sessions AS s WHERE {' AND '.join(conditions)} "
        f"ORDER BY {value} {direction}, s.id {direction} LIMIT ?"
    )


def count_matches(filter_: SessionFilter) -> str:
    return f"SELECT count(*) FROM holdfast.sessions AS s WHERE {' AND '.join(session_conditions(filter_)[0])}"


def session_conditions(filter_: SessionFilter) -> tuple[tuple[str, ...], tuple[Cell, ...]]:
    """The conditions of a filter, and their parameters."""
    conditions, cells = ["s.is_simulated <= ?"], list[Cell]([int(filter_.simulated)])

    def add(condition: str, *values: Cell) -> None:
        if None not in values:
            conditions.append(condition)
            cells.extend(values)

    searched = (*_SEARCHED, "s.opening") if filter_.openings else _SEARCHED
    add(_MATCHES_TEXT.format(" || ' ' || ".join(f"coalesce({name}, '')" for name in searched)), filter_.search)
    add(_MATCHES_TEXT.format("coalesce(s.client, '')"), filter_.client)
    add(_MATCHES_TEXT.format("s.model"), filter_.model)
    add("s.caller_key_id = ?", filter_.key)
    add("s.caller_user_id = ?", filter_.user)
    add("s.caller_team_id = ?", filter_.team)
    add("s.last_event_at >= ?", filter_.since)
    add("s.started_at < ?", filter_.until)
    # The index of losing calls has all that this needs.
    add("s.id IN (SELECT session_id FROM holdfast.calls WHERE lost > 0 AND kind = ?)", filter_.verdict)
    return tuple(conditions), tuple(cells)


READ_SHARE_SOURCES = {
    "gateway_key": "SELECT key_id AS subject, d.* FROM holdfast.account_days AS d WHERE key_id <> ''",
    "client": "SELECT s.client AS subject, d.* FROM holdfast.session_days AS d "
    "JOIN holdfast.sessions AS s ON s.id = d.session_id WHERE s.client IS NOT NULL",
}


def sum_read_shares(by: str) -> str:
    """Parameters: the first day, maximum of `simulated`."""
    sums = ", ".join(f"CAST(sum({name}) AS bigint)" for name in ("calls", _TOKENS_SENT, "cache_read"))
    source = f"({READ_SHARE_SOURCES[by]} AND d.day >= ? AND d.simulated <= ?) AS part"
    return f"SELECT subject, day, {sums} FROM {source} GROUP BY subject, day ORDER BY subject, day"


def count_unpriced(sessions: int) -> str:
    """Parameters: the pricing version of unpriced calls, the session ids."""
    where = f"price_version = ?{_in_sessions(sessions)}"
    return f"SELECT session_id, count(*) FROM holdfast.calls WHERE {where} GROUP BY session_id"


def count_turns(sessions: int) -> str:
    # The partial index is used only if the types are literals, written as in its definition.
    return (
        f"SELECT session_id, count(*) FROM holdfast.events WHERE type IN ('turn.completed', 'turn.cancelled') "
        f"AND session_id IN ({repeat_params(sessions)}) GROUP BY session_id"
    )


def select_session_starts(sessions: int) -> str:
    return (
        f"SELECT {', '.join(EVENT_COLUMNS)} FROM holdfast.events WHERE type = 'session.started' "
        f"AND session_id IN ({repeat_params(sessions)}) ORDER BY seq"
    )


def filter_parameters(filter_: GroupFilter) -> tuple[Cell, ...]:
    """The parameters of a filter."""
    return tuple(getattr(filter_, name) for name in sorted(filter_.filtered_fields))
