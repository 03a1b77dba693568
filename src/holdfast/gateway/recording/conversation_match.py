"""Matches each request to the conversation it continues: by ids that clients send, else by its history.

A request contains its whole history, so the newest blocks of the previous request are in it at the same positions, and
the reply to that request follows them. That finds the conversation even if the first bytes, or the last ones, change
with every call, and tells apart conversations that began with the same words. The parent of a sub-agent is the
conversation in whose tool call the sub-agent's first message appears; the order of requests proves nothing.
"""

import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec

from holdfast.gateway.http.headers import Headers
from holdfast.providers.adapter import WireRequest
from holdfast.providers.json_splice import UNREADABLE, decode_json_or_none
from holdfast.types.blocks import Block, Json, Role, Text, is_thinking, parse_tool_call
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.reply import Reply

MATCHED_CONVERSATIONS_MAX = 1_000

# Several, because a client may change its last block with every call.
NEWEST_BLOCKS = 3
CANDIDATES_MAX = 8

# Replies of one conversation that are remembered: enough for parallel calls and retries.
REPLIES_MAX = 4
DELEGATED_TEXTS_MAX = 10_000

# Only the start of the system text: volatile lines usually come later.
HEAD_CHARS = 40
DIGEST_CHARS = 16

# Shorter texts in a tool call, such as paths and commands, may be the first message of an unrelated conversation.
DELEGATED_CHARS_MIN = 24
DELEGATED_TEXTS_PER_REPLY_MAX = 32
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
    restart, whose provider account is no longer known; the first request that continues one takes it over. `opening`
    has the texts of the first message, which for a sub-agent are those that its parent passed to a tool.
    """

    scope: str
    head: str
    blocks: tuple[str, ...]
    hints: SessionHints
    restored_scope: str = ""
    opening: tuple[str, ...] = ()

    @property
    def scopes(self) -> tuple[str, ...]:
        return (self.scope, self.restored_scope) if self.restored_scope else (self.scope,)


class ReplyFingerprint(msgspec.Struct, frozen=True):
    """A response as digests of its blocks, and of the texts that it passes to tools. `id` is the provider's."""

    id: str = ""
    blocks: frozenset[str] = frozenset()
    delegated: tuple[str, ...] = ()


class ConversationMatch(msgspec.Struct, frozen=True):
    """The matched conversation. `confidence` is from 0 to 1; `parent` is the conversation that delegated a new one.

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
        self.replies: list[frozenset[str]] = []
        self.reply_keys: list[tuple[str, str]] = []
        self.is_answered = False
        self.session_key: tuple[str, str] | None = None
        self.tail_keys: list[tuple[str, tuple[int, str]]] = []
        self.open_requests = 0


class _Comparison(msgspec.Struct, frozen=True, order=True):
    """How well a request continues a conversation; the greater comparison is the better match."""

    contains_reply: bool
    is_continuation: bool
    reply_share: float
    equal: int
    is_edited: bool
    is_shortened: bool
    key: int


class ConversationMatcher(Generic[T]):
    """Holds up to `conversations_max`; evicts the least recently used."""

    def __init__(self, *, conversations_max: int = MATCHED_CONVERSATIONS_MAX) -> None:
        self._max = conversations_max
        self._by_key: OrderedDict[int, _Conversation[T]] = OrderedDict()
        self._tails: dict[str, dict[tuple[int, str], list[int]]] = {}
        self._by_session: dict[tuple[str, str], list[int]] = {}
        self._replies: dict[tuple[str, str], int] = {}
        self._reply_blocks: dict[str, dict[str, list[int]]] = {}
        self._delegated: dict[tuple[str, str], int] = {}
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
        conversation.is_answered = False
        self._index(conversation)
        self._make_room()
        return match, conversation.state

    def restore(self, request: RequestFingerprint, state: T, reply_id: str, *, open_requests: int = 0) -> int:
        """Adds a conversation of an earlier process by its last request, whose scope is the restored one."""
        conversation = self._add(request, state)
        conversation.open_requests = open_requests
        self._index(conversation)
        if reply_id:
            self._replies[request.scope, reply_id] = conversation.key
        self._make_room()
        return conversation.key

    def _add(self, request: RequestFingerprint, state: T) -> "_Conversation[T]":
        conversation = _Conversation(self._next, request, state)
        self._by_key[conversation.key] = conversation
        self._next += 1
        return conversation

    def _make_room(self) -> None:
        while len(self._by_key) > self._max:
            self._forget(next(iter(self._by_key)))

    def end_request(self, key: int, reply: ReplyFingerprint | None) -> None:
        """A request ended; later ones contain its reply, or refer to it by id alone."""
        conversation = self._by_key.get(key)
        if conversation is None:
            return
        conversation.open_requests -= 1
        if reply is None:
            return
        scope = conversation.request.scope
        conversation.is_answered = True
        if reply.blocks:
            conversation.replies = [*conversation.replies, reply.blocks][-REPLIES_MAX:]
            self._index_replies(conversation)
        for text in reply.delegated:
            self._delegated[scope, text] = key
        while len(self._delegated) > DELEGATED_TEXTS_MAX:
            del self._delegated[next(iter(self._delegated))]
        if reply.id:
            self._replies[scope, reply.id] = key
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
        best = max((self._compare(other, request) for other in self._candidates(request)), default=None)
        if best is not None and best.is_continuation:
            key, reason = best.key, "it extends the previous request"
            if best.reply_share == 1.0:
                return ConversationMatch(key, False, 1.0, f"{reason} and contains its response")
            # A single shared block, such as a common first message, is weak evidence.
            return ConversationMatch(key, False, 1.0 if hints.session else 0.6 if best.equal == 1 else 0.95, reason)
        if best is not None and (best.is_edited or best.is_shortened):
            reason = "it contains the last response, without some earlier blocks"
            reason = reason if best.is_shortened else "it shares most blocks with the previous request"
            return ConversationMatch(best.key, False, 0.8, reason)
        parent = self._find_parent(request)
        if parent is not None:
            return ConversationMatch(self._next, True, 1.0, "its first message is in a tool call of its parent", parent)
        return self._by_name(request) or ConversationMatch(
            self._next,
            True,
            1.0 if hints.is_strong else 0.7,
            f"{hints.source}, with a new history" if hints.source else "it continues no known conversation",
        )

    def _candidates(self, request: RequestFingerprint) -> Iterator[_Conversation[T]]:
        """Conversations of the same session with one of their newest blocks, or a part of a reply, in this request.

        Thousands may begin with the same message; the id of a tool call in a reply leads to the right one.
        """
        placed, digests, keys = set(enumerate(request.blocks)), set(request.blocks), set[int]()
        for scope in request.scopes:
            tails, replies = self._tails.get(scope, {}), self._reply_blocks.get(scope, {})
            keys.update(key for name in tails.keys() & placed for key in tails[name])
            keys.update(key for digest in replies.keys() & digests for key in replies[digest])
        for key in sorted(keys):
            if self._by_key[key].request.hints.session == request.hints.session:
                yield self._by_key[key]

    def _compare(self, conversation: _Conversation[T], request: RequestFingerprint) -> "_Comparison":
        before, now = conversation.request.blocks, request.blocks
        equal = _equal_blocks(before, now)
        extends = equal == len(before)
        # Blocks after those of the previous request; its reply is among them if this request continues it.
        added = frozenset(now[len(before) :])
        reply_share = max((len(reply & added) / len(reply) for reply in conversation.replies), default=0.0)
        # A client without session ids that repeats a request while it is answered, or after that, starts another
        # conversation with the same words, as evaluations do. One that sends an id repeats its own request.
        is_pending_or_answered = conversation.open_requests > 0 or conversation.is_answered
        is_other = now == before and not request.hints.is_strong and is_pending_or_answered
        # Some clients leave out the tool calls of earlier turns. A branch does not contain the newest reply.
        is_shortened = (
            not extends
            and conversation.is_answered
            and now[:1] == before[:1]
            and request.head == conversation.request.head
            and any(reply <= frozenset(now) for reply in conversation.replies[-1:])
        )
        is_continuation = extends and not is_other
        return _Comparison(
            contains_reply=is_shortened or (is_continuation and reply_share == 1.0),
            is_continuation=is_continuation,
            reply_share=reply_share,
            equal=equal,
            # A conversation whose history was partly edited still grows; a shorter one is more likely a branch.
            is_edited=not extends and len(now) > len(before) and 2 * equal >= len(before),
            is_shortened=is_shortened,
            key=conversation.key,
        )

    def _by_name(self, request: RequestFingerprint) -> ConversationMatch | None:
        """The session's newest conversation with the same head, continued because its history was compacted or edited.

        Does not match while that conversation waits for a response, nor by a prompt cache key: then a parallel
        conversation is more likely.
        """
        if not request.hints.is_strong:
            return None
        for key in sorted(self._keys_of_session(request), reverse=True):
            conversation = self._by_key[key]
            if conversation.request.head == request.head and not conversation.open_requests:
                return ConversationMatch(key, False, 0.8, f"same {request.hints.source} and same head")
        return None

    def _keys_of_session(self, request: RequestFingerprint) -> Iterator[int]:
        for scope in request.scopes:
            yield from self._by_session.get((scope, request.hints.session or ""), ())

    def _find_parent(self, request: RequestFingerprint) -> int | None:
        """The conversation whose tool call contains this one's first message."""
        for text in request.opening:
            for scope in request.scopes:
                key = self._delegated.get((scope, text))
                if key in self._by_key:
                    return key
        return None

    def _index(self, conversation: _Conversation[T]) -> None:
        self._unindex(conversation)
        self._index_session(conversation)
        scope, blocks = conversation.request.scope, conversation.request.blocks
        tails = self._tails.setdefault(scope, {})
        for position in range(max(0, len(blocks) - NEWEST_BLOCKS), len(blocks)):
            name = (position, blocks[position])
            keys = tails.setdefault(name, [])
            keys.append(conversation.key)
            # Thousands of conversations may share a block; the most recent ones are the likely matches.
            del keys[:-CANDIDATES_MAX]
            conversation.tail_keys.append((scope, name))

    def _index_session(self, conversation: _Conversation[T]) -> None:
        session = conversation.request.hints.session
        named = None if session is None else (conversation.request.scope, session)
        if named != conversation.session_key:
            if conversation.session_key is not None:
                _remove_key(self._by_session, conversation.session_key, conversation.key)
            if named is not None:
                self._by_session.setdefault(named, []).append(conversation.key)
            conversation.session_key = named

    def _index_replies(self, conversation: _Conversation[T]) -> None:
        self._unindex_replies(conversation)
        scope = conversation.request.scope
        reply_blocks = self._reply_blocks.setdefault(scope, {})
        for digest in frozenset().union(*conversation.replies):
            keys = reply_blocks.setdefault(digest, [])
            keys.append(conversation.key)
            del keys[:-CANDIDATES_MAX]
            conversation.reply_keys.append((scope, digest))

    def _unindex_replies(self, conversation: _Conversation[T]) -> None:
        for scope, digest in conversation.reply_keys:
            _remove_scoped(self._reply_blocks, scope, digest, conversation.key)
        conversation.reply_keys = []

    def _unindex(self, conversation: _Conversation[T]) -> None:
        for scope, name in conversation.tail_keys:
            _remove_scoped(self._tails, scope, name, conversation.key)
        conversation.tail_keys = []

    def _forget(self, key: int) -> None:
        conversation = self._by_key.pop(key)
        self._unindex(conversation)
        self._unindex_replies(conversation)
        if conversation.session_key is not None:
            _remove_key(self._by_session, conversation.session_key, key)


def _remove_key(keys_of: dict[K, list[int]], name: K, key: int) -> None:
    keys = keys_of.get(name, [])
    if key in keys:
        keys.remove(key)
    if not keys:
        keys_of.pop(name, None)


def _remove_scoped(keys_of: dict[str, dict[K, list[int]]], scope: str, name: K, key: int) -> None:
    if scope in keys_of:
        _remove_key(keys_of[scope], name, key)
        if not keys_of[scope]:
            del keys_of[scope]


def _shared_blocks(before: Sequence[str], now: Sequence[str]) -> int:
    equal = list(map(operator.eq, before, now))
    return len(equal) if all(equal) else equal.index(False)


def _equal_blocks(before: Sequence[str], now: Sequence[str]) -> int:
    """How many positions hold the same block."""
    return sum(map(operator.eq, before, now))


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


def make_restored_scope(mount: str, key_id: str | None) -> str:
    """The scope of conversations whose provider account is unknown."""
    return f"{mount} by {key_id or 'anyone'}"


def describe_request(
    wire: WireRequest,
    body: bytes,
    headers: Headers,
    *,
    scope: str,
    restored_scope: str,
    previous_response_id: str = "",
) -> RequestFingerprint:
    """`previous_response_id` is the response that the request continues although its body no longer names it."""
    try:
        hints = decode_session_hints(body, headers)
    except UNREADABLE:
        hints = find_session_hints({}, headers)
    if previous_response_id:
        hints = msgspec.structs.replace(hints, previous_response_id=previous_response_id)
    if hints.session is not None:
        hints = msgspec.structs.replace(hints, session=short_digest(hints.session.encode("utf-8", "surrogatepass")))
    return RequestFingerprint(
        scope, _head_digest(wire), _block_digests(wire), hints, restored_scope, _opening_digests(wire)
    )


def describe_reply(reply: Reply) -> ReplyFingerprint:
    blocks = (_digest_block("assistant", block) for block in reply.content if not is_thinking(block))
    calls = (call for block in reply.content if (call := parse_tool_call(block)) is not None)
    delegated = tuple(_digest_text(text) for call in calls for text in _iter_long_texts(call.arguments_json))
    return ReplyFingerprint(reply.id, frozenset(blocks), delegated[:DELEGATED_TEXTS_PER_REPLY_MAX])


def _iter_long_texts(arguments_json: str) -> Iterator[str]:
    """All texts in the arguments of a call that are long enough to identify the conversation they were passed to."""
    values: list[object] = [decode_json_or_none(arguments_json)]
    while values:
        match values.pop():
            case str(text) if len(text) >= DELEGATED_CHARS_MIN:
                yield text
            case list(items):
                values += items
            case dict(members):
                values += members.values()
            case _:
                pass


def _opening_digests(wire: WireRequest) -> tuple[str, ...]:
    entries = wire.prompt.entries
    texts = (block.text for block in entries[0].content if isinstance(block, Text)) if entries else ()
    return tuple(_digest_text(text) for text in texts if len(text) >= DELEGATED_CHARS_MIN)


def _digest_text(text: str) -> str:
    return short_digest(text.strip().encode("utf-8", "surrogatepass"))


def short_digest(data: bytes) -> str:
    return sha256_hex(data)[:DIGEST_CHARS]


def _head_digest(wire: WireRequest) -> str:
    """Digest over what is stable even in a badly ordered prompt: model, tool names, start of the system text."""
    tools = sorted(tool.name for tool in wire.prompt.tools)
    texts = (text.text for segment in wire.prompt.segments for text in segment.system)
    return short_digest(msgspec.json.encode((wire.parameters.model, tools, next(texts, "")[:HEAD_CHARS])))


def _block_digests(wire: WireRequest) -> tuple[str, ...]:
    entries = wire.prompt.entries
    return tuple(_digest_block(entry.role, block) for entry in entries for block in entry.content)


def _digest_block(role: Role, block: Block) -> str:
    # Clients strip white space from a reply before they send it back, as aider does.
    content = block.text.strip() if isinstance(block, Text) else block
    return short_digest(msgspec.json.encode((role, content)))
