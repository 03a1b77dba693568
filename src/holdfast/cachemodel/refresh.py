"""Using an entry restarts its TTL, for free."""

from collections.abc import Iterable

import msgspec

from holdfast.cachemodel.values import Entries, Entry, EntryKey
from holdfast.catalog.rows import CacheRules


def refreshed(rules: CacheRules, entries: Entries, used: Iterable[Entry], *, at: float) -> Entries:
    """The entries after `used` were read at `at`; the entries that these depend on are refreshed with them."""
    fresh: dict[EntryKey, Entry] = {}
    for entry in (refreshed for read in used for refreshed in (read, entries.under(read, at=at))):
        if entry is not None and at + rules.ttls_seconds[entry.ttl] > entry.expires_at:
            expires_at = at + rules.ttls_seconds[entry.ttl]
            fresh[entry.scope, entry.digest] = msgspec.structs.replace(entry, expires_at=expires_at)
    return Entries({**entries.kept, **fresh}) if fresh else entries
