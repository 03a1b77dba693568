"""How to invalidate a provider's cache.

No provider lets a client evict an implicit cache, so requests are changed in a way that no longer matches it.
"""

from typing import Literal

from holdfast.catalog.rows import Model

Way = Literal["cache_key", "prefix_nonce"]


def ways_to_give_up(model: Model) -> tuple[Way, ...]:
    """A new cache key if requests carry one; a new first system text if only the prefix counts. Tools stay cached."""
    match model.provider:
        # `prompt_cache_key` separates caches (OpenAI, "Prompt caching").
        case "openai" | "openai-chat":
            return ("cache_key",)
        case "openrouter":
            return ("cache_key", "prefix_nonce") if model.cache.kind == "marks" else ("cache_key",)
        # The command builds its own requests.
        case "claude-code":
            return ()
        case _:
            return ("prefix_nonce",)
