"""How long a provider keeps what nobody marked."""

from holdfast.catalog.rows import CacheRules
from holdfast.errors import UserError


def lifetime_asked_for(rules: CacheRules, ttl: str | None) -> str:
    """The name of the lifetime that holds: the one asked for, else the first that the rules know."""
    wanted = next(iter(rules.ttls_seconds), "") if ttl is None else ttl
    if wanted not in rules.ttls_seconds:
        known = ", ".join(rules.ttls_seconds) or "none; add ttls_seconds to the cache rules"
        raise UserError(f"unknown cache lifetime {wanted!r}; known: {known}")
    return wanted
