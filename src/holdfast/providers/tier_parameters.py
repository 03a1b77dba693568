"""The request parameters that a cached prefix depends on besides its blocks, for each provider."""

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.cachemodel.tiers import TierParameters
from holdfast.canonical.blocks import Block, Image, Opaque, ToolResult
from holdfast.canonical.encoding import canonical_json
from holdfast.canonical.prompt import Parameters
from holdfast.canonical.tools import ToolSpec
from holdfast.catalog.rows import CacheRules
from holdfast.providers.fields import decoded, extra_field, field_of, same_spelling
from holdfast.providers.gemini.opening import TOOL_CONFIG


def anthropic_parameters(blocks: Iterable[Block | ToolSpec], parameters: Parameters) -> TierParameters:
    """The parameters that invalidate a cached prefix when they change (Anthropic, "Prompt caching")."""
    content = tuple(blocks)
    speed = extra_field(parameters, "speed")
    effort = field_of(extra_field(parameters, "output_config"), "effort")
    return TierParameters(
        model=parameters.model,
        speed=speed if isinstance(speed, str) else None,
        web_search=any(is_web_search(block) for block in content),
        citations=any(_has_citations(block) for block in content),
        tool_choice=same_spelling(parameters.tool_choice_json),
        thinking=same_spelling(parameters.thinking_json),
        # Adding or removing an image anywhere invalidates all messages.
        images=any(_has_image(block) for block in content),
        # No source settles whether effort invalidates: the model's `effort_breaks_messages` decides.
        effort=effort if isinstance(effort, str) else None,
    )


def openai_parameters(parameters: Parameters) -> TierParameters:
    """Reads the field names of both of OpenAI's APIs; no name has two meanings.

    The parameters are the invalidators in OpenAI's "Prompt caching" guide."""
    text = extra_field(parameters, "text")
    tool_choice = decoded(parameters.tool_choice_json)
    disables_parallel = field_of(tool_choice, "disable_parallel_tool_use") is True
    others = {
        "parallel_tool_calls": False if disables_parallel else extra_field(parameters, "parallel_tool_calls"),
        "text_format": extra_field(parameters, "response_format") or field_of(text, "format"),
        "reasoning_effort": field_of(decoded(parameters.thinking_json), "effort"),
        "verbosity": extra_field(parameters, "verbosity") or field_of(text, "verbosity"),
        "service_tier": extra_field(parameters, "service_tier"),
        "prompt_cache_key": extra_field(parameters, "prompt_cache_key"),
    }
    # The defaults of the API: setting them changes nothing.
    defaults = {"parallel_tool_calls": True, "service_tier": "auto"}
    return TierParameters(
        parameters.model,
        others={
            name: None if value in (None, defaults.get(name)) else canonical_json(value).decode()
            for name, value in others.items()
        },
    )


def gemini_parameters(parameters: Parameters, others: Mapping[str, str | None]) -> TierParameters:
    """`others` are further properties of the prefix that the caller knows."""
    tool_config = extra_field(parameters, TOOL_CONFIG)
    choice = canonical_json(tool_config).decode() if tool_config else same_spelling(parameters.tool_choice_json)
    return TierParameters(parameters.model, others={"tool_config": choice, **others})


def settings_of(provider: str, rules: CacheRules, parameters: Parameters) -> tuple[tuple[str, str], ...]:
    """The set parameters that a cached prefix depends on, as sorted (name, value) pairs, without the model."""
    if provider == "gemini":
        inputs = gemini_parameters(parameters, {})
    elif rules.kind == "marks":
        inputs = anthropic_parameters((), parameters)
    else:
        inputs = openai_parameters(parameters)
    by_name: dict[str, object] = {**msgspec.structs.asdict(inputs), **inputs.others}
    return tuple((name, value) for name, value in sorted(by_name.items()) if isinstance(value, str) and name != "model")


def is_web_search(block: Block | ToolSpec) -> bool:
    """Whether it is Anthropic's web search. It is rendered after the other tools, so toggling it keeps their cache."""
    if not isinstance(block, ToolSpec) or block.wire_json is None:
        return False
    return str(field_of(decoded(block.wire_json), "type")).startswith("web_search_")


def _has_image(block: Block | ToolSpec) -> bool:
    if isinstance(block, ToolResult):
        return any(_has_image(part) for part in block.content)
    return isinstance(block, Image) or (isinstance(block, Opaque) and block.kind == "image")


def _has_citations(block: Block | ToolSpec) -> bool:
    if not isinstance(block, Opaque):
        return False
    return field_of(decoded(block.raw.decode(errors="replace")), "citations", "enabled") is True
