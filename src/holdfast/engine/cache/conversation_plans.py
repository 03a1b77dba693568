"""Plans the cache of conversations that other programs write: which one a request continues, and its breakpoints.

Requests share a tree: the root is a head (tools and system text), and every message is a node below the message before
it, found by the digest of its bytes. A call therefore decodes, encodes and counts only the messages that are new in it.
"""

import datetime
import hashlib
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import NamedTuple

import msgspec

from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.schema import Model, Price
from holdfast.engine.cache.message_tree import HeadNode, MessageNode, PingedReply, PlannedConversation, PromptOutline
from holdfast.engine.cache.shared_plans import SHARED_KEYS_MAX, SharedConversation, SharedPlans, make_conversation_key
from holdfast.events.log import Event
from holdfast.planning.adaptive_policy import plan_session_ping
from holdfast.planning.idle_times import WaitsFor
from holdfast.planning.keep_alive import PING_MARGIN_SECONDS
from holdfast.planning.learned import (
    ENDED_AFTER_SECONDS,
    NOTHING_LEARNED,
    CacheMemory,
    LearnedParameters,
    LearningScope,
    RequestRecord,
    combine_learned,
    distrust_anchor,
    keep_leading_blocks,
    learned_after_session,
    memory_after_call,
    memory_after_ping,
)
from holdfast.planning.plan import cache_write_rate, plan_cache
from holdfast.planning.policy import PingResult, PlanningMoment, WaitedFor
from holdfast.planning.ttl import is_guess
from holdfast.providers.adapter import Adapter
from holdfast.types.blocks import ToolResult
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import Breakpoint, HistoryEntry, Plan, Prompt, Segment, Stability, Ttl
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest, count_shared_blocks, extend_digest_chain
from holdfast.types.usage import Usage

# A node takes about half a kilobyte, so that the tree stays below 50 MB.
NODES_MAX = 100_000

# After how many changes of its head in a row a conversation is no longer cached beyond what stays.
HEAD_CHANGES_MIN = 2

# How many first messages are remembered with the head that they last followed.
OPENINGS_MAX = 10_000

# How many conversations may begin with one head and never continue before their first messages are no longer cached.
SINGLE_CALLS_MAX = 2

# Instructions of at least this size were written to be used more than once; shorter ones have to be seen twice.
SHARED_HEAD_TOKENS_MIN = 4_096

# How long after a ping was due another process sends it: half of the time until the entry expires.
TAKEOVER_SECONDS = PING_MARGIN_SECONDS / 2

# Multiples of the input rate (Anthropic, "Pricing"), for a model without a known price: a plan needs nothing else.
ASSUMED_PRICE = Price(
    valid_from=datetime.date(2026, 1, 1),
    input=Decimal(1),
    output=Decimal(5),
    cache_read=Decimal("0.1"),
    cache_write_5m=Decimal("1.25"),
    cache_write_1h=Decimal(2),
    cache_write_other=Decimal("1.25"),
)


class RestoredConversation(msgspec.Struct, frozen=True):
    """A conversation of an earlier process: the digests of its last request, and what the cache was known to hold."""

    digests: tuple[PrefixDigest, ...]
    memory: CacheMemory
    last_request: RequestRecord
    session_id: str = ""


class RawPrompt(msgspec.Struct, frozen=True):
    """A request to plan. `decode_head` and `decode_message` decode a part of it alone.

    `scope` separates what the provider's cache separates: the account, for one. Conversations of one `learning_scope`
    learn from each other. `head_digest` covers tools and system text, `message_digests` each message as received.
    """

    scope: str
    learning_scope: LearningScope
    head_digest: bytes
    message_digests: Sequence[bytes]
    has_tools: bool
    decode_head: Callable[[], Prompt]
    decode_message: Callable[[int], Prompt]


class DuePing(msgspec.Struct, frozen=True):
    """A ping that is worth its cost if the conversation is idle until then: the last request `with_reply`, or alone."""

    at: float
    ttl: Ttl
    reason: str
    with_reply: bool
    cost_usd: Decimal


class _Path(NamedTuple):
    """The nodes of a request, the deepest that was there before, and the conversation whose last request it extends."""

    nodes: list[MessageNode]
    shared: MessageNode
    extends: PlannedConversation | None


class PlannedCall(msgspec.Struct, frozen=True):
    """The plan of one request, and how to find the places of its breakpoints.

    `starts` holds the first block of each message; `blocks` are without their bytes. `is_limited`: the next call is not
    expected to repeat all blocks.
    """

    conversation: PlannedConversation
    plan: Plan
    record: RequestRecord
    starts: tuple[int, ...]
    digests: Sequence[PrefixDigest]
    tokens: Sequence[int]
    is_limited: bool
    blocks: Sequence[EncodedBlock] = ()

    @property
    def tokens_estimate(self) -> int:
        return sum(self.tokens)

    def tokens_upto(self, block: int) -> int:
        return sum(self.tokens[: block + 1])

    def locate_block(self, block: int) -> tuple[int, int] | None:
        """The message that holds the block and the block's number in it; None for a block of the head."""
        message = bisect_right(self.starts, block) - 1
        return (message, block - self.starts[message]) if message >= 0 else None


class ConversationPlans:
    """The conversations of a process, found again by the prompts that continue them. Thread-safe."""

    def __init__(self, *, nodes_max: int = NODES_MAX, shared: SharedPlans | None = None) -> None:
        """`shared` is what other processes know, and get to know from this one."""
        self._nodes_max = nodes_max
        self._shared = shared
        self._node_count = 0
        self._heads: dict[bytes, HeadNode] = {}
        self._conversations: OrderedDict[int, PlannedConversation] = OrderedDict()
        self._ended: OrderedDict[int, PlannedConversation] = OrderedDict()
        self._learned: dict[LearningScope, LearnedParameters] = {}
        self._learned_events: tuple[Event, ...] | None = None
        self._restored: dict[str, RestoredConversation] = {}
        self._openings: OrderedDict[tuple[str, bytes], tuple[HeadNode, int]] = OrderedDict()
        self._lock = threading.Lock()

    def restore(self, conversations: Iterable[RestoredConversation]) -> None:
        """Conversations of earlier processes are found by the digest of their last request when they go on."""
        for conversation in conversations:
            if conversation.digests:
                with self._lock:
                    self._restored[conversation.digests[-1].digest] = conversation

    def set_learned_events(self, events: tuple[Event, ...]) -> None:
        """What the store has of what conversations have learned; those of this process are among them, once ended."""
        with self._lock:
            self._learned_events = events
            self._learned.clear()

    def find_tool_order(self, adapter: Adapter, tools: Sequence[EncodedBlock]) -> list[int] | None:
        """The order in which a restored conversation listed these tools, by their numbers; None if none did."""
        with self._lock:
            chains = [restored.digests for restored in self._restored.values() if len(restored.digests) >= len(tools)]
        for chain in chains:
            order: list[int] = []
            for position in range(len(tools)):
                before, previous = (tools[order[-1]], chain[position - 1]) if order else (None, None)
                found = (
                    index
                    for index, tool in enumerate(tools)
                    if index not in order
                    and extend_digest_chain(previous, tool.layer, adapter.separator(before, tool) + tool.data)
                    == chain[position]
                )
                if (index := next(found, None)) is None:
                    break
                order.append(index)
            if len(order) == len(tools):
                return order
        return None

    def plan_call(self, adapter: Adapter, row: Model, prompt: RawPrompt, at: float) -> PlannedCall:
        """The plan of a request that is about to be sent. Raises `ProviderError` if it cannot be decoded."""
        with self._lock:
            path = self._walk(adapter, row, self._find_head(adapter, row, prompt), prompt)
            keys = self._list_shared_keys(path, prompt.learning_scope)
        # Without the lock, because the store may take its time.
        found = self._shared.find(tuple(keys)) if self._shared is not None and keys else None
        with self._lock:
            head = self._find_head(adapter, row, prompt)
            path = self._walk(adapter, row, head, prompt) if keys else path
            if found is not None:
                path = self._adopt(head, path, prompt.learning_scope, found[1], position=keys[found[0]])
            elif path.extends is None and path.shared is head:
                path = self._resume(head, path, prompt.learning_scope)
            self._compare_heads(head, path, prompt.scope)
            conversation = self._continue(head, path, prompt.learning_scope, at)
            call = self._plan(row, conversation, path, prompt, at=at)
            self._register(conversation, path.nodes, call)
        if self._shared is not None and found is not None and call.digests:
            # The process that had the call before must not keep the conversation alive, as long as this one does.
            key = make_conversation_key(prompt.learning_scope, call.digests[-1].digest)
            self._shared.put(found[0], msgspec.structs.replace(found[1], is_continued=True, next=key), at=at)
        return call

    def mark_sent(self, call: PlannedCall, breakpoints: tuple[Breakpoint, ...]) -> PlannedCall:
        """The call as it is sent: the client's own breakpoints may have taken the place of planned ones."""
        record = msgspec.structs.replace(call.record, breakpoints=breakpoints)
        with self._lock:
            call.conversation.last_request = record
        return msgspec.structs.replace(call, record=record)

    def complete_call(self, call: PlannedCall, usage: Usage) -> None:
        with self._lock:
            conversation = call.conversation
            conversation.count_implicit_reads(call.record.at, usage.cache_read)
            conversation.memory = memory_after_call(conversation.memory, call.record, usage)
            self._share(call)

    def fail_call(self, call: PlannedCall) -> None:
        """The request failed: it may or may not have refreshed the cache."""
        with self._lock:
            call.conversation.memory = distrust_anchor(call.conversation.memory)

    def plan_ping(self, call: PlannedCall, row: Model, waits_for: WaitsFor) -> DuePing | None:
        """The next ping after this call; None if none is expected to pay, or another call has followed."""
        with self._lock:
            conversation, record, memory = call.conversation, call.record, call.conversation.memory
            is_newest = conversation.last_request is record and memory.last_at == record.at
            return _plan_ping(call, memory, row, waits_for) if is_newest else None

    def plan_takeover(self, call: PlannedCall, row: Model, waits_for: WaitsFor) -> DuePing | None:
        """The next ping of the process that answered the request after this one, to be sent here if that one has died.

        It repeats the request of this call, which the newest request has read: all but the last turn is kept alive.
        None if no ping is expected to pay, if the conversation has gone on, or if what this request can read expires
        before the other ping is due.
        """
        after = self._find_shared(call)
        after = self._shared.find((after[1].next,)) if self._shared is not None and after and after[1].next else None
        if after is None or after[1].is_continued:
            return None
        newest, own = after[1].memory, call.conversation.memory
        own = msgspec.structs.replace(own, used_at=newest.used_at, last_at=newest.last_at)
        theirs, ours = (_plan_ping(call, memory, row, waits_for) for memory in (newest, own))
        if theirs is None or ours is None or abs(theirs.at - ours.at) >= PING_MARGIN_SECONDS:
            return None
        return msgspec.structs.replace(ours, at=theirs.at + TAKEOVER_SECONDS, with_reply=False)

    def is_newest_anywhere(self, call: PlannedCall) -> bool:
        """Whether no process on the store has answered this request again, or a later one of its conversation.

        False if the store does not say so: a ping after a later call would be paid for nothing.
        """
        if self._shared is None:
            return True
        found = self._find_shared(call)
        # Two calls later the row is gone; a process that answered the request again has put its own in place of it.
        return found is not None and not found[1].is_continued and found[1].last_request.at == call.record.at

    def _find_shared(self, call: PlannedCall) -> tuple[str, SharedConversation] | None:
        key = make_conversation_key(call.conversation.learning_scope, call.digests[-1].digest)
        return self._shared.find((key,)) if self._shared is not None else None

    def complete_ping(
        self, call: PlannedCall, ping: PingResult, reply: Sequence[EncodedBlock], adapter: Adapter
    ) -> None:
        """A ping after this call was answered; it held the blocks of the `reply`, if any."""
        with self._lock:
            conversation, memory = call.conversation, call.conversation.memory
            if memory.last_at != call.record.at or conversation.tail is None:
                return
            if reply:
                before = conversation.pinged.memory_without if conversation.pinged else memory
                node = MessageNode(conversation.tail, None)
                node.fill(adapter, reply, 1.0)
                refreshed = msgspec.structs.replace(before, used_at=ping.at)
                conversation.pinged = PingedReply(node.count, node.digests[-1].digest, refreshed)
            conversation.memory = memory_after_ping(memory, ping)
            if not reply:
                # Whether the reply that a ping wrote can be read is seen in the next request, where this one is known.
                self._share(call)

    def _share(self, call: PlannedCall) -> None:
        conversation, record = call.conversation, call.record
        if self._shared is None or conversation.last_request is not record or not call.digests:
            return
        key = make_conversation_key(conversation.learning_scope, call.digests[-1].digest)
        before, newest = conversation.shared_keys
        # The request before stays: a client that repeats this one continues that.
        replaces = before if key != newest else ""
        before = newest if key != newest else before
        conversation.shared_keys = before, key
        # With the time, because conversations that begin with the same words are different ones.
        conversation.shared_id = conversation.shared_id or sha256_hex(f"{key} {record.at!r}".encode())[:32]
        state = SharedConversation(
            conversation.memory, record, conversation.tokens_estimate, before, id=conversation.shared_id
        )
        self._shared.put(key, state, at=record.at, replaces=replaces)

    def _list_shared_keys(self, path: _Path, scope: LearningScope) -> dict[str, int]:
        """The requests that this one may continue and this process does not know, longest first, by their positions.

        None unless a reply is new that followed no request known here: then another process had that call.
        """
        if self._shared is None:
            return {}
        known = path.extends.tail if path.extends is not None else path.shared
        count = next((count for count, node in enumerate(reversed(path.nodes)) if node is known), 0)
        replies = sum(node.is_reply for node in path.nodes[len(path.nodes) - count :])
        if replies <= (path.extends is not None):
            return {}
        positions = range(len(path.nodes) - 1, max(len(path.nodes) - 1 - min(count, SHARED_KEYS_MAX), 0), -1)
        ends = ((position, path.nodes[position].digests) for position in positions)
        return {make_conversation_key(scope, digests[-1].digest): position for position, digests in ends if digests}

    def _adopt(
        self, head: HeadNode, path: _Path, scope: LearningScope, state: SharedConversation, *, position: int
    ) -> _Path:
        """The path with the conversation as another process knew it after the request that ends at the position."""
        conversation = path.extends
        if conversation is None:
            conversation = PlannedConversation(head, scope, self._find_learned(scope), state.memory)
            head.opened += 1
        conversation.memory, conversation.last_request = state.memory, state.last_request
        conversation.shared_id = state.id
        conversation.tokens_estimate, conversation.pinged = state.tokens_estimate, None
        nodes = path.nodes
        conversation.shared_keys = state.before, make_conversation_key(scope, nodes[position].digests[-1].digest)
        for node in nodes[1 : position + 1]:
            node.owner = node.owner or conversation
        return _Path(nodes, nodes[position], conversation)

    def _find_head(self, adapter: Adapter, row: Model, prompt: RawPrompt) -> HeadNode:
        key = hashlib.sha256(b"\0".join((prompt.scope.encode(), row.id.encode(), prompt.head_digest))).digest()
        head = self._heads.get(key)
        if head is None:
            head = HeadNode(key)
            blocks = [block for segment in prompt.decode_head().segments for block in adapter.encode_segment(segment)]
            head.fill(adapter, blocks, row.tokens_factor)
            self._heads[key] = head
            self._node_count += 1
        return head

    def _walk(self, adapter: Adapter, row: Model, head: HeadNode, prompt: RawPrompt) -> _Path:
        """The path of the request; its new messages are decoded, encoded and counted."""
        nodes: list[MessageNode] = [head]
        shared: MessageNode = head
        tail_owner: PlannedConversation | None = None
        is_known = True
        for index, raw_digest in enumerate(prompt.message_digests):
            parent = nodes[-1]
            node = parent.by_raw.get(raw_digest)
            if node is None:
                node = MessageNode(parent, None)
                entries = prompt.decode_message(index).entries
                blocks = adapter.encode_segment(Segment("history", Stability.GROWING, "messages", entries=entries))
                node.fill(adapter, blocks, row.tokens_factor)
                node.is_tool_result = _holds_tool_result(entries)
                if parent is head:
                    node.content_digest = hashlib.sha256(b"".join(block.data for block in blocks)).digest()
                # The same message in other bytes, such as with another breakpoint, is the same node.
                chain = node.digests[-1].digest if node.digests else ""
                node = parent.by_chain.setdefault(chain, node)
                parent.by_raw[raw_digest] = node
                self._node_count += 1
            is_known = is_known and (node.owner is not None)
            if is_known:
                shared, tail_owner = node, node.tail_of or tail_owner
            nodes.append(node)
        return _Path(nodes, shared, tail_owner)

    def _resume(self, head: HeadNode, path: _Path, scope: LearningScope) -> _Path:
        """The path with the restored conversation that the request extends, if there is one."""
        nodes = path.nodes
        for position in range(len(nodes) - 1, 0, -1):
            digests = nodes[position].digests
            restored = self._restored.pop(digests[-1].digest, None) if digests else None
            if restored is not None:
                learned = self._find_learned(scope, session_id=restored.session_id)
                conversation = PlannedConversation(head, scope, learned, restored.memory)
                conversation.last_request = restored.last_request
                head.opened += 1
                for node in nodes[1 : position + 1]:
                    node.owner = node.owner or conversation
                return _Path(nodes, nodes[position], conversation)
        return path

    def _compare_heads(self, head: HeadNode, path: _Path, scope: str) -> None:
        """Recognises a client that changes its system text in every call, such as by a clock at its start."""
        opening = (scope, path.nodes[1].content_digest)
        before, changes = self._openings.get(opening, (head, 0))
        if before is not head and len(path.nodes) > 2:
            # One change may be a tool that was added; a client that changes its head again will go on with it.
            changes = changes + 1 if not before.continued else 1
            if changes >= HEAD_CHANGES_MIN and not head.opened:
                head.kept_blocks = count_shared_blocks(before.digests, head.digests)
        elif before is head:
            changes = 0
        self._openings[opening] = head, changes
        self._openings.move_to_end(opening)
        while len(self._openings) > OPENINGS_MAX:
            self._openings.popitem(last=False)

    def _continue(self, head: HeadNode, path: _Path, scope: LearningScope, at: float) -> PlannedConversation:
        """The conversation that the request belongs to: one that it extends, a branch of another, or a new one."""
        shared, tail_owner = path.shared, path.extends
        if tail_owner is not None:
            tail_owner.rewrites = False
            if not tail_owner.is_continued:
                tail_owner.is_continued = True
                head.continued += 1
            return tail_owner
        learned = self._learn_from_ended(scope, at)
        if shared.owner is None:
            head.opened += 1
            return PlannedConversation(head, scope, learned, CacheMemory())
        source = shared.owner
        tokens = _estimate_prefix_tokens(source, shared)
        memory = keep_leading_blocks(source.memory, source.last_request, blocks=shared.count, tokens=tokens)
        branch = PlannedConversation(head, scope, source.learned, memory)
        # What the last call wrote after `shared` is wasted, unless others continue it.
        branch.rewrites = source.rewrites or not source.is_continued
        return branch

    def _plan(
        self, row: Model, conversation: PlannedConversation, path: _Path, prompt: RawPrompt, *, at: float
    ) -> PlannedCall:
        nodes = path.nodes
        memory = conversation.memory = _settle_ping(conversation, nodes)
        waited_for: WaitedFor = "start" if not memory.calls else "tool" if nodes[-1].is_tool_result else "user"
        blocks_max = self._cacheable_blocks(row, conversation, prompt, path)
        outline = PromptOutline(nodes, blocks_max)
        idle_seconds = None if memory.last_at is None else at - memory.last_at
        price = price_at(row, utc_date(at), outline.tokens_total) if row.prices else ASSUMED_PRICE
        planning = PlanningMoment(outline, row.cache, price, at, idle_seconds, waited_for)
        # Unlike a session, a client has an alternative: its own breakpoints, which must not be cheaper.
        ttl: Ttl | None = "5m" if is_guess(memory, conversation.learned) else None
        plan = plan_cache(planning, memory, conversation.learned, keep_small=not memory.blocks, ttl=ttl)
        record = RequestRecord(at, plan.breakpoints, len(outline.blocks), waited_for, plan.floor_tokens)
        return PlannedCall(
            conversation,
            plan,
            record,
            starts=tuple(node.count - len(node.blocks) for node in nodes[1:]),
            digests=outline.digests,
            tokens=outline.tokens,
            is_limited=blocks_max is not None,
            blocks=outline.blocks,
        )

    def _cacheable_blocks(
        self, row: Model, conversation: PlannedConversation, prompt: RawPrompt, path: _Path
    ) -> int | None:
        """How many leading blocks the next call is expected to repeat; None if all of them."""
        head = conversation.head
        if conversation.rewrites:
            return path.shared.count
        if head.kept_blocks is not None and path.extends is None:
            return head.kept_blocks
        if path.extends is not None or head.continued or path.shared is not head:
            return None
        is_single = len(prompt.message_digests) <= 2
        if prompt.has_tools and (head.opened == 1 or (is_single and head.opened <= SINGLE_CALLS_MAX)):
            return None
        # Others began with this head and did not go on, or there are no tools: the client may ask single questions, or
        # write all its messages again each time. What it repeats is seen in the next call; its head may be shared.
        is_shared = head.opened > 1 or not is_single or sum(head.tokens) >= SHARED_HEAD_TOKENS_MIN
        # Where the provider writes the end of every prompt by itself, an entry for its head costs nothing.
        is_free = row.cache.kind == "hybrid"
        return head.count if is_shared or is_free else 0

    def _register(self, conversation: PlannedConversation, nodes: Sequence[MessageNode], call: PlannedCall) -> None:
        if conversation.tail is not None:
            conversation.tail.tail_of = None
        conversation.tail, conversation.last_request = nodes[-1], call.record
        nodes[-1].tail_of = conversation
        conversation.tokens_estimate = call.tokens_estimate
        for node in reversed(nodes[1:]):
            if node.owner is not None:
                break
            node.owner = conversation
        self._ended.pop(id(conversation), None)
        self._conversations[id(conversation)] = conversation
        self._conversations.move_to_end(id(conversation))
        while self._node_count > self._nodes_max and len(self._conversations) + len(self._ended) > 1:
            oldest = self._ended or self._conversations
            self._forget(oldest.popitem(last=False)[1])

    def _forget(self, conversation: PlannedConversation) -> None:
        """Free the nodes that no other conversation needs."""
        node = conversation.tail
        if node is not None and node.tail_of is conversation:
            node.tail_of = None
        while node is not None and node.parent is not None and not node.by_raw and node.tail_of is None:
            parent = node.parent
            aliases = [digest for digest, child in parent.by_raw.items() if child is node]
            for digest in aliases:
                del parent.by_raw[digest]
            parent.by_chain.pop(node.digests[-1].digest if node.digests else "", None)
            self._node_count -= len(aliases)
            node = parent
        head = conversation.head
        if not head.by_raw and self._heads.pop(head.key, None) is not None:
            self._node_count -= 1

    def _learn_from_ended(self, scope: LearningScope, at: float) -> LearnedParameters:
        """What a new conversation starts with: what those that ended before it have learned."""
        for key, conversation in tuple(self._conversations.items()):
            last_at = conversation.last_request.at if conversation.last_request else at
            if at - last_at <= ENDED_AFTER_SECONDS:
                break
            # In the order of their last calls: all that follow were used later.
            del self._conversations[key]
            self._ended[key] = conversation
            if not conversation.is_learned and self._learned_events is None:
                conversation.is_learned = True
                learned = self._learned.get(conversation.learning_scope, NOTHING_LEARNED)
                self._learned[conversation.learning_scope] = learned_after_session(learned, conversation.memory)
        return self._find_learned(scope)

    def _find_learned(self, scope: LearningScope, *, session_id: str = "") -> LearnedParameters:
        """What others than the session have learned: in the store, or without one in this process."""
        if self._learned_events is None:
            return self._learned.get(scope, NOTHING_LEARNED)
        if session_id:
            return combine_learned(self._learned_events, scope, session_id=session_id)
        if scope not in self._learned:
            self._learned[scope] = combine_learned(self._learned_events, scope)
        return self._learned[scope]


def _estimate_prefix_tokens(source: PlannedConversation, shared: MessageNode) -> int:
    """The tokens up to a node, scaled from our estimates to the size that the provider reported."""
    estimated = sum(sum(node.tokens) for node in shared.iter_upwards())
    reported = source.memory.tail_tokens
    return round(estimated * reported / source.tokens_estimate) if source.tokens_estimate else estimated


def _settle_ping(conversation: PlannedConversation, nodes: Sequence[MessageNode]) -> CacheMemory:
    """The memory before a request: what a ping wrote of the reply can be read only if the request repeats the reply."""
    pinged, conversation.pinged = conversation.pinged, None
    if pinged is None:
        return conversation.memory
    ends = {node.count: node.digests[-1].digest for node in nodes if node.digests}
    return conversation.memory if ends.get(pinged.blocks) == pinged.digest else pinged.memory_without


def _plan_ping(call: PlannedCall, memory: CacheMemory, row: Model, waits_for: WaitsFor) -> DuePing | None:
    """The ping after a call, by what is known of the cache; None if none is expected to pay."""
    learned, record = call.conversation.learned, call.record
    if call.is_limited or memory.tail_block is None or is_guess(memory, learned):
        return None
    if not row.prices or memory.used_at is None or not {"5m", "1h"} <= row.cache.ttls_seconds.keys():
        return None
    price = price_at(row, utc_date(memory.used_at), memory.tail_tokens)
    ping = plan_session_ping(memory, learned, price, waits_for)
    if ping is None:
        return None
    is_repeated = memory.blocks == record.blocks and ping.ttl in ("5m", record.breakpoints[-1].ttl)
    # A ping reads what is cached, and one with the reply writes that.
    written = 0 if is_repeated else cache_write_rate(ping.ttl, price) * memory.reply_tokens
    cost = (price.cache_read * memory.tail_tokens + written) / 1_000_000
    return DuePing(memory.used_at + ping.after_seconds, ping.ttl, ping.reason, not is_repeated, cost)


def _holds_tool_result(entries: Sequence[HistoryEntry]) -> bool:
    return any(isinstance(block, ToolResult) for entry in entries for block in entry.content)
