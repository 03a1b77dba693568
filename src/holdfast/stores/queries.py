"""SQL of the event log, shared by all engines."""

import msgspec

from holdfast.events.log import SessionRow
from holdfast.stores.rows import COLUMNS

Cell = str | int | float | None

SESSION_COLUMNS = SessionRow.__struct_fields__


class Queries(msgspec.Struct, frozen=True):
    mark: str
    page: str
    place: str
    session: str
    sessions: str
    lessons: str
    known: str
    continued: str
    forget_events: str
    forget_session: str
    any_event: str
    is_old: str
    prunable: str
    totals: str
    prune: str
    recount: str


def queries(param: str, *, schema: str = "") -> Queries:
    """The queries of an engine that writes `param` for a parameter and `schema` as table prefix."""
    events, sessions = f"{schema}events", f"{schema}sessions"
    columns = ", ".join(COLUMNS)
    newest_first = "ORDER BY last_event_at DESC, id DESC"
    after_seq = f"session_id = {param} AND seq > {param}"
    return Queries(
        mark=param,
        page=f"SELECT seq, {columns} FROM {events} WHERE {after_seq} ORDER BY seq LIMIT {param}",
        place=f"SELECT seq FROM {events} WHERE id = {param} AND session_id = {param}",
        session=f"SELECT 1 FROM {sessions} WHERE id = {param}",
        sessions=f"SELECT {', '.join(SESSION_COLUMNS)} FROM {sessions} {newest_first} LIMIT {param}",
        # The partial index is used only if the type is a literal.
        lessons=f"SELECT {columns} FROM {events} WHERE type = 'cache.learned' ORDER BY seq DESC LIMIT {param}",
        known=f"SELECT 1 FROM {events} WHERE id = {param}",
        continued=f"SELECT 1 FROM {events} WHERE session_id = {param} AND parent_event_id = {param}",
        forget_events=f"DELETE FROM {events} WHERE session_id = {param}",
        forget_session=f"DELETE FROM {sessions} WHERE id = {param}",
        is_old=f"SELECT 1 FROM {sessions} WHERE id = {param} AND last_event_at < {param}",
        prunable=f"""
SELECT s.id, count(*) FROM {sessions} AS s JOIN {events} AS e ON e.session_id = s.id
WHERE s.last_event_at < {param} AND e.type NOT IN ({{retained}}) GROUP BY s.id ORDER BY s.id""",
        totals=f"""
SELECT count(*), CAST(coalesce(sum(event_count), 0) AS bigint), min(started_at), max(last_event_at),
    (SELECT count(*) FROM {schema}calls), (SELECT count(*) FROM {sessions} WHERE entered_events <> event_count)
FROM {sessions}""",
        any_event=f"SELECT 1 FROM {events} WHERE session_id = {param} LIMIT 1",
        prune=f"DELETE FROM {events} WHERE session_id = {param} AND type NOT IN ({{retained}})",
        recount=f"""
UPDATE {sessions} SET entered_events = -1,
    event_count = (SELECT count(*) FROM {events} WHERE session_id = {sessions}.id),
    started_at = (SELECT min(at) FROM {events} WHERE session_id = {sessions}.id),
    last_event_at = (SELECT max(at) FROM {events} WHERE session_id = {sessions}.id)
WHERE id = {param}""",
    )


def add_to_session(param: str, *, schema: str = "", least: str, greatest: str) -> str:
    """Adds a tally to a session's row; `least` and `greatest` are the engine's functions of two numbers.

    The event count is passed twice, the second time for `entered_events`.
    """
    params = ", ".join([param] * (len(SESSION_COLUMNS) + 1))
    return f"""
INSERT INTO {schema}sessions AS kept ({", ".join(SESSION_COLUMNS)}, entered_events) VALUES ({params})
ON CONFLICT (id) DO UPDATE SET
    name = coalesce(excluded.name, kept.name),
    model = coalesce(nullif(excluded.model, ''), kept.model),
    started_at = {least}(kept.started_at, excluded.started_at),
    last_event_at = {greatest}(kept.last_event_at, excluded.last_event_at),
    event_count = kept.event_count + excluded.event_count,
    parent_session_id = coalesce(excluded.parent_session_id, kept.parent_session_id),
    entered_events = kept.entered_events + excluded.entered_events
"""
