"""How Anthropic is asked for nothing: `max_tokens` 0, and what cannot be combined with it."""

import msgspec

from holdfast.canonical.prompt import Parameters
from holdfast.providers.fields import decoded, extra_field, field_of


def emptied(parameters: Parameters) -> Parameters:
    return msgspec.structs.replace(parameters, output_tokens_max=0, stream=False)


def conflict_with_empty(parameters: Parameters) -> str | None:
    """In the provider's words, as it names them where it refuses."""
    thinking = field_of(decoded(parameters.thinking_json), "type")
    choice = field_of(decoded(parameters.tool_choice_json), "type")
    forbidden = {
        "stream: true": parameters.stream,
        'thinking.type "enabled"': thinking == "enabled",
        "output_config.format": field_of(extra_field(parameters, "output_config"), "format") is not None,
        f"tool_choice.type {choice!r}": choice in ("any", "tool"),
    }
    return next((what for what, present in forbidden.items() if present), None)
