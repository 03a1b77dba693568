"""Which fields keep a session on one of OpenAI's caches, whichever of its APIs is spoken."""

from holdfast.canonical.blocks import mend_surrogates
from holdfast.canonical.encoding import digest
from holdfast.catalog.rows import Model
from holdfast.providers.members import quoted

CACHE_KEY_CHARS_MAX = 64
EXTENDED_RETENTION = "24h"


def session_fields(model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
    """One key a session; a long lifetime where it costs nothing, the default one where writes are paid for."""
    rules = model.cache
    if rules.kind == "none" or not model.supports_prompt_caching:
        return ()
    key = ("prompt_cache_key", quoted(fitting_key(session_id, CACHE_KEY_CHARS_MAX)).decode())
    if rules.kind == "breakpoints":
        return (key, ("prompt_cache_options", '{"mode":"implicit","ttl":"30m"}'))
    if rules.kind == "implicit" and EXTENDED_RETENTION in rules.ttls_seconds:
        return (key, ("prompt_cache_retention", f'"{EXTENDED_RETENTION}"'))
    return (key,)


def fitting_key(session_id: str, chars_max: int) -> str:
    """The id itself, or what always stands for one that is too long."""
    return session_id if len(session_id) <= chars_max else digest(mend_surrogates(session_id).encode())
