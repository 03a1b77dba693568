"""Values of the cache model: calls as chains of prefixes, cache entries, outcomes."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.canonical.prompt import Mark, Place
from holdfast.canonical.usage import Usage

BlockKind = Literal["plain", "tool_use", "tool_result"]
"""What the lookback counts: a run of tool calls, or of tool results, may count as one position."""


class Scope(msgspec.Struct, frozen=True):
    """Whose cache it is; entries are never shared between scopes."""

    workspace: str
    model: str


class Prefix(msgspec.Struct, frozen=True):
    """A prompt up to and including one of its blocks.

    `digest` and `tokens` cover the whole prefix, so that no call has to walk its history again. `ending` says whether
    the block ends a message at which a cache of kind `breakpoints` looks up and writes without an explicit breakpoint.
    """

    place: Place
    digest: str
    tokens: int
    kind: BlockKind = "plain"
    ending: bool = False


class Call(msgspec.Struct, frozen=True):
    """One request: `prefixes` has one item per block in wire order, and `Mark.piece` is an index into it.

    `at` is when the request started, in seconds; TTLs count from there. `ttl` is the requested TTL of implicit entries
    by its name in the rules (default: the first one). `only_marks` turns implicit entries off. `named_tokens` are the
    tokens of an explicit cache that the request refers to.
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
    """A cached prefix, readable by calls that start before `expires_at`.

    `rests_on` is the digest of a shorter-lived entry inside this one, refreshed whenever this one is read.
    Unless this one `outlives_it`, it cannot be read once that entry has expired.
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
    """All cached entries, of all scopes; never changed in place."""

    kept: Mapping[EntryKey, Entry] = {}

    def find(self, scope: Scope, digest: str, *, at: float) -> Entry | None:
        """The entry for this prefix that a call starting at `at` can read."""
        entry = self._unexpired(scope, digest, at)
        if entry is None or entry.outlives_it or entry.rests_on is None:
            return entry
        return entry if self.under(entry, at=at) else None

    def under(self, entry: Entry, *, at: float) -> Entry | None:
        """The shorter-lived entry that this one depends on, if there is one and it has not expired."""
        return self._unexpired(entry.scope, entry.rests_on, at) if entry.rests_on is not None else None

    def live(self, *, at: float) -> tuple[Entry, ...]:
        """The entries readable at `at`, in the order in which they were first written."""
        return tuple(entry for entry in self.kept.values() if self.find(entry.scope, entry.digest, at=at))

    def _unexpired(self, scope: Scope, digest: str, at: float) -> Entry | None:
        entry = self.kept.get((scope, digest))
        return entry if entry is not None and at < entry.expires_at else None


class Outcome(msgspec.Struct, frozen=True):
    """What a call reads, and the entries that others can read once its response has begun."""

    usage: Usage
    at: float
    read: Entry | None = None
    written: tuple[Entry, ...] = ()
