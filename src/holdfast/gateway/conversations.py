"""Which conversation a request goes on with: told by ids where there are some, and by what was said before.

A request holds its whole history, so that the newest blocks of the request before stand in it, at the same places.
That finds a conversation even where its first bytes move with every call, and where its last ones do.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec

from holdfast.gateway.clues import Clues

CONVERSATIONS_MAX = 1_000
NEWEST_BLOCKS = 3
CANDIDATES_MAX = 8

T = TypeVar("T")
K = TypeVar("K")


class Said(msgspec.Struct, frozen=True):
    """What a request says, as digests: of its head, and of each block of its history."""

    scope: str
    head: str
    blocks: tuple[str, ...]
    clues: Clues


class Found(msgspec.Struct, frozen=True):
    """`confidence` is from 0 to 1; `parent` is the key of the conversation that this one left, where it is new."""

    key: int
    is_new: bool
    confidence: float
    because: str
    parent: int | None = None


class _Known(Generic[T]):
    def __init__(self, key: int, said: Said, kept: T) -> None:
        self.key = key
        self.said = said
        self.kept = kept
        self.named = (said.scope, said.clues.session) if said.clues.session is not None else None
        self.places: list[tuple[str, int, str]] = []
        self.under_way = 0


class Conversations(Generic[T]):
    """A bounded number of them, those forgotten first that were silent longest."""

    def __init__(self, *, conversations_max: int = CONVERSATIONS_MAX) -> None:
        self._max = conversations_max
        self._known: OrderedDict[int, _Known[T]] = OrderedDict()
        self._tails: dict[tuple[str, int, str], list[int]] = {}
        self._named: dict[tuple[str, str], list[int]] = {}
        self._replies: dict[tuple[str, str], int] = {}
        self._next = 0

    def enter(self, said: Said, make: Callable[[T | None], T]) -> tuple[Found, T]:
        """The conversation that a request goes on with, or a new one; from now on its newest blocks are known.

        What is kept of a new one is made of what is kept of the one that it left.
        """
        found = self._found(said)
        if found.is_new:
            above = None if found.parent is None else self._known[found.parent].kept
            known = _Known(found.key, said, make(above))
            self._known[found.key] = known
            self._next += 1
            if known.named is not None:
                self._named.setdefault(known.named, []).append(found.key)
        else:
            known = self._known[found.key]
            self._known.move_to_end(found.key)
            known.said = said
        known.under_way += 1
        self._note(known)
        while len(self._known) > self._max:
            self._forget(next(iter(self._known)))
        return found, known.kept

    def left(self, key: int, reply_id: str) -> None:
        """A request has ended; a later one may go on from its reply by the id alone."""
        known = self._known.get(key)
        if known is None:
            return
        known.under_way -= 1
        if reply_id:
            self._replies[known.said.scope, reply_id] = key
            while len(self._replies) > 16 * self._max:
                del self._replies[next(iter(self._replies))]

    def _found(self, said: Said) -> Found:
        clues = said.clues
        if clues.follows is not None:
            key = self._replies.get((said.scope, clues.follows))
            if key is not None and key in self._known:
                return Found(key, False, 1.0, "it names the reply before")
        known = self._by_history(said)
        agreed = _agreed(known.said.blocks, said.blocks) if known else 0
        if known is not None and agreed == len(known.said.blocks):
            confidence = 1.0 if clues.session else 0.6 if agreed == 1 else 0.95
            return Found(known.key, False, confidence, "it says what was said before, and more")
        grows = known is not None and len(said.blocks) > len(known.said.blocks)
        if known is not None and grows and 2 * agreed >= len(known.said.blocks):
            return Found(known.key, False, 0.8, "it says most of what was said before")
        return self._by_name(said) or Found(
            self._next,
            True,
            1.0 if clues.is_strong else 0.7,
            f"{clues.because}, and its first words" if clues.because else "it begins as none before",
            self._left(said),
        )

    def _by_history(self, said: Said) -> _Known[T] | None:
        """Of those one of whose newest blocks stands in this request, the one that agrees most."""
        best: _Known[T] | None = None
        best_agreed = 0
        for place, digest in enumerate(said.blocks):
            for key in self._tails.get((said.scope, place, digest), ()):
                known = self._known[key]
                if known.said.clues.session != said.clues.session:
                    continue
                agreed = _agreed(known.said.blocks, said.blocks)
                if agreed >= best_agreed:
                    best, best_agreed = known, agreed
        return best

    def _by_name(self, said: Said) -> Found | None:
        """The first conversation of a named session goes on with another history: it was compacted, or edited.

        Not while it waits for a reply, and not for a key that only names a cache: then another one goes on beside it.
        """
        first = self._left(said)
        known = None if first is None or not said.clues.is_strong else self._known[first]
        if known is None or known.under_way or known.said.head != said.head:
            return None
        return Found(known.key, False, 0.8, f"{said.clues.because} is the same, and so is its head")

    def _left(self, said: Said) -> int | None:
        """The conversation from which this one parts: a sub-agent of a named session, or a branch."""
        if said.clues.session is None:
            return None
        return next(iter(self._named.get((said.scope, said.clues.session), [])), None)

    def _note(self, known: _Known[T]) -> None:
        self._unnote(known)
        blocks = known.said.blocks
        for place in range(max(0, len(blocks) - NEWEST_BLOCKS), len(blocks)):
            name = (known.said.scope, place, blocks[place])
            keys = self._tails.setdefault(name, [])
            keys.append(known.key)
            # Thousands may begin with the same words; those of late are the likely ones.
            del keys[:-CANDIDATES_MAX]
            known.places.append(name)

    def _unnote(self, known: _Known[T]) -> None:
        for place in known.places:
            _taken_out(self._tails, place, known.key)
        known.places = []

    def _forget(self, key: int) -> None:
        known = self._known.pop(key)
        self._unnote(known)
        if known.named is not None:
            _taken_out(self._named, known.named, key)


def _taken_out(keys_of: dict[K, list[int]], name: K, key: int) -> None:
    keys = keys_of.get(name, [])
    if key in keys:
        keys.remove(key)
    if not keys:
        keys_of.pop(name, None)


def _agreed(before: Sequence[str], now: Sequence[str]) -> int:
    """How many blocks stand where they stood."""
    return sum(old == new for old, new in zip(before, now, strict=False))
