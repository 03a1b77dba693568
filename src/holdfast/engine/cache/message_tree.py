"""The tree of messages that requests share, the conversations in it, and the outline of one request."""

import functools
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.catalog.token_count import count_block_tokens
from holdfast.planning.learned import NO_IMPLICIT_READS, CacheMemory, LearnedParameters, LearningScope, RequestRecord
from holdfast.providers.adapter import Adapter
from holdfast.types.prompt import PromptSection
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest, extend_digest_chain

# The starts that separators compare with are shorter.
CONTAINER_START_BYTES_MAX = 64
TOOL_BLOCK_STARTS = (b'{"type":"tool_use"', b'{"type":"tool_result"')


class MessageNode:
    """A message after all those before it, or a head; `count` is the number of blocks up to and including it."""

    __slots__ = (
        "blocks",
        "by_chain",
        "by_raw",
        "content_digest",
        "count",
        "digests",
        "end",
        "is_tool_result",
        "owner",
        "parent",
        "tail_of",
        "tokens",
    )

    def __init__(self, parent: "MessageNode | None", owner: "PlannedConversation | None") -> None:
        self.parent = parent
        self.owner = owner
        self.tail_of: PlannedConversation | None = None
        self.by_raw: dict[bytes, MessageNode] = {}
        self.by_chain: dict[str, MessageNode] = {}
        self.blocks: tuple[EncodedBlock, ...] = ()
        self.end: EncodedBlock | None = parent.end if parent else None
        self.digests: tuple[PrefixDigest, ...] = ()
        self.tokens: tuple[int, ...] = ()
        self.count: int = parent.count if parent else 0
        self.is_tool_result = False
        self.content_digest = b""

    @property
    def last_digest(self) -> PrefixDigest | None:
        return next((node.digests[-1] for node in self.iter_upwards() if node.digests), None)

    @property
    def is_reply(self) -> bool:
        return bool(self.blocks) and self.blocks[0].role == "assistant"

    def iter_upwards(self) -> "Iterator[MessageNode]":
        node: MessageNode | None = self
        while node is not None:
            yield node
            node = node.parent

    def fill(self, adapter: Adapter, blocks: Sequence[EncodedBlock], factor: float) -> None:
        """Count and chain the blocks; their bytes are not kept."""
        before, previous = self.end, self.parent.last_digest if self.parent else None
        kept, digests, tokens = [], [], []
        for block in blocks:
            previous = extend_digest_chain(previous, block.layer, adapter.separator(before, block) + block.data)
            digests.append(previous)
            tokens.append(count_block_tokens(block.container_start + block.data, factor))
            kept.append(_without_data(block))
            before = block
        if blocks:
            self.end = _keep_end(blocks[-1])
        self.blocks, self.digests, self.tokens = tuple(kept), tuple(digests), tuple(tokens)
        self.count += len(kept)


class HeadNode(MessageNode):
    """`opened` conversations began with this head, `continued` of them had a second call.

    `kept_blocks` is set if it took the place of another head in the middle of a conversation: the blocks of both.
    `uncached_calls` read nothing from the implicit cache; `uncached_span` has the times of the first and the last of
    them. `implicit_reads` are those of the others.
    """

    __slots__ = ("continued", "implicit_reads", "kept_blocks", "key", "opened", "uncached_calls", "uncached_span")

    def __init__(self, key: bytes) -> None:
        super().__init__(None, None)
        self.key = key
        self.opened = 0
        self.continued = 0
        self.kept_blocks: int | None = None
        self.uncached_calls = 0
        self.uncached_span = 0.0, 0.0
        self.implicit_reads = NO_IMPLICIT_READS

    def count_uncached_call(self, at: float) -> None:
        first = self.uncached_span[0] if self.uncached_calls else at
        self.uncached_calls, self.uncached_span = self.uncached_calls + 1, (first, at)

    def fill(self, adapter: Adapter, blocks: Sequence[EncodedBlock], factor: float) -> None:
        super().fill(adapter, blocks, factor)
        self.blocks = tuple(map(_as_system, self.blocks))


class PingedReply(msgspec.Struct, frozen=True):
    """The end of a ping that held the reply, and the memory for a client that does not repeat that reply."""

    blocks: int
    digest: str
    memory_without: CacheMemory


class PlannedConversation:
    """What is known of one conversation between its calls; it `rewrites` if it did not keep what it last wrote."""

    def __init__(
        self, head: HeadNode, learning_scope: LearningScope, learned: LearnedParameters, memory: CacheMemory
    ) -> None:
        self.head = head
        self.learning_scope = learning_scope
        self.learned = learned
        self.memory = memory
        self.tail: MessageNode | None = None
        self.last_request: RequestRecord | None = None
        self.tokens_estimate = 0
        self.is_continued = False
        self.rewrites = False
        self.is_learned = False
        self.pinged: PingedReply | None = None
        # Whether the last request refers to an explicit cache.
        self.is_head_stored = False
        # Of the last two requests, oldest first; empty if there is none.
        self.shared_keys: tuple[str, str] = "", ""
        # The name of the conversation among all processes; empty until its first call is answered.
        self.shared_id = ""

    def count_implicit_reads(self, at: float, read_tokens: int) -> None:
        """A call has read so much. To be called before the memory is updated, which has the call before."""
        head, memory = self.head, self.memory
        before = head.implicit_reads
        head.implicit_reads = before.add_call(
            read_tokens,
            explicit=self.is_head_stored,
            idle_seconds=None if memory.last_at is None else at - memory.last_at,
            prompt_tokens=memory.tail_tokens,
        )
        if head.implicit_reads is before:
            head.count_uncached_call(at)


class PromptOutline:
    """The blocks of a prompt without their bytes, as far as the planner looks at them."""

    def __init__(self, nodes: Sequence[MessageNode], blocks_max: int | None) -> None:
        self.blocks: list[EncodedBlock] = []
        self.digests: list[PrefixDigest] = []
        self.tokens: list[int] = []
        for node in nodes:
            self.blocks += node.blocks
            self.digests += node.digests
            self.tokens += node.tokens
        self.tokens_total = sum(self.tokens)
        self.stable_count = nodes[0].count
        self.first_ephemeral: int | None = None
        if blocks_max is not None and blocks_max < len(self.blocks):
            # Blocks that the next call is not expected to repeat: the planner places no breakpoint on them.
            self.blocks[blocks_max:] = map(_as_ephemeral, self.blocks[blocks_max:])
            self.first_ephemeral = max(blocks_max, self.stable_count)


def _keep_end(block: EncodedBlock) -> EncodedBlock:
    """What the separator of the next block depends on: how the data begins, and a short start of its container."""
    # A longer start holds earlier parts of a tool result, which no separator looks at.
    return msgspec.structs.replace(
        _without_data(block), data=block.data[:1], container_start=block.container_start[:CONTAINER_START_BYTES_MAX]
    )


def _as_system(block: EncodedBlock) -> EncodedBlock:
    """A system message of the head, which a chat API has among the messages."""
    return _without_data(block, section="system") if block.section == "messages" else block


def _without_data(
    block: EncodedBlock, *, ephemeral: bool | None = None, section: PromptSection | None = None
) -> EncodedBlock:
    return intern_block(
        block.layer,
        section or block.section,
        block.stability,
        # Enough to tell calls of tools and their results from other blocks, which the cache's lookback may count apart.
        next((start for start in TOOL_BLOCK_STARTS if block.data.startswith(start)), b""),
        block.accepts_breakpoint,
        block.role,
        block.ephemeral if ephemeral is None else ephemeral,
    )


intern_block = functools.lru_cache(maxsize=2_000)(EncodedBlock)
"""One object for all blocks that look the same without their bytes."""

_as_ephemeral = functools.partial(_without_data, ephemeral=True)
