"""Pings to Anthropic: `max_tokens` 0 writes and refreshes the cache without output (Anthropic, "Prompt caching")."""

import msgspec

from holdfast.canonical.prompt import Parameters
from holdfast.providers.fields import decoded, extra_field, field_of


def emptied(parameters: Parameters) -> Parameters:
    return msgspec.structs.replace(parameters, output_tokens_max=0, stream=False)


def conflict_with_empty(parameters: Parameters) -> str | None:
    """The first parameter that the provider refuses together with `max_tokens` 0, named as in its documentation."""
    thinking_type = field_of(decoded(parameters.thinking_json), "type")
    choice_type = field_of(decoded(parameters.tool_choice_json), "type")
    # Each of these is answered with 400; so is `max_tokens` 0 in a batch, which we never send.
    conflicts = {
        "stream: true": parameters.stream,
        'thinking.type "enabled"': thinking_type == "enabled",
        "output_config.format": field_of(extra_field(parameters, "output_config"), "format") is not None,
        f"tool_choice.type {choice_type!r}": choice_type in ("any", "tool"),
    }
    return next((name for name, is_present in conflicts.items() if is_present), None)
