"""Prices a request with the cache model in several variants: as sent, rewritten, and with one anti-pattern left in.

Only prompts are priced, with token counts proportional to bytes: the figures are for comparison with each other.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal

from holdfast.cachemodel.machine import run_call
from holdfast.cachemodel.values import BlockKind, CacheCall, CacheEntries, CacheScope, PromptPrefix
from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.schema import Model
from holdfast.economics.cost import cost_usd
from holdfast.engine.request_draft import RequestDraft
from holdfast.events.payloads.calls import PromptPrice
from holdfast.providers.adapter import Adapter, WireRequest
from holdfast.providers.cache_inputs import automatic_breakpoint
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest, count_shared_blocks

AS_SENT = ""
IMPROVED = "improved"
PRICED_BLOCKS_MAX = 4_000

# Encoded blocks begin with their type, so the prefix is enough and nothing has to be decoded.
_KINDS: Mapping[bytes, BlockKind] = {b'{"type":"tool_use"': "tool_use", b'{"type":"tool_result"': "tool_result"}


class _Variant:
    """One way to send a conversation, and what the provider's cache would hold of it."""

    def __init__(self, adapter: Adapter) -> None:
        self.draft = RequestDraft(adapter, len)
        self.entries = CacheEntries()
        self.digests: tuple[PrefixDigest, ...] = ()

    def price(self, wire: WireRequest, row: Model, at: float, tokens_per_byte: float) -> tuple[Decimal, int, int]:
        """The cost in dollars, the tokens of the prompt, and how many of them its predecessor shares as a prefix."""
        self.draft.update(wire.prompt)
        self.draft.mark_sent()
        digests, blocks = self.draft.buffer.digests, self.draft.buffer.blocks
        prefixes = tuple(
            PromptPrefix(
                block.section, prefix.digest, round(prefix.end * tokens_per_byte), classify_block(block), ends_section
            )
            for block, prefix, ends_section in zip(blocks, digests, _ends_section(blocks), strict=True)
        )
        explicit = tuple(breakpoint_ for breakpoint_ in wire.plan.breakpoints if breakpoint_.block_index < len(blocks))
        breakpoints = (*explicit, *automatic_breakpoint(wire.parameters, blocks, explicit, row.cache))
        call = CacheCall(CacheScope("", row.name), prefixes, breakpoints, at)
        outcome, self.entries = run_call(row.cache, self.entries, call)
        shared = count_shared_blocks(self.digests, digests)
        self.digests = tuple(digests)
        price = price_at(row, utc_date(at), outcome.usage.tokens_sent)
        return cost_usd(outcome.usage, price), call.tokens, prefixes[shared - 1].tokens if shared else 0


class CounterfactualPricer:
    """The variants of one conversation. `tokens_factor` is the provider's token count divided by our estimate."""

    def __init__(self) -> None:
        self._variants: dict[tuple[str, str], _Variant] = {}
        self._undo: dict[tuple[str, str], tuple[CacheEntries, tuple[PrefixDigest, ...]]] = {}
        self.tokens_factor = 1.0
        self.priced_count = 0
        """Number of requests priced so far, which is also the number of the newest."""

    def price_variants(
        self, adapter: Adapter, row: Model, at: float, *, tokens: int, variants: Mapping[str, WireRequest]
    ) -> tuple[PromptPrice, dict[str, float]] | None:
        """The figures of one call, and the extra cost of leaving each anti-pattern in instead of fixing all.

        `tokens` is the estimate for the request as sent. None if the model has no price, the request no blocks, or
        too many of them.
        """
        if not row.prices or not tokens:
            return None
        sent_variant = self._variant(adapter, AS_SENT)
        sent_variant.draft.update(variants[AS_SENT].prompt)
        digests = sent_variant.draft.buffer.digests
        if not digests or len(digests) > PRICED_BLOCKS_MAX:
            return None
        # tokens: estimate for the whole prompt; tokens_factor: provider's count / estimate; end: its length in bytes.
        tokens_per_byte = tokens * self.tokens_factor / digests[-1].end
        self._undo = {name: (variant.entries, variant.digests) for name, variant in self._variants.items()}
        self.priced_count += 1
        # Every variant uses the same tokens per byte, so that a shorter variant also counts as fewer tokens.
        costs = {
            name: self._variant(adapter, name).price(wire, row, at, tokens_per_byte) for name, wire in variants.items()
        }
        sent_usd, sent_tokens, sent_shared = costs[AS_SENT]
        usd, size, shared = costs.get(IMPROVED, (sent_usd, sent_tokens, sent_shared))
        extra = {name: float(cost - usd) for name, (cost, _, _) in costs.items() if name not in (AS_SENT, IMPROVED)}
        return PromptPrice(float(sent_usd), float(usd), sent_tokens, size, shared), extra

    def undo_pricing(self, number: int) -> None:
        """Undoes the newest request, which failed and so wrote nothing to a cache.

        Does nothing if another request was priced since, because that one builds on it.
        """
        if number == self.priced_count:
            for key, variant in self._variants.items():
                variant.entries, variant.digests = self._undo.get(key, (CacheEntries(), ()))

    def _variant(self, adapter: Adapter, name: str) -> _Variant:
        return self._variants.setdefault((adapter.name, name), _Variant(adapter))


def classify_block(block: EncodedBlock) -> BlockKind:
    return next((kind for start, kind in _KINDS.items() if block.data.startswith(start)), "plain")


def _ends_section(blocks: Sequence[EncodedBlock]) -> list[bool]:
    """Whether each block ends the system prompt or a user message, where a cache may match or write by itself."""
    following = [*blocks[1:], None]
    return [
        (block.section == "system" and (next_block is None or next_block.section != "system"))
        or (block.role == "user" and (next_block is None or next_block.role != "user"))
        for block, next_block in zip(blocks, following, strict=True)
    ]


def encode_shape(blocks: Sequence[EncodedBlock]) -> str:
    """One letter per block for its section, role and whether it is text; upper case if it can carry a breakpoint."""
    letters = []
    for block in blocks:
        if block.section != "messages":
            letter = block.section[0]
        elif block.data.startswith(b'{"type":"text"') or b'"text"' in block.data[:24]:
            letter = "a" if block.role == "assistant" else "u"
        else:
            letter = "b" if block.role == "assistant" else "r"
        letters.append(letter.upper() if block.accepts_breakpoint else letter)
    return "".join(letters)
