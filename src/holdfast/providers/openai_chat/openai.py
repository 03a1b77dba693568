"""OpenAI's own variant of Chat Completions."""

from holdfast.providers.openai_chat.flavour import Flavour
from holdfast.providers.openai_errors import write_error
from holdfast.providers.openai_fields import session_fields

FLAVOUR = Flavour(
    name="openai-chat",
    vendor="OpenAI",
    output_limit_name="max_completion_tokens",
    thinking_name="reasoning_effort",
    # OpenAI, "Prompt caching": explicit breakpoints on text, image, file and audio parts; the default TTL is 30m.
    mark_name="prompt_cache_breakpoint",
    marks={"30m": b'{"mode":"explicit"}', "12h": b'{"mode":"explicit","ttl":"12h"}'},
    markable_parts=frozenset({"image_url", "file", "input_audio"}),
    # OpenAI returns no reasoning through this API.
    keeps_reasoning=False,
    session_fields=session_fields,
    write_error=write_error,
    writes_for_5m=lambda model: False,
)
