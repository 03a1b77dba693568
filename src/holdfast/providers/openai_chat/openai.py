"""What OpenAI itself makes of chat completions."""

from holdfast.canonical.encoding import digest
from holdfast.catalog.rows import Model
from holdfast.providers.members import quoted
from holdfast.providers.openai_chat.flavour import Fields, Flavour
from holdfast.providers.openai_errors import write_error

CACHE_KEY_CHARS_MAX = 64


def _session_fields(model: Model, session_id: str) -> Fields:
    """The key brings a session's calls to one cache; how long that lasts is asked for as its generation takes it."""
    rules = model.cache
    if rules.kind == "none":
        return ()
    fitting = session_id if len(session_id) <= CACHE_KEY_CHARS_MAX else digest(session_id.encode(errors="replace"))
    key = ("prompt_cache_key", quoted(fitting).decode())
    if rules.kind == "breakpoints":
        return (key, ("prompt_cache_options", '{"mode":"implicit","ttl":"30m"}'))
    if rules.kind == "implicit" and "24h" in rules.ttls_seconds:
        return (key, ("prompt_cache_retention", '"24h"'))
    return (key,)


FLAVOUR = Flavour(
    name="openai-chat",
    vendor="OpenAI",
    output_limit_name="max_completion_tokens",
    thinking_name="reasoning_effort",
    mark_name="prompt_cache_breakpoint",
    marks={"30m": b'{"mode":"explicit"}', "12h": b'{"mode":"explicit","ttl":"12h"}'},
    markable_parts=frozenset({"image_url", "file", "input_audio"}),
    keeps_reasoning=False,
    session_fields=_session_fields,
    write_error=write_error,
    writes_for_5m=lambda model: False,
)
