"""How a cache is given up that nobody but its provider could empty: by asking in a way that finds nothing of it."""

from typing import Literal

from holdfast.catalog.rows import Model

Way = Literal["cache_key", "prefix_nonce"]


def ways_to_give_up(model: Model) -> tuple[Way, ...]:
    """Another key where requests carry one; another first text where the prefix alone decides. Tools stay."""
    match model.provider:
        case "openai" | "openai-chat":
            return ("cache_key",)
        case "openrouter":
            return ("cache_key", "prefix_nonce") if model.cache.kind == "marks" else ("cache_key",)
        case "claude-code":
            return ()
        case _:
            return ("prefix_nonce",)
