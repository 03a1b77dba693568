"""What a cache is asked and what it keeps: calls as chains of prefixes, entries, outcomes."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.canonical.prompt import Mark, Place
from holdfast.canonical.usage import Usage

BlockKind = Literal["plain", "tool_use", "tool_result"]
"""What counts in a lookback: runs of tool calls, or of tool results, may count as one position."""


class Scope(msgspec.Struct, frozen=True):
    """Whose cache it is: nothing is ever shared between two scopes."""

    workspace: str
    model: str


class Prefix(msgspec.Struct, frozen=True):
    """A prompt up to and including one of its blocks.

    `digest` and `tokens` are of the whole prefix, so that no call needs to go through its history again. `ending` says
    whether the block ends a message behind which a cache of kind `breakpoints` looks and writes of itself.
    """

    place: Place
    digest: str
    tokens: int
    kind: BlockKind = "plain"
    ending: bool = False


class Call(msgspec.Struct, frozen=True):
    """One request: `prefixes` has one item per block in wire order, and `Mark.piece` is an index into it.

    `at` is when the request started, in seconds; lifetimes are counted from there. `ttl` is how long what the provider
    keeps of itself shall live, by its name in the rules; without it the first of them holds. `only_marks` keeps the
    provider from writing anywhere else. `named_tokens` are in front, in a cache that the request names.
    """

    scope: Scope
    prefixes: tuple[Prefix, ...]
    marks: tuple[Mark, ...]
    at: float
    ttl: str | None = None
    only_marks: bool = False
    named_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prefixes[-1].tokens if self.prefixes else 0


class Entry(msgspec.Struct, frozen=True):
    """A kept prefix. It can be read by calls that start before `expires_at`.

    `rests_on` is the digest of a shorter-lived entry inside this one, refreshed whenever this one is read.
    Unless this one `outlives_it`, it is of no use once that one has lapsed.
    """

    scope: Scope
    digest: str
    tokens: int
    ttl: str
    expires_at: float
    rests_on: str | None = None
    outlives_it: bool = False


EntryKey = tuple[Scope, str]


class Entries(msgspec.Struct, frozen=True):
    """Everything a cache keeps, of all scopes; never changed in place."""

    kept: Mapping[EntryKey, Entry] = {}

    def find(self, scope: Scope, digest: str, *, at: float) -> Entry | None:
        """The entry for this prefix that a call starting at `at` can read."""
        entry = self._unexpired(scope, digest, at)
        if entry is None or entry.outlives_it or entry.rests_on is None:
            return entry
        return entry if self.under(entry, at=at) else None

    def under(self, entry: Entry, *, at: float) -> Entry | None:
        """The shorter-lived entry that this one rests on, if there is one and it has not lapsed."""
        return self._unexpired(entry.scope, entry.rests_on, at) if entry.rests_on is not None else None

    def live(self, *, at: float) -> tuple[Entry, ...]:
        """What can be read at `at`, in the order in which it was first written."""
        return tuple(entry for entry in self.kept.values() if self.find(entry.scope, entry.digest, at=at))

    def _unexpired(self, scope: Scope, digest: str, at: float) -> Entry | None:
        entry = self.kept.get((scope, digest))
        return entry if entry is not None and at < entry.expires_at else None


class Outcome(msgspec.Struct, frozen=True):
    """What a call reads, and what others can read once its response has begun."""

    usage: Usage
    at: float
    read: Entry | None = None
    written: tuple[Entry, ...] = ()
