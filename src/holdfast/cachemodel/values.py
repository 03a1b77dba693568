"""Values of the cache model: calls as chains of prefixes, cache entries and how they expire, outcomes."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.catalog.schema import CacheRules
from holdfast.errors import UserError
from holdfast.types.prompt import Breakpoint, PromptSection
from holdfast.types.usage import Usage

# What the lookback counts: a run of tool calls, or of tool results, may count as one position.
BlockKind = Literal["plain", "tool_use", "tool_result"]


class CacheScope(msgspec.Struct, frozen=True):
    """Whose cache it is; entries are never shared between scopes."""

    workspace: str
    model: str


class CacheEntry(msgspec.Struct, frozen=True):
    """A cached prefix, readable by calls that start before `expires_at`.

    `depends_on` is the digest of a shorter-lived entry inside this one, refreshed whenever this one is read.
    Unless this one `outlives_dependency`, it cannot be read once that entry has expired.
    """

    scope: CacheScope
    digest: str
    tokens: int
    ttl: str
    expires_at: float
    depends_on: str | None = None
    outlives_dependency: bool = False


EntryKey = tuple[CacheScope, str]


class CacheEntries(msgspec.Struct, frozen=True):
    """All cached entries, of all scopes; never changed in place."""

    by_key: Mapping[EntryKey, CacheEntry] = {}

    def find(self, scope: CacheScope, digest: str, *, at: float) -> CacheEntry | None:
        """The entry for this prefix that a call starting at `at` can read."""
        entry = self._unexpired(scope, digest, at)
        if entry is None or entry.outlives_dependency or entry.depends_on is None:
            return entry
        return entry if self.dependency(entry, at=at) else None

    def dependency(self, entry: CacheEntry, *, at: float) -> CacheEntry | None:
        """The shorter-lived entry that this one depends on, if there is one and it has not expired."""
        return self._unexpired(entry.scope, entry.depends_on, at) if entry.depends_on is not None else None

    def live_entries(self, *, at: float) -> tuple[CacheEntry, ...]:
        """The entries readable at `at`, in the order in which they were first written."""
        return tuple(entry for entry in self.by_key.values() if self.find(entry.scope, entry.digest, at=at))

    def drop_expired(self, *, at: float) -> "CacheEntries":
        """The entries that a call at `at` or later may read."""
        return CacheEntries({key: entry for key, entry in self.by_key.items() if at < entry.expires_at})

    def _unexpired(self, scope: CacheScope, digest: str, at: float) -> CacheEntry | None:
        entry = self.by_key.get((scope, digest))
        return entry if entry is not None and at < entry.expires_at else None


def refresh_entries(rules: CacheRules, entries: CacheEntries, used: Iterable[CacheEntry], *, at: float) -> CacheEntries:
    """The entries after `used` were read at `at`; the entries that these depend on are refreshed with them."""
    # A read restarts the TTL for free (Anthropic, OpenAI: "Prompt caching").
    fresh: dict[EntryKey, CacheEntry] = {}
    for entry in (refreshed for read in used for refreshed in (read, entries.dependency(read, at=at))):
        if entry is not None and at + rules.ttls_seconds[entry.ttl] > entry.expires_at:
            expires_at = at + rules.ttls_seconds[entry.ttl]
            fresh[entry.scope, entry.digest] = msgspec.structs.replace(entry, expires_at=expires_at)
    return CacheEntries({**entries.by_key, **fresh}) if fresh else entries


def requested_ttl(rules: CacheRules, ttl: str | None) -> str:
    """The name of the TTL in effect: the requested one, else the first in the rules."""
    name = next(iter(rules.ttls_seconds), "") if ttl is None else ttl
    if name not in rules.ttls_seconds:
        supported = ", ".join(rules.ttls_seconds) or "none; add ttls_seconds to the cache rules"
        raise UserError(f"unknown cache TTL {name!r}; known: {supported}")
    return name


class PromptPrefix(msgspec.Struct, frozen=True):
    """A prompt up to and including one of its blocks.

    `digest` and `tokens` cover the whole prefix, so that no call has to walk its history again. `is_ending` says
    whether the block ends a message at which a hybrid cache looks up and writes without an explicit breakpoint.
    """

    section: PromptSection
    digest: str
    tokens: int
    kind: BlockKind = "plain"
    is_ending: bool = False


class CacheCall(msgspec.Struct, frozen=True):
    """One request: `prefixes` has one item per block in wire order, and `Breakpoint.block_index` is an index into it.

    `at` is when the request started, in seconds; TTLs count from there. `ttl` is the requested TTL of implicit entries
    by its name in the rules (default: the first one). `explicit_only` turns implicit entries off.
    `explicit_cache_tokens` are the tokens of an explicit cache that the request refers to.
    """

    scope: CacheScope
    prefixes: Sequence[PromptPrefix]
    breakpoints: tuple[Breakpoint, ...]
    at: float
    ttl: str | None = None
    explicit_only: bool = False
    explicit_cache_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prefixes[-1].tokens if self.prefixes else 0


class CacheOutcome(msgspec.Struct, frozen=True):
    """What a call reads, and the entries that others can read once its response has begun."""

    usage: Usage
    at: float
    read: CacheEntry | None = None
    written: tuple[CacheEntry, ...] = ()
