"""The state of a long session beside its log, so that resuming it does not process the whole log again.

A snapshot only saves time: without one that can be used, the state is folded from all events. It can be used if its
bytes have their digest, and the log has as many events as it contains, up to the one that it ends with.
"""

import asyncio
import base64
import functools
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from holdfast.engine.cache.plan import record_learned
from holdfast.engine.conversation import Conversation
from holdfast.engine.reducer import apply_event, fold_events
from holdfast.engine.request_draft import PackedDraft
from holdfast.engine.state import SessionState
from holdfast.errors import StoreError, UserError
from holdfast.events.log import EventLog
from holdfast.events.records import HasRecords, SharedValue, snapshot_key
from holdfast.types.json_encoding import sha256_hex

SNAPSHOT_REVISION = 1
"""Increased when the reducer gives another state for the same events, so that older snapshots are not used."""

# Folding and encoding the messages that are new takes 0.1 ms each; writing a snapshot takes 0.005 ms for each of all.
NEW_MESSAGES_MIN = 100
NEW_MESSAGES_SHARE = 1 / 32

# An open session writes one more rarely, while it waits for the provider: for a process that is killed. With these, the
# messages that are folded after it cost at most as much as reading a snapshot of 5,000, and writing 0.04 ms a message.
UNSAVED_MESSAGES_MIN = 400
UNSAVED_MESSAGES_SHARE = 1 / 8

# A snapshot of 5,000 messages has 3 MB.
SNAPSHOT_BYTES_MAX = 256_000_000


class StateSnapshot(msgspec.Struct, frozen=True):
    """A state, and its last request as the named adapter encoded it for the model."""

    revision: int
    state: SessionState
    draft: PackedDraft | None = None
    adapter: str = ""
    model: str = ""
    tokens_factor: float = 1.0


_decoder = msgspec.msgpack.Decoder(StateSnapshot)


def encode_snapshot(snapshot: StateSnapshot) -> str:
    data = msgspec.msgpack.encode(snapshot)
    # Level 1 takes a third of the time of the default, for a tenth more bytes.
    return f"{sha256_hex(data)} {len(data)} {base64.b64encode(zlib.compress(data, 1)).decode()}"


def decode_snapshot(text: str) -> StateSnapshot | None:
    """None if the text is damaged or of another revision."""
    digest, _, rest = text.partition(" ")
    size, _, encoded = rest.partition(" ")
    try:
        # A length of 0 would be no limit.
        bytes_max = max(1, min(int(size), SNAPSHOT_BYTES_MAX))
        data = zlib.decompressobj().decompress(base64.b64decode(encoded), bytes_max)
        if sha256_hex(data) != digest:
            return None
        snapshot = _decoder.decode(data)
    except (ValueError, zlib.error, msgspec.MsgspecError, RecursionError):
        return None
    return snapshot if snapshot.revision == SNAPSHOT_REVISION else None


def load_state(log: EventLog, session_id: str) -> tuple[SessionState, StateSnapshot | None]:
    """The state of a session after all its events, and the snapshot that it was continued from, if any."""
    snapshot = _find_snapshot(log, session_id) if isinstance(log, HasRecords) else None
    if isinstance(log, HasRecords) and snapshot is not None:
        head = log.records.shared.find_head(session_id)
        with suppress(UserError):  # The log lacks the last event of the snapshot.
            state = functools.reduce(
                apply_event, log.read(session_id, after=snapshot.state.last_event_id), snapshot.state
            )
            # Otherwise events before the snapshot were deleted, or another process is appending right now.
            if head is not None and head.event_count == state.event_count:
                return state, snapshot
    return fold_events(log.read(session_id), session_id), None


def restore_draft(conversation: Conversation, snapshot: StateSnapshot | None) -> None:
    """Continue the encoded request of the snapshot, if the conversation has the same provider and model."""
    if snapshot is None:
        return
    deps = conversation.deps
    encoded_for = snapshot.adapter, snapshot.model, snapshot.tokens_factor
    if snapshot.draft is not None and encoded_for == (deps.adapter.name, deps.model.id, deps.model.tokens_factor):
        conversation.draft.unpack(snapshot.draft, snapshot.state)
    conversation.messages_saved = snapshot.state.message_count


async def save_session(conversation: Conversation) -> None:
    """Record what the session has learned, and store a snapshot of it."""
    # Learned parameters only improve later plans, and another session will learn them. A snapshot only saves time.
    with suppress(StoreError):
        await record_learned(conversation)
        state = conversation.logged_state
        unsaved = state.message_count - conversation.messages_saved
        if unsaved >= max(NEW_MESSAGES_MIN, state.message_count * NEW_MESSAGES_SHARE):
            await asyncio.to_thread(_store_snapshot, conversation, _make_snapshot(conversation))


@asynccontextmanager
async def save_while_waiting(conversation: Conversation) -> AsyncIterator[None]:
    """While the body waits for the provider, store a snapshot in a thread."""
    # What changes later is read here: the state never changes, but the draft does.
    snapshot = _make_snapshot(conversation)
    saving = asyncio.create_task(asyncio.to_thread(_store_snapshot, conversation, snapshot))
    try:
        yield
    finally:
        with suppress(StoreError):
            await saving


def _make_snapshot(conversation: Conversation) -> StateSnapshot:
    """Of the state as it is on the log."""
    state, deps = conversation.logged_state, conversation.deps
    conversation.messages_saved = state.message_count
    draft = conversation.draft.pack(state)
    return StateSnapshot(SNAPSHOT_REVISION, state, draft, deps.adapter.name, deps.model.id, deps.model.tokens_factor)


def _store_snapshot(conversation: Conversation, snapshot: StateSnapshot) -> None:
    log, state = conversation.deps.log, snapshot.state
    if not isinstance(log, HasRecords):
        return
    key = snapshot_key(state.session_id)
    log.records.put_shared([SharedValue(key, encode_snapshot(snapshot), conversation.deps.clock())])
    head = log.records.shared.find_head(state.session_id)
    if head is None or head.event_count < state.event_count:
        # Somebody has deleted the session while it was open, and its content with it.
        log.records.put_shared([], [key])


def _find_snapshot(log: HasRecords, session_id: str) -> StateSnapshot | None:
    key = snapshot_key(session_id)
    try:
        text = log.records.find_shared([key]).get(key)
    except StoreError:
        return None
    snapshot = decode_snapshot(text) if text is not None else None
    return snapshot if snapshot is not None and snapshot.state.session_id == session_id else None
