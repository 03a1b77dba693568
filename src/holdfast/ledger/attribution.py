"""Attributes parts of a call: to the stable prefix of the prompt, and to the account that pays."""

from collections.abc import Sequence

import msgspec

from holdfast.layers.assemble import PINNED_LAYERS
from holdfast.ledger.money import NAME_CHARACTERS_MAX
from holdfast.types.request_buffer import PrefixDigest
from holdfast.types.usage import Usage

# Layers that are FROZEN or pinned for an epoch; `nonce` is inserted by a cache invalidation.
STABLE_LAYERS = frozenset({"tools", "nonce", *PINNED_LAYERS})


class Payer(msgspec.Struct, frozen=True):
    """The account of a call: a gateway key, a user, a team; empty where there is none."""

    key_id: str = ""
    user_id: str = ""
    team_id: str = ""


NO_PAYER = Payer()


class StablePrefix(msgspec.Struct, frozen=True):
    """The blocks before the first one that grows or changes: their number, their end, and the prompt's total bytes."""

    blocks: int = 0
    end: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        # Bytes stand in for tokens here: the log has exact byte offsets, but no token count per block.
        return min(1.0, max(0.0, self.end / self.total)) if self.total > 0 else 0.0


def build_payer(*, key_id: str | None = None, user_id: str | None = None, team_id: str | None = None) -> Payer:
    return Payer(*((name or "")[:NAME_CHARACTERS_MAX] for name in (key_id, user_id, team_id)))


def extend_stable_prefix(before: StablePrefix, shared_blocks: int, digests: Sequence[PrefixDigest]) -> StablePrefix:
    """The stable prefix of the next request, which shares `shared_blocks` with the one before and adds `digests`."""
    if not digests:
        return before
    total = digests[-1].end
    # The first block after the stable prefix is shared too, so the prefix ends where it did.
    if shared_blocks > before.blocks:
        return StablePrefix(before.blocks, before.end, total)
    blocks, end = shared_blocks, before.end if shared_blocks == before.blocks else digests[0].start
    # The stable prefix was cut short or ends exactly here: extend it by the new blocks of stable layers.
    for digest in digests:
        if digest.layer not in STABLE_LAYERS:
            break
        blocks, end = blocks + 1, digest.end
    return StablePrefix(blocks, end, total)


def estimate_stable_writes(share: float, usage: Usage) -> int:
    """Estimates how many tokens a call wrote for its stable prefix."""
    # With s = the stable prefix's share of the prompt's bytes, t = tokens sent, r = tokens read and w = tokens written,
    # the prefix has about s * t tokens. Reads cover the prompt from its start, so max(0, s * t - r) of them were not
    # read; of these at most w were written.
    return min(usage.cache_write, max(0, round(share * usage.tokens_sent) - usage.cache_read))
