"""The prompt as bytes: one piece per block, and the chain of digests over them.

Cacheable bytes are the wire bytes from the first tool to the last message block, with cache marks removed. A
mark therefore can move without changing a byte or a digest here.
"""

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.canonical.blocks import Role
from holdfast.canonical.encoding import chain
from holdfast.canonical.prompt import Place, Stability


class Piece(msgspec.Struct, frozen=True):
    """One block in a provider's spelling. `markable` says whether the provider takes a mark on it.

    `opens` are the bytes that start a container of the piece's own, such as a message, in front of `data`; a piece
    without them goes on in the container of the piece before.
    """

    layer: str
    place: Place
    stability: Stability
    data: bytes
    markable: bool
    role: Role | None = None
    ephemeral: bool = False
    opens: bytes = b""


class Link(msgspec.Struct, frozen=True, array_like=True):
    """One step of the digest chain: which layer's bytes [start, end) brought it to this digest."""

    layer: str
    start: int
    end: int
    digest: str


def link_up(previous: Link | None, layer: str, data: bytes) -> Link:
    start = previous.end if previous else 0
    return Link(layer, start, start + len(data), chain(previous.digest if previous else "", data))


def shared_links(before: Sequence[Link], after: Sequence[Link]) -> int:
    """How many leading blocks two prompts have in common, byte for byte.

    Chained digests make this a binary search: once two chains differ they never agree again.
    """
    low, high = 0, min(len(before), len(after))
    while low < high:
        middle = (low + high) // 2
        if before[middle].digest == after[middle].digest:
            low = middle + 1
        else:
            high = middle
    return low


def common_length(old: bytes, new: bytes, start: int = 0) -> int:
    """Up to which byte the two are the same, given that they are up to `start`."""
    low, high = start, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if old[low:middle] == new[low:middle] else (low, middle - 1)
    return low


def stable_count(pieces: Iterable[Piece]) -> int:
    """How many leading pieces belong to layers that do not change within an epoch."""
    count = 0
    for piece in pieces:
        if piece.stability > Stability.EPOCH:
            break
        count += 1
    return count
