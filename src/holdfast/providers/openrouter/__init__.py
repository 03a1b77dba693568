"""OpenRouter's variant of Chat Completions."""

from holdfast.catalog.schema import Model
from holdfast.providers.json_splice import encode_string
from holdfast.providers.openai_chat.adapter import ChatAdapter
from holdfast.providers.openai_chat.parameters import ChatVariant, RequestFields
from holdfast.providers.openai_common import encode_openrouter_error, fit_cache_key

SESSION_ID_CHARS_MAX = 256  # OpenRouter's limit.


def _session_fields(model: Model, session_id: str) -> RequestFields:
    """`session_id` routes a session to the same upstream provider from its first call on.

    Without it sticky routing starts only after a cached request (OpenRouter, "Prompt Caching")."""
    if not model.supports_prompt_caching:
        return ()
    return (("session_id", encode_string(fit_cache_key(session_id, SESSION_ID_CHARS_MAX)).decode()),)


OPENROUTER_VARIANT = ChatVariant(
    name="openrouter",
    vendor="OpenRouter",
    output_limit_name="max_tokens",
    thinking_name="reasoning",
    breakpoint_name="cache_control",
    breakpoints={"5m": b'{"type":"ephemeral"}', "1h": b'{"type":"ephemeral","ttl":"1h"}'},
    parts_with_breakpoints=frozenset(),
    carries_reasoning=True,
    session_fields=_session_fields,
    encode_error=encode_openrouter_error,
    # On routes to Anthropic, writes have its default TTL of 5m.
    writes_with_ttl_5m=lambda model: model.startswith("anthropic/"),
)

openrouter = ChatAdapter(OPENROUTER_VARIANT)
__all__ = ["OPENROUTER_VARIANT", "openrouter"]
