"""The TTL of entries that the provider writes without a breakpoint."""

from holdfast.catalog.rows import CacheRules
from holdfast.errors import UserError


def lifetime_asked_for(rules: CacheRules, ttl: str | None) -> str:
    """The name of the TTL in effect: the requested one, else the first in the rules."""
    name = next(iter(rules.ttls_seconds), "") if ttl is None else ttl
    if name not in rules.ttls_seconds:
        known = ", ".join(rules.ttls_seconds) or "none; add ttls_seconds to the cache rules"
        raise UserError(f"unknown cache TTL {name!r}; known: {known}")
    return name
