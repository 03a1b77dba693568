"""The store that a session opens from its options, and the errors of sessions that are not open or not known."""

from pathlib import Path

from holdfast.catalog.lookup import apply_model_overrides, shipped_models
from holdfast.errors import UserError
from holdfast.events.log import EventLog
from holdfast.runtime.compose import load_session_config
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


def unknown_session_error(log: EventLog, session_id: str) -> UserError:
    """The error for an unknown session id; it names the newest sessions."""
    newest_ids = [row.id for row in log.sessions(limit=3)]
    hint = f"; the newest are {', '.join(newest_ids)}" if newest_ids else "; the store holds no session yet"
    return UserError(f"there is no session {session_id!r}{hint} (`holdfast sessions list` shows all)")


def open_session_log(options: Options) -> tuple[EventLog, bool]:
    """The store to use, and whether the session has to close it."""
    store = options.get("store")
    if store is not None and not isinstance(store, str | Path):
        # A store object belongs to the caller, who may use it for other sessions: it is not closed with this one.
        return store, False
    config = load_session_config(options)
    address = config.db_path if store is None else str(store)
    return open_store(address, models=apply_model_overrides(shipped_models(), config.models)), True
