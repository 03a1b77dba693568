"""Matches each request to the conversation it continues: by ids that clients send, else by its history.

A request contains its whole history, so the newest blocks of the previous request are in it at the same positions.
That finds the conversation even if the first bytes, or the last ones, change with every call.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from holdfast.gateway.http.response_parser import Headers
from holdfast.types.blocks import Json

MATCHED_CONVERSATIONS_MAX = 1_000

# Several, because a client may change its last block with every call.
NEWEST_BLOCKS = 3
CANDIDATES_MAX = 8
T = TypeVar("T")
K = TypeVar("K")
VALUE_CHARS_MAX = 400
CACHE_KEY = "prompt_cache_key"

OWN_SESSION_PREFIX = "holdfast-"
"""Prefix of the session ids that a rewrite adds. They are derived from the first message, so they are no hint."""

# Session headers of known clients, such as Claude Code, Codex and Helicone.
_HEADERS = (
    b"x-claude-code-session-id",
    b"x-session-id",
    b"session-id",
    b"session_id",
    b"conversation_id",
    b"x-session-affinity",
    b"x-conversation-id",
    b"helicone-session-id",
)

_MEMBERS = ("metadata", "user", "previous_response_id", "session_id", "conversation", CACHE_KEY)
_IN_USER_ID = re.compile(r"session_(?P<id>[0-9A-Za-z-]{8,})")


class SessionHints(msgspec.Struct, frozen=True):
    """`source` names the field that `session` came from; `previous_response_id` the response this request continues."""

    session: str | None = None
    source: str = ""
    previous_response_id: str | None = None
    user: str | None = None

    @property
    def is_strong(self) -> bool:
        """Whether the hint identifies one session; a prompt cache key may be shared by a whole application."""
        return self.session is not None and self.source != CACHE_KEY


class RequestFingerprint(msgspec.Struct, frozen=True):
    """A request as digests: one of its head, and one per block of its history.

    Conversations in different scopes never match. `restored_scope` is the scope of conversations restored after a
    restart, whose provider account is no longer known; the first request that continues one takes it over.
    """

    scope: str
    head: str
    blocks: tuple[str, ...]
    hints: SessionHints
    restored_scope: str = ""

    @property
    def scopes(self) -> tuple[str, ...]:
        return (self.scope, self.restored_scope) if self.restored_scope else (self.scope,)


class ConversationMatch(msgspec.Struct, frozen=True):
    """The matched conversation. `confidence` is from 0 to 1; `parent` is the conversation a new one branched from.

    `shared_blocks` is the number of leading blocks that the previous request also began with.
    """

    key: int
    is_new: bool
    confidence: float
    reason: str
    parent: int | None = None
    shared_blocks: int = 0


class _Conversation(Generic[T]):
    """`request` is the newest one, `state` the caller's; the rest is for the indexes in Conversations."""

    def __init__(self, key: int, request: RequestFingerprint, state: T) -> None:
        self.key = key
        self.request = request
        self.state = state
        self.session_key: tuple[str, str] | None = None
        self.tail_keys: list[tuple[str, int, str]] = []
        self.open_requests = 0


class ConversationMatcher(Generic[T]):
    """Holds up to `conversations_max`; evicts the least recently used."""

    def __init__(self, *, conversations_max: int = MATCHED_CONVERSATIONS_MAX) -> None:
        self._max = conversations_max
        self._by_key: OrderedDict[int, _Conversation[T]] = OrderedDict()
        self._tails: dict[tuple[str, int, str], list[int]] = {}
        self._by_session: dict[tuple[str, str], list[int]] = {}
        self._replies: dict[tuple[str, str], int] = {}
        self._next = 0

    def match_request(
        self, request: RequestFingerprint, make_state: Callable[[T | None], T]
    ) -> tuple[ConversationMatch, T]:
        """Returns the conversation that the request continues, or a new one, and indexes its newest blocks.

        The state of a new conversation is made from the state of the one it branched from, if any.
        """
        match = self._match(request)
        if match.is_new:
            parent_state = None if match.parent is None else self._by_key[match.parent].state
            conversation = self._add(request, make_state(parent_state))
        else:
            conversation = self._by_key[match.key]
            self._by_key.move_to_end(match.key)
            match = msgspec.structs.replace(
                match, shared_blocks=_shared_blocks(conversation.request.blocks, request.blocks)
            )
            conversation.request = request
        conversation.open_requests += 1
        self._index(conversation)
        self._make_room()
        return match, conversation.state

    def restore(self, request: RequestFingerprint, state: T, reply_id: str) -> None:
        """Adds a conversation of an earlier process by its last request, whose scope is the restored one."""
        conversation = self._add(request, state)
        self._index(conversation)
        if reply_id:
            self._replies[request.scope, reply_id] = conversation.key
        self._make_room()

    def _add(self, request: RequestFingerprint, state: T) -> "_Conversation[T]":
        conversation = _Conversation(self._next, request, state)
        self._by_key[conversation.key] = conversation
        self._next += 1
        return conversation

    def _make_room(self) -> None:
        while len(self._by_key) > self._max:
            self._forget(next(iter(self._by_key)))

    def end_request(self, key: int, reply_id: str) -> None:
        """A request ended; later ones may refer to its response by id alone."""
        conversation = self._by_key.get(key)
        if conversation is None:
            return
        conversation.open_requests -= 1
        if reply_id:
            self._replies[conversation.request.scope, reply_id] = key
            # Sixteen responses per conversation on average; older ones are found by history instead.
            while len(self._replies) > 16 * self._max:
                del self._replies[next(iter(self._replies))]

    def _match(self, request: RequestFingerprint) -> ConversationMatch:
        hints = request.hints
        if hints.previous_response_id is not None:
            keys = (self._replies.get((scope, hints.previous_response_id)) for scope in request.scopes)
            key = next((candidate for candidate in keys if candidate is not None), None)
            if key is not None and key in self._by_key:
                return ConversationMatch(key, False, 1.0, "it names the previous response")
        conversation = self._by_history(request)
        equal = _equal_blocks(conversation.request.blocks, request.blocks) if conversation else 0
        if conversation is not None and equal == len(conversation.request.blocks):
            confidence = 1.0 if hints.session else 0.6 if equal == 1 else 0.95
            # A single shared block, such as a common first message, is weak evidence.
            return ConversationMatch(conversation.key, False, confidence, "it extends the previous request")
        # A conversation whose history was partly edited still grows; a shorter one is more likely a branch.
        grows = conversation is not None and len(request.blocks) > len(conversation.request.blocks)
        if conversation is not None and grows and 2 * equal >= len(conversation.request.blocks):
            return ConversationMatch(conversation.key, False, 0.8, "it shares most blocks with the previous request")
        return self._by_name(request) or ConversationMatch(
            self._next,
            True,
            1.0 if hints.is_strong else 0.7,
            f"{hints.source}, with a new history" if hints.source else "it continues no known conversation",
            self._branched_from(request),
        )

    def _by_history(self, request: RequestFingerprint) -> _Conversation[T] | None:
        """Among conversations with one of their newest blocks in this request, the one with most equal blocks."""
        best: _Conversation[T] | None = None
        best_equal = 0
        for position, digest in enumerate(request.blocks):
            for key in (key for scope in request.scopes for key in self._tails.get((scope, position, digest), ())):
                conversation = self._by_key[key]
                if conversation.request.hints.session != request.hints.session:
                    continue
                equal = _equal_blocks(conversation.request.blocks, request.blocks)
                if equal >= best_equal:
                    best, best_equal = conversation, equal
        return best

    def _by_name(self, request: RequestFingerprint) -> ConversationMatch | None:
        """The session's first conversation, continued with another history because it was compacted or edited.

        Does not match while that conversation waits for a response, nor by a prompt cache key: then a parallel
        conversation is more likely.
        """
        first = self._branched_from(request)
        conversation = None if first is None or not request.hints.is_strong else self._by_key[first]
        if conversation is None or conversation.open_requests or conversation.request.head != request.head:
            return None
        return ConversationMatch(conversation.key, False, 0.8, f"same {request.hints.source} and same head")

    def _branched_from(self, request: RequestFingerprint) -> int | None:
        """The conversation this one branched from: the oldest of the same session (for sub-agents and branches)."""
        if request.hints.session is None:
            return None
        keys = (
            key for scope in request.scopes for key in self._by_session.get((scope, request.hints.session or ""), ())
        )
        return min(keys, default=None)

    def _index(self, conversation: _Conversation[T]) -> None:
        self._unindex(conversation)
        self._index_session(conversation)
        blocks = conversation.request.blocks
        for position in range(max(0, len(blocks) - NEWEST_BLOCKS), len(blocks)):
            name = (conversation.request.scope, position, blocks[position])
            keys = self._tails.setdefault(name, [])
            keys.append(conversation.key)
            # Thousands of conversations may share a block; the most recent ones are the likely matches.
            del keys[:-CANDIDATES_MAX]
            conversation.tail_keys.append(name)

    def _index_session(self, conversation: _Conversation[T]) -> None:
        session = conversation.request.hints.session
        named = None if session is None else (conversation.request.scope, session)
        if named != conversation.session_key:
            if conversation.session_key is not None:
                _remove_key(self._by_session, conversation.session_key, conversation.key)
            if named is not None:
                self._by_session.setdefault(named, []).append(conversation.key)
            conversation.session_key = named

    def _unindex(self, conversation: _Conversation[T]) -> None:
        for position in conversation.tail_keys:
            _remove_key(self._tails, position, conversation.key)
        conversation.tail_keys = []

    def _forget(self, key: int) -> None:
        conversation = self._by_key.pop(key)
        self._unindex(conversation)
        if conversation.session_key is not None:
            _remove_key(self._by_session, conversation.session_key, key)


def _remove_key(keys_of: dict[K, list[int]], name: K, key: int) -> None:
    keys = keys_of.get(name, [])
    if key in keys:
        keys.remove(key)
    if not keys:
        keys_of.pop(name, None)


def _shared_blocks(before: Sequence[str], now: Sequence[str]) -> int:
    pairs = enumerate(zip(before, now, strict=False))
    return next((index for index, (old, new) in pairs if old != new), min(len(before), len(now)))


def _equal_blocks(before: Sequence[str], now: Sequence[str]) -> int:
    """How many positions hold the same block."""
    return sum(old == new for old, new in zip(before, now, strict=False))


def decode_session_hints(body: bytes, headers: Headers) -> SessionHints:
    """Decodes only the members that hold hints. Raises msgspec's error if the body is not a JSON object."""
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return find_session_hints(
        {name: msgspec.json.decode(members[name]) for name in _MEMBERS if name in members}, headers
    )


def find_session_hints(body: Mapping[str, Json], headers: Headers) -> SessionHints:
    """Ids in the body take precedence over headers, which may be the same for a whole process."""
    user = _text(_member(body.get("metadata"), "user_id")) or _text(body.get("user"))
    previous = _text(body.get("previous_response_id"))
    session, source = _find_in_body(body, user) or _find_in_headers(headers) or (None, "")
    return SessionHints(session, source, previous, user)


def _find_in_body(body: Mapping[str, Json], user: str | None) -> tuple[str, str] | None:
    if session := _session_in_user_id(user or ""):
        return session, "metadata.user_id"
    for candidate, source in (
        (body.get("session_id"), "session_id"),
        (_member(body.get("metadata"), "session_id"), "metadata.session_id"),
        (_member(body.get("conversation"), "id") or body.get("conversation"), "conversation"),
        (body.get(CACHE_KEY), CACHE_KEY),
    ):
        if (value := _text(candidate)) and not (source == "session_id" and value.startswith(OWN_SESSION_PREFIX)):
            return value, source
    return None


def _session_in_user_id(user_id: str) -> str | None:
    """Claude Code puts its session id into the user id, as a suffix or as a JSON member."""
    if user_id.startswith("{"):
        try:
            members = msgspec.json.decode(user_id)
        except msgspec.MsgspecError:
            return None
        return _text(_member(members, "session_id"))
    match = _IN_USER_ID.search(user_id)
    return match["id"] if match else None


def _find_in_headers(headers: Headers) -> tuple[str, str] | None:
    for wanted in _HEADERS:
        for name, value in headers:
            if name == wanted and value:
                return value[:VALUE_CHARS_MAX].decode("latin-1"), f"the header {wanted.decode()}"
    return None


def _member(value: Json | None, name: str) -> Json | None:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: Json | None) -> str | None:
    return value[:VALUE_CHARS_MAX] if isinstance(value, str) and value else None
