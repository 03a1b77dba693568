"""The prompt as encoded blocks, and the chain of prefix digests over them.

Cacheable bytes are the wire bytes from the first tool to the last message block, without cache breakpoints. A
breakpoint can therefore move without changing a byte or a digest here.
"""

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.canonical.blocks import Role
from holdfast.canonical.encoding import chain
from holdfast.canonical.prompt import Place, Stability


class Piece(msgspec.Struct, frozen=True):
    """One block in a provider's encoding. `accepts_breakpoint`: a cache breakpoint is allowed on it.

    `container_start` are the bytes before `data` that start a new container, such as a message. A block without them
    continues the container of the previous block.
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
    """One step of the digest chain: the digest of all bytes up to `end`, of which [start, end) belong to `layer`."""

    layer: str
    start: int
    end: int
    digest: str


def link_up(previous: Link | None, layer: str, data: bytes) -> Link:
    start = previous.end if previous else 0
    return Link(layer, start, start + len(data), chain(previous.digest if previous else "", data))


def shared_links(before: Sequence[Link], after: Sequence[Link]) -> int:
    """How many leading blocks two prompts have in common, byte for byte.

    A binary search, because each digest covers everything before it: once two chains differ they never agree again.
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
    """Length of the common prefix of both; the caller knows that the first `start` bytes agree."""
    low, high = start, min(len(old), len(new))
    while low < high:
        middle = (low + high + 1) // 2
        # Only the undecided part is compared, so that the total work is linear.
        low, high = (middle, high) if old[low:middle] == new[low:middle] else (low, middle - 1)
    return low


def stable_count(blocks: Iterable[Piece]) -> int:
    """How many leading blocks belong to layers that do not change within an epoch."""
    count = 0
    for block in blocks:
        if block.stability > Stability.EPOCH:
            break
        count += 1
    return count
