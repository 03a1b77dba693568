"""What a cached prefix depends on beside its blocks, read from a request, for each provider's rules."""

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
    sent = tuple(blocks)
    speed = extra_field(parameters, "speed")
    effort = field_of(extra_field(parameters, "output_config"), "effort")
    return TierParameters(
        model=parameters.model,
        speed=speed if isinstance(speed, str) else None,
        web_search=any(is_web_search(block) for block in sent),
        citations=any(_has_citations(block) for block in sent),
        tool_choice=same_spelling(parameters.tool_choice_json),
        thinking=same_spelling(parameters.thinking_json),
        images=any(_has_image(block) for block in sent),
        effort=effort if isinstance(effort, str) else None,
    )


def openai_parameters(parameters: Parameters) -> TierParameters:
    """By the names of both of OpenAI's interfaces; none of them means two things."""
    words = extra_field(parameters, "text")
    chosen = decoded(parameters.tool_choice_json)
    one_call = field_of(chosen, "disable_parallel_tool_use") is True
    others = {
        "parallel_tool_calls": False if one_call else extra_field(parameters, "parallel_tool_calls"),
        "text_format": extra_field(parameters, "response_format") or field_of(words, "format"),
        "reasoning_effort": field_of(decoded(parameters.thinking_json), "effort"),
        "verbosity": extra_field(parameters, "verbosity") or field_of(words, "verbosity"),
        "service_tier": extra_field(parameters, "service_tier"),
        "prompt_cache_key": extra_field(parameters, "prompt_cache_key"),
    }
    # Both of these are what holds when nothing is said.
    defaults = {"parallel_tool_calls": True, "service_tier": "auto"}
    return TierParameters(
        parameters.model,
        others={
            name: None if value in (None, defaults.get(name)) else canonical_json(value).decode()
            for name, value in others.items()
        },
    )


def gemini_parameters(parameters: Parameters, others: Mapping[str, str | None]) -> TierParameters:
    """`others` are what the caller knows of the head besides."""
    foreign = extra_field(parameters, TOOL_CONFIG)
    chosen = canonical_json(foreign).decode() if foreign else same_spelling(parameters.tool_choice_json)
    return TierParameters(parameters.model, others={"tool_config": chosen, **others})


def settings_of(provider: str, rules: CacheRules, parameters: Parameters) -> tuple[tuple[str, str], ...]:
    """What of the parameters a cached prefix depends on, by name; whatever is not set is left out."""
    if provider == "gemini":
        found = gemini_parameters(parameters, {})
    elif rules.kind == "marks":
        found = anthropic_parameters((), parameters)
    else:
        found = openai_parameters(parameters)
    named: dict[str, object] = {**msgspec.structs.asdict(found), **found.others}
    return tuple((name, value) for name, value in sorted(named.items()) if isinstance(value, str) and name != "model")


def is_web_search(block: Block | ToolSpec) -> bool:
    """Whether it is Anthropic's own tool, which is rendered behind the other tools."""
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
