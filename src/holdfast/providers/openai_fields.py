"""The request fields that keep a session on one of OpenAI's caches, for both of its APIs."""

from holdfast.canonical.blocks import mend_surrogates
from holdfast.canonical.encoding import digest
from holdfast.catalog.rows import Model
from holdfast.providers.members import quoted

CACHE_KEY_CHARS_MAX = 64
EXTENDED_RETENTION = "24h"


def session_fields(model: Model, session_id: str) -> tuple[tuple[str, str], ...]:
    """One cache key per session; the longest TTL where it is free, the default TTL where writes are charged."""
    rules = model.cache
    if rules.kind == "none" or not model.supports_prompt_caching:
        return ()
    key = ("prompt_cache_key", quoted(fitting_key(session_id, CACHE_KEY_CHARS_MAX)).decode())
    # OpenAI, "Prompt caching": GPT-5.6 and later take `prompt_cache_options` and charge 1.25x for writes; older models
    # take `prompt_cache_retention`, and their writes are free.
    if rules.kind == "breakpoints":
        # Implicit mode writes the end of the newest message and looks back over 20 earlier message ends. Explicit mode
        # would look up only the breakpoints of the current request.
        return (key, ("prompt_cache_options", '{"mode":"implicit","ttl":"30m"}'))
    if rules.kind == "implicit" and EXTENDED_RETENTION in rules.ttls_seconds:
        return (key, ("prompt_cache_retention", f'"{EXTENDED_RETENTION}"'))
    return (key,)


def fitting_key(session_id: str, chars_max: int) -> str:
    """The id itself, or its digest if it is too long."""
    return session_id if len(session_id) <= chars_max else digest(mend_surrogates(session_id).encode())
