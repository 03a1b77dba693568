"""Matches each request to the conversation it continues: by ids that clients send, else by its history.

A request contains its whole history, so the newest blocks of the previous request are in it at the same positions, and
the reply to that request follows them. That finds the conversation even if the first bytes, or the last ones, change
with every call, and tells apart conversations that began with the same words. The parent of a sub-agent is the
conversation in whose tool call the sub-agent's first message appears; the order of requests proves nothing.
"""

import operator
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from holdfast.events.conversation_keys import NEWEST_BLOCKS
from holdfast.events.payloads.calls import ConversationTrace, ReplyTrace
from holdfast.gateway.recording.fingerprint import ReplyFingerprint, RequestFingerprint

MATCHED_CONVERSATIONS_MAX = 5_000

# Conversations that are not in memory but can still be matched, and are then read from the log: about 2 KB each.
EVICTED_CONVERSATIONS_MAX = 10_000
CANDIDATES_MAX = 8

# Replies of one conversation that are remembered: enough for parallel calls and retries.
REPLIES_MAX = 4
DELEGATED_TEXTS_MAX = 10_000

T = TypeVar("T")
K = TypeVar("K")


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


class EvictableStates(Protocol[T]):
    """What a matcher asks of the caller whose states take most of the memory."""

    def evict(self, state: T) -> str:
        """Releases a state; returns the name under which it can be restored, or "" if it cannot."""

    def restore(self, name: str) -> tuple[tuple[str, ...], T] | None:
        """The blocks of the conversation's newest request, and its state; None if it is gone."""


class _Conversation(Generic[T]):
    """`request` is the newest one, `state` the caller's; the rest is for the indexes in Conversations.

    Of an evicted conversation, `request` has no blocks, and `evicted_as` is its name in the place of the state.
    """

    def __init__(self, key: int, request: RequestFingerprint, state: T) -> None:
        self.evicted_as = ""
        self.key = key
        self.request = request
        self.state: T | None = state
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
    """Holds up to `conversations_max`; evicts the least recently used.

    With `states`, an evicted conversation is restored when a request may continue it.
    """

    def __init__(
        self,
        *,
        conversations_max: int = MATCHED_CONVERSATIONS_MAX,
        states: EvictableStates[T] | None = None,
        evicted_max: int = EVICTED_CONVERSATIONS_MAX,
    ) -> None:
        self._max, self._states, self._evicted_max = conversations_max, states, evicted_max
        self._evicted: OrderedDict[int, _Conversation[T]] = OrderedDict()
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
            state = make_state(parent_state)
            conversation = self._add(request, state)
        else:
            conversation = self._by_key[match.key]
            self._by_key.move_to_end(match.key)
            match = msgspec.structs.replace(
                match, shared_blocks=_shared_blocks(conversation.request.blocks, request.blocks)
            )
            conversation.request = request
            assert conversation.state is not None
            state = conversation.state
        conversation.open_requests += 1
        conversation.is_answered = False
        self._index(conversation)
        self._make_room()
        return match, state

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
            self.evict_oldest()

    def evict_oldest(self) -> bool:
        """Evicts the conversation that was idle for longest; false if none can be, because all wait for a response."""
        idle = (key for key, other in self._by_key.items() if not other.open_requests or self._states is None)
        key = next(idle, None)
        if key is None and len(self._by_key) > self._max:
            key = next(iter(self._by_key))
        if key is None:
            return False
        conversation = self._by_key[key]
        name = ""
        if self._states is not None and conversation.state is not None:
            name = self._states.evict(conversation.state)
        # A call that is under way would be recorded beside its restored conversation.
        if not name or conversation.open_requests:
            self._forget(key)
            return True
        del self._by_key[key]
        conversation.evicted_as, conversation.state = name, None
        conversation.request = msgspec.structs.replace(conversation.request, blocks=())
        self._evicted[key] = conversation
        while len(self._evicted) > self._evicted_max:
            self._forget(next(iter(self._evicted)))
        return True

    def find_state(self, key: int) -> T | None:
        """The state of a conversation, restored if it was evicted; None if it is gone."""
        conversation = self._get(key)
        return None if conversation is None else conversation.state

    def _get(self, key: int) -> "_Conversation[T] | None":
        """The conversation, restored if it was evicted."""
        conversation = self._evicted.pop(key, None)
        if conversation is not None and self._states is not None:
            restored = self._states.restore(conversation.evicted_as)
            if restored is None:
                self._evicted[key] = conversation
                self._forget(key)
                return None
            blocks, conversation.state = restored
            conversation.request = msgspec.structs.replace(conversation.request, blocks=blocks)
            self._by_key[key] = conversation
        return self._by_key.get(key)

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
            conversation.replies = [*conversation.replies, frozenset(reply.blocks)][-REPLIES_MAX:]
            self._index_replies(conversation)
        self._index_delegated(scope, reply.delegated, key)
        if reply.id:
            self._replies[scope, reply.id] = key
            # Sixteen responses per conversation on average; older ones are found by history instead.
            while len(self._replies) > 16 * self._max:
                del self._replies[next(iter(self._replies))]

    def _index_delegated(self, scope: str, texts: Sequence[str], key: int) -> None:
        for text in texts:
            self._delegated[scope, text] = key
        while len(self._delegated) > DELEGATED_TEXTS_MAX:
            del self._delegated[next(iter(self._delegated))]

    def update(
        self,
        key: int,
        request: RequestFingerprint,
        replies: Sequence[ReplyTrace],
        *,
        open_requests: int,
        is_answered: bool,
    ) -> None:
        """Another process has continued a conversation: its last request, newest replies, and calls without a reply."""
        conversation = self._by_key[key]
        conversation.request, conversation.open_requests = request, open_requests
        conversation.replies = [frozenset(reply.blocks) for reply in replies if reply.blocks]
        conversation.is_answered = is_answered
        self._index(conversation)
        self._index_replies(conversation)
        self._index_delegated(request.scope, [text for reply in replies for text in reply.delegated], key)

    def follows_unknown_reply(self, request: RequestFingerprint) -> bool:
        """Whether the request continues a reply that is in no conversation here, or repeats a request in progress."""
        previous, newest = request.hints.previous_response_id, request.newest_reply
        if previous is not None:
            return not any((scope, previous) in self._replies for scope in request.scopes)
        if not newest:
            return False
        end = request.reply_start
        for conversation in self._candidates(request):
            # The same short reply may be in many conversations that begin with the same head.
            blocks = conversation.request.blocks
            is_contained = end < len(blocks) and blocks[: end + 1] == request.blocks[: end + 1]
            is_next = blocks == request.blocks[:end] and any(newest in reply for reply in conversation.replies)
            if is_contained or is_next:
                is_repeated = blocks == request.blocks and conversation.open_requests > 0
                return is_repeated and not request.hints.is_strong
        return True

    def _match(self, request: RequestFingerprint) -> ConversationMatch:
        hints = request.hints
        if hints.previous_response_id is not None:
            keys = (self._replies.get((scope, hints.previous_response_id)) for scope in request.scopes)
            key = next((candidate for candidate in keys if candidate is not None), None)
            if key is not None and self._get(key) is not None:
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
        keys = set[int]()
        for scope in request.scopes:
            tails, replies = self._tails.get(scope), self._reply_blocks.get(scope)
            for place in enumerate(request.blocks):
                if tails is not None and place in tails:
                    keys.update(tails[place])
                if replies is not None and place[1] in replies:
                    keys.update(replies[place[1]])
        for key in sorted(keys):
            known = self._by_key.get(key) or self._evicted[key]
            if known.request.hints.session == request.hints.session:
                conversation = self._get(key)
                if conversation is not None:
                    yield conversation

    def _compare(self, conversation: _Conversation[T], request: RequestFingerprint) -> "_Comparison":
        before, now = conversation.request.blocks, request.blocks
        equal = _equal_blocks(before, now)
        extends = equal == len(before)
        # Blocks after those of the previous request; its reply is among them if this request continues it.
        added = frozenset(now[len(before) :])
        reply_share = max((len(reply & added) / len(reply) for reply in conversation.replies), default=0.0)
        # A client without session ids that repeats a request while it is answered, or after that, starts another
        # conversation with the same words, as evaluations do. One that sends an id repeats its own request.
        # After a reply it is its own history that is repeated, because the answer did not arrive.
        is_answered = conversation.is_answered and not request.newest_reply
        is_pending_or_answered = conversation.open_requests > 0 or is_answered
        is_other = now == before and not request.hints.is_strong and is_pending_or_answered
        # Some clients leave out the tool calls of earlier turns. A branch does not contain the newest reply.
        is_shortened = (
            not extends
            and conversation.is_answered
            and now[:1] == before[:1]
            and request.head == conversation.request.head
            and any(reply <= frozenset(now) for reply in conversation.replies[-1:])
        )
        # Recorded late, by a replica that died and came back; without a reply it could be anybody's.
        is_late = bool(request.newest_reply) and request.at < conversation.request.at and now == before[: len(now)]
        is_continuation = (extends and not is_other) or is_late
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
            conversation = self._by_key.get(key) or self._evicted[key]
            is_same = conversation.request.head == request.head and not conversation.open_requests
            if is_same and self._get(key) is not None:
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
                if key is not None and self._get(key) is not None:
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
        conversation = self._by_key.pop(key, None) or self._evicted.pop(key)
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


def trace_request(mount: str, request: RequestFingerprint, match: ConversationMatch) -> ConversationTrace:
    """What finds the conversation again after a restart."""
    return ConversationTrace(
        mount,
        request.head,
        match.shared_blocks,
        request.blocks[match.shared_blocks :],
        request.hints.session,
        request.hints.source,
    )
