"""Shares what planners know between the processes on one store: conversations by their last request, orders of tools.

A process that answers the next call of a conversation finds what another knew of it under the digest of the request
that the call continues. Nothing here raises: without the store, each process plans with what it knows itself.
"""

import logging
import threading
from collections.abc import Sequence

import msgspec

from holdfast.events.records import SharedValue, SharedValueStore
from holdfast.planning.learned import CacheMemory, LearningScope, RequestRecord
from holdfast.types.json_encoding import sha256_hex

logger = logging.getLogger(__name__)

# How many of the newest messages of a request are looked up: it continues one of them, or nothing that is known.
SHARED_KEYS_MAX = 32

# How long a value is kept after its last use, and how often older ones are deleted.
KEPT_SECONDS = 7 * 86_400.0
CLEANUP_SECONDS = 3_600.0

# Writes that wait for the store; the oldest are dropped if it does not answer.
PENDING_MAX = 10_000


class SharedConversation(msgspec.Struct, frozen=True):
    """What is known of a conversation after its last request; `before` is the key of the request before, if any.

    `is_continued`: a process other than the one that wrote this has answered a later request, which has the key `next`.
    `id` is the same for all requests of the conversation.
    """

    memory: CacheMemory
    last_request: RequestRecord
    tokens_estimate: int = 0
    before: str = ""
    is_continued: bool = False
    next: str = ""
    id: str = ""


_decode_conversation = msgspec.json.Decoder(SharedConversation).decode
_decode_order = msgspec.json.Decoder(tuple[int, ...]).decode


def make_conversation_key(scope: LearningScope, digest: str) -> str:
    """`digest` is that of the whole request, `scope` says who sent it to which model."""
    parts = (scope.model, scope.route, scope.workspace_hash or "", digest)
    return f"plan {sha256_hex(chr(10).join(parts).encode())[:32]}"


class SharedPlans:
    """Thread-safe. Values are written by a thread of their own, which runs only while there are some."""

    def __init__(self, store: SharedValueStore) -> None:
        self._store = store
        self._pending: dict[str, SharedValue | None] = {}
        self._condition = threading.Condition()
        self._is_writing = False
        self._cleaned_at = 0.0
        self._has_warned = False

    def find(self, keys: Sequence[str]) -> tuple[str, SharedConversation] | None:
        """The first of the keys that is known, with its conversation."""
        with self._condition:
            pending = {key: value.text for key in keys if (value := self._pending.get(key)) is not None}
        try:
            found = {**self._store.find_shared(keys), **pending}
            return next(((key, _decode_conversation(found[key])) for key in keys if key in found), None)
        except Exception as error:  # noqa: BLE001 - a plan without it is a plan, and the call must not fail
            self._warn(error)
            return None

    def put(self, key: str, conversation: SharedConversation, *, at: float, replaces: str = "") -> None:
        """Stores a conversation soon; `replaces` is a key that is not needed any more."""
        value = SharedValue(key, msgspec.json.encode(conversation).decode(), at)
        with self._condition:
            self._pending[key] = value
            if replaces:
                self._pending[replaces] = None
            while len(self._pending) > PENDING_MAX:
                del self._pending[next(iter(self._pending))]
            if not self._is_writing:
                self._is_writing = True
                threading.Thread(target=self._write_pending, name="holdfast-shared-plans", daemon=True).start()

    def agree_on_order(self, key: str, order: tuple[int, ...], *, at: float) -> tuple[int, ...]:
        """The order that the first process proposed under this key."""
        try:
            value = SharedValue(f"tools {key}", msgspec.json.encode(order).decode(), at)
            agreed = _decode_order(self._store.add_shared(value))
        except Exception as error:  # noqa: BLE001 - as above
            self._warn(error)
            return order
        return agreed if sorted(agreed) == sorted(order) else order

    def wait_until_written(self, seconds_max: float) -> bool:
        with self._condition:
            return self._condition.wait_for(lambda: not self._is_writing, seconds_max)

    def _write_pending(self) -> None:
        while True:
            with self._condition:
                pending, self._pending = self._pending, {}
                if not pending:
                    self._is_writing = False
                    self._condition.notify_all()
                    return
            values = [value for value in pending.values() if value is not None]
            try:
                self._store.put_shared(values, [key for key, value in pending.items() if value is None])
                newest = max((value.at for value in values), default=0.0)
                if newest - self._cleaned_at > CLEANUP_SECONDS:
                    self._cleaned_at = newest
                    self._store.delete_shared(newest - KEPT_SECONDS)
            except Exception as error:  # noqa: BLE001 - as above
                self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            # Only the type: a message could quote what was to be stored.
            logger.warning("planner memory is not shared with other processes: %s", type(error).__name__)
