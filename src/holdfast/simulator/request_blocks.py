"""The blocks of a request in wire order: path, bytes and cache breakpoint of each."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain as chained

import msgspec

from holdfast.cachemodel.tiers import ChainBlock
from holdfast.cachemodel.values import BlockKind
from holdfast.catalog.schema import Model
from holdfast.catalog.token_count import count_block_tokens
from holdfast.providers.adapter import Adapter, WireRequest
from holdfast.types.blocks import Block, block_kind
from holdfast.types.json_encoding import canonical_json, extend_digest, sha256_hex
from holdfast.types.prompt import PromptSection, Segment, Ttl
from holdfast.types.request_buffer import EncodedBlock
from holdfast.types.tool_spec import ToolSpec

COUNTS_CACHED_MAX = 50_000
THINKING_NAMES = ("thinking", "redacted_thinking")
_CACHE_KINDS: dict[str, BlockKind] = {"tool_use": "tool_use", "tool_result": "tool_result"}


class SentBlock(msgspec.Struct, frozen=True):
    """`path` is its position in the request, as the provider's error messages write it."""

    path: str
    block: Block | ToolSpec
    encoded: EncodedBlock
    ttl: Ttl | None = None

    @property
    def kind(self) -> str:
        return "tool" if isinstance(self.block, ToolSpec) else block_kind(self.block)


def list_sent_blocks(adapter: Adapter, request: WireRequest) -> tuple[SentBlock, ...]:
    ttls = {breakpoint.block_index: breakpoint.ttl for breakpoint in request.plan.breakpoints}
    encoded_blocks = chained.from_iterable(adapter.encode_segment(segment) for segment in request.prompt.segments)
    paths = chained.from_iterable(_iter_paths(segment) for segment in request.prompt.segments)
    return tuple(
        SentBlock(path, block, encoded, ttls.get(index))
        for index, ((path, block), encoded) in enumerate(zip(paths, encoded_blocks, strict=True))
    )


def _iter_paths(segment: Segment) -> Iterator[tuple[str, Block | ToolSpec]]:
    for index, tool in enumerate(segment.tools):
        yield f"tools.{index}", tool
    for index, text in enumerate(segment.system):
        yield f"system.{index}", text
    for index, entry in enumerate(segment.entries):
        for position, block in enumerate(entry.content):
            yield f"messages.{index}.content.{position}", block


class TokenCounts:
    """A cached token counter: each block is counted once; the cache is cleared when it is full."""

    def __init__(
        self, count: Callable[[bytes, float], int] = count_block_tokens, *, counts_max: int = COUNTS_CACHED_MAX
    ) -> None:
        self._count = count
        self._counts_max = counts_max
        self._counts: dict[tuple[str, float], int] = {}

    def __call__(self, data: bytes, factor: float) -> int:
        key = (sha256_hex(data), factor)
        if key not in self._counts:
            if len(self._counts) >= self._counts_max:
                self._counts.clear()
            self._counts[key] = self._count(data, factor)
        return self._counts[key]


def digest_conversation_starts(workspace: str, blocks: Sequence[SentBlock]) -> tuple[str, ...]:
    """Digests that identify the conversation: of the workspace, the system prompt and the first user message.

    After a failure the client may extend that message, so there is one digest per prefix of it, the longest first.
    """
    digests, candidates = [workspace], []
    for sent in blocks:
        if sent.encoded.section == "messages" and sent.encoded.role != "user":
            break
        if sent.encoded.section != "tools":
            digests.append(sha256_hex(sent.encoded.data))
        if sent.encoded.section == "messages":
            candidates.append(sha256_hex(canonical_json(digests)))
    return tuple(reversed(candidates)) or (sha256_hex(canonical_json(digests)),)


def digest_conversation(blocks: Sequence[SentBlock]) -> str:
    """A digest of everything that was sent, without workspace or parameters."""
    digest_so_far = ""
    for sent in blocks:
        digest_so_far = extend_digest(digest_so_far, sent.encoded.container_start + sent.encoded.data)
    return digest_so_far


def make_cache_block(
    sent: SentBlock, section: PromptSection, *, model: Model, count: TokenCounts, ending: bool = False
) -> ChainBlock:
    """The block as the cache sees it: its role, and its bytes without breakpoints."""
    encoded = sent.encoded.container_start + sent.encoded.data
    role = (sent.encoded.role or "").encode() + b"\n"
    kind = _CACHE_KINDS.get(sent.kind, "plain")
    return ChainBlock(section, role + encoded, count(encoded, model.tokens_factor), kind, ending)
