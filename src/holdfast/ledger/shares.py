"""Which part of a call is whose: the head that does not change, and the account that pays."""

from collections.abc import Sequence

import msgspec

from holdfast.canonical.pieces import Link
from holdfast.canonical.usage import Usage
from holdfast.layers.standard import PINNED
from holdfast.ledger.money import NAME_CHARACTERS_MAX

STABLE_LAYERS = frozenset({"tools", "nonce", *PINNED})


class Payer(msgspec.Struct, frozen=True):
    """On whose account a call goes: a key of the gateway, a user, a team; the empty text is nobody's."""

    key_id: str = ""
    user_id: str = ""
    team_id: str = ""


NOBODY = Payer()


class Head(msgspec.Struct, frozen=True):
    """The blocks in front of the first one that grows or changes, and where they end among all bytes of a prompt."""

    blocks: int = 0
    end: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        return min(1.0, max(0.0, self.end / self.total)) if self.total > 0 else 0.0


def payer(*, key_id: str | None = None, user_id: str | None = None, team_id: str | None = None) -> Payer:
    return Payer(*((name or "")[:NAME_CHARACTERS_MAX] for name in (key_id, user_id, team_id)))


def head_of(before: Head, shared_blocks: int, links: Sequence[Link]) -> Head:
    """The head of the next request, which has so many blocks of the one before, and these behind them."""
    if not links:
        return before
    total = links[-1].end
    if shared_blocks > before.blocks:
        return Head(before.blocks, before.end, total)
    blocks, end = shared_blocks, before.end if shared_blocks == before.blocks else links[0].start
    for link in links:
        if link.layer not in STABLE_LAYERS:
            break
        blocks, end = blocks + 1, link.end
    return Head(blocks, end, total)


def stable_written(share: float, usage: Usage) -> int:
    """How many tokens a call wrote for its head, by the share of bytes that this is."""
    return min(usage.cache_write, max(0, round(share * usage.tokens_sent) - usage.cache_read))
