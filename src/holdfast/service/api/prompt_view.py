"""Prompts of a session's calls, for the dashboard: their layers, and the first byte that differs from the last call."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from threading import Lock
from typing import TypeVar

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.engine.history_transfer import model_provider
from holdfast.engine.reducer import apply_event
from holdfast.engine.request_draft import RequestDraft, build_sent_view
from holdfast.engine.state import SessionState
from holdfast.errors import UserError
from holdfast.events.log import Event, EventLog
from holdfast.events.payloads.calls import ModelSwitched, RequestPrepared
from holdfast.layers.assemble import assemble_prompt
from holdfast.ledger.layers import CallTimeline
from holdfast.providers.registry import find_adapter
from holdfast.types.request_buffer import common_prefix_length

# Enough context to recognize the place, for a view of one line each.
BYTES_BEFORE = 120
BYTES_AFTER = 240

SESSIONS_MAX = 16
"""How many sessions are held in memory: few are viewed at once, and each grows with its number of calls."""

Result = TypeVar("Result")


class Divergence(msgspec.Struct, frozen=True):
    """`byte` is the first cacheable byte that differs; null if the call extends the previous one.

    `shared` is the text before that byte; `before` and `after` follow it in the previous and in this call.
    """

    byte: int | None
    bytes_before: int
    bytes_after: int
    shared: str = ""
    before: str = ""
    after: str = ""


def find_divergence(events: Iterable[Event], session_id: str, models: Models, *, ordinal: int) -> Divergence | None:
    """For request number `ordinal`; None if it does not exist or has no predecessor with the same model."""
    state, draft, number = SessionState(session_id), None, 0
    before: bytes | None = None
    for event in events:
        match event.payload:
            case RequestPrepared():
                number += 1
                draft = draft or RequestDraft(find_adapter(model_provider(state.model)), len)
                draft.update(assemble_prompt(build_sent_view(state)))
                if number == ordinal:
                    return None if before is None else compare_bytes(before, draft.buffer.cacheable_bytes())
                if number == ordinal - 1:
                    before = draft.buffer.cacheable_bytes()
            # Another model has its own cache, and maybe another encoding: nothing to compare with.
            case ModelSwitched():
                draft, before = None, None
            case _:
                pass
        state = apply_event(state, event)
    return None


def rebuild_request(events: Iterable[Event], session_id: str, *, ordinal: int) -> bytes | None:
    """The cacheable bytes of request number `ordinal`; None if it does not exist."""
    state, number = SessionState(session_id), 0
    for event in events:
        if isinstance(event.payload, RequestPrepared):
            number += 1
            if number == ordinal:
                draft = RequestDraft(find_adapter(model_provider(state.model)), len)
                draft.update(assemble_prompt(build_sent_view(state)))
                return draft.buffer.cacheable_bytes()
        state = apply_event(state, event)
    return None


def compare_bytes(before: bytes, after: bytes) -> Divergence:
    byte = common_prefix_length(before, after)
    if byte == len(before):
        return Divergence(None, len(before), len(after))
    return Divergence(
        byte=byte,
        bytes_before=len(before),
        bytes_after=len(after),
        shared=before[max(0, byte - BYTES_BEFORE) : byte].decode(errors="replace"),
        before=before[byte : byte + BYTES_AFTER].decode(errors="replace"),
        after=after[byte : byte + BYTES_AFTER].decode(errors="replace"),
    )


class PromptViews:
    """Thread-safe."""

    def __init__(self, log: EventLog, models: Models) -> None:
        self._log = log
        self._models = models
        self._lock = Lock()
        self._sessions: OrderedDict[str, CallTimeline] = OrderedDict()

    def view_session(self, session_id: str, make: Callable[[CallTimeline], Result]) -> Result:
        """Returns `make` of the up-to-date session; a session without events has no model."""
        with self._lock:
            session = self._sessions.pop(session_id, None) or CallTimeline(session_id, self._models)
            if session.last_event_id is not None and next(self._log.read(session_id), None) is None:
                # The session was deleted, so its content must not be shown any more.
                session = CallTimeline(session_id, self._models)
            try:
                session.apply_events(self._log.read(session_id, after=session.last_event_id))
            except UserError:
                # The session was deleted and created again, so our last event id is unknown.
                session = CallTimeline(session_id, self._models)
                session.apply_events(self._log.read(session_id))
            if session.last_event_id is not None:
                self._sessions[session_id] = session
                if len(self._sessions) > SESSIONS_MAX:
                    self._sessions.popitem(last=False)
            return make(session)
