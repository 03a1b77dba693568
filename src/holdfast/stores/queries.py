"""What is asked of a database, in the words that all engines share."""

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


def queries(mark: str, *, schema: str = "") -> Queries:
    """The queries of an engine that writes `mark` for a parameter, and `schema` in front of a table."""
    events, sessions = f"{schema}events", f"{schema}sessions"
    columns = ", ".join(COLUMNS)
    newest_first = "ORDER BY last_event_at DESC, id DESC"
    behind = f"session_id = {mark} AND seq > {mark}"
    return Queries(
        mark=mark,
        page=f"SELECT seq, {columns} FROM {events} WHERE {behind} ORDER BY seq LIMIT {mark}",
        place=f"SELECT seq FROM {events} WHERE id = {mark} AND session_id = {mark}",
        session=f"SELECT 1 FROM {sessions} WHERE id = {mark}",
        sessions=f"SELECT {', '.join(SESSION_COLUMNS)} FROM {sessions} {newest_first} LIMIT {mark}",
        # The type is spelled out: only then the index of such rows is used.
        lessons=f"SELECT {columns} FROM {events} WHERE type = 'cache.learned' ORDER BY seq DESC LIMIT {mark}",
        known=f"SELECT 1 FROM {events} WHERE id = {mark}",
        continued=f"SELECT 1 FROM {events} WHERE session_id = {mark} AND parent_event_id = {mark}",
        forget_events=f"DELETE FROM {events} WHERE session_id = {mark}",
        forget_session=f"DELETE FROM {sessions} WHERE id = {mark}",
        is_old=f"SELECT 1 FROM {sessions} WHERE id = {mark} AND last_event_at < {mark}",
        prunable=f"""
SELECT s.id, count(*) FROM {sessions} AS s JOIN {events} AS e ON e.session_id = s.id
WHERE s.last_event_at < {mark} AND e.type NOT IN ({{kept}}) GROUP BY s.id ORDER BY s.id""",
        totals=f"""
SELECT count(*), CAST(coalesce(sum(event_count), 0) AS bigint), min(started_at), max(last_event_at),
    (SELECT count(*) FROM {schema}calls), (SELECT count(*) FROM {sessions} WHERE entered_events <> event_count)
FROM {sessions}""",
        any_event=f"SELECT 1 FROM {events} WHERE session_id = {mark} LIMIT 1",
        prune=f"DELETE FROM {events} WHERE session_id = {mark} AND type NOT IN ({{kept}})",
        recount=f"""
UPDATE {sessions} SET entered_events = -1,
    event_count = (SELECT count(*) FROM {events} WHERE session_id = {sessions}.id),
    started_at = (SELECT min(at) FROM {events} WHERE session_id = {sessions}.id),
    last_event_at = (SELECT max(at) FROM {events} WHERE session_id = {sessions}.id)
WHERE id = {mark}""",
    )


def add_to_session(mark: str, *, schema: str = "", least: str, greatest: str) -> str:
    """Adds a tally to a session's row; `least` and `greatest` are the engine's functions of two numbers.

    The count comes a second time, for what is entered.
    """
    marks = ", ".join([mark] * (len(SESSION_COLUMNS) + 1))
    return f"""
INSERT INTO {schema}sessions AS kept ({", ".join(SESSION_COLUMNS)}, entered_events) VALUES ({marks})
ON CONFLICT (id) DO UPDATE SET
    name = coalesce(excluded.name, kept.name),
    model = coalesce(nullif(excluded.model, ''), kept.model),
    started_at = {least}(kept.started_at, excluded.started_at),
    last_event_at = {greatest}(kept.last_event_at, excluded.last_event_at),
    event_count = kept.event_count + excluded.event_count,
    parent_session_id = coalesce(excluded.parent_session_id, kept.parent_session_id),
    entered_events = kept.entered_events + excluded.entered_events
"""
