"""What a session opens or resumes from its options, and the errors of sessions that are not open or not known."""

from pathlib import Path

from holdfast.clock import new_ulid, system_clock
from holdfast.engine.reducer import fold_events
from holdfast.engine.state import SessionState
from holdfast.errors import UserError
from holdfast.events.log import EventLog
from holdfast.runtime.compose import load_models, load_session_config
from holdfast.runtime.options import Options
from holdfast.stores.open import open_store

TURN_IN_PROGRESS = (
    "a turn is in progress in this session; wait for it, or use a second session "
    "(a stream that was left early stays in progress until it is closed: wrap it in contextlib.aclosing)"
)


def not_open_error(closed_id: str | None) -> UserError:
    """The error for using a session that was never entered, or that was closed and had this id."""
    if closed_id is None:
        return UserError("the session is not open: use it as `async with Session.create(...) as session`")
    return UserError(f"the session is not open: it was closed; continue it with `Session.resume({closed_id!r}, ...)`")


def load_session_state(log: EventLog, options: Options, resume: str | None) -> SessionState:
    """The state of the session to resume, or that of a new one. Raises UserError if there is nothing to resume."""
    if resume is None:
        at = options.get("clock", system_clock)()
        return SessionState(session_id=options.get("new_id", new_ulid)(at))
    state = fold_events(log.read(resume), resume)
    if not state.model:
        newest_ids = [row.id for row in log.sessions(limit=3)]
        hint = f"; the newest are {', '.join(newest_ids)}" if newest_ids else "; the store holds no session yet"
        raise UserError(f"there is no session {resume!r}{hint} (`holdfast sessions list` shows all)")
    if not state.epoch:
        raise UserError(
            f"session {resume!r} has no prompt to continue: it was recorded from a wrapped client or pruned"
        )
    return state


def open_session_log(options: Options) -> tuple[EventLog, bool]:
    """The store to use, and whether the session has to close it."""
    store = options.get("store")
    if store is not None and not isinstance(store, str | Path):
        # A store object belongs to the caller, who may use it for other sessions: it is not closed with this one.
        return store, False
    config = load_session_config(options)
    address = config.db_path if store is None else str(store)
    return open_store(address, models=load_models(config)), True
