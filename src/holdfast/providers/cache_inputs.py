"""What a cached prefix depends on besides its blocks: parameters, automatic breakpoints, ways to invalidate it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.cachemodel.tiers import CacheParameters
from holdfast.catalog.schema import CacheRules, Model
from holdfast.providers.gemini.encode import TOOL_CONFIG
from holdfast.providers.json_splice import canonicalize_json, decode_json_or_none, extra_field, nested_field
from holdfast.types.blocks import Block, Image, Opaque, ToolResult
from holdfast.types.json_encoding import canonical_json
from holdfast.types.prompt import OLD_THINKING, Breakpoint, Parameters
from holdfast.types.request_buffer import EncodedBlock
from holdfast.types.tool_spec import ToolSpec

InvalidationMethod = Literal["cache_key", "prefix_nonce"]


def anthropic_cache_inputs(blocks: Iterable[Block | ToolSpec], parameters: Parameters) -> CacheParameters:
    """The parameters that invalidate a cached prefix when they change (Anthropic, "Prompt caching")."""
    content = tuple(blocks)
    speed = extra_field(parameters, "speed")
    effort = nested_field(extra_field(parameters, "output_config"), "effort")
    return CacheParameters(
        model=parameters.model,
        speed=speed if isinstance(speed, str) else None,
        web_search=any(is_web_search(block) for block in content),
        citations=any(_has_citations(block) for block in content),
        tool_choice=canonicalize_json(parameters.tool_choice_json),
        thinking=canonicalize_json(parameters.thinking_json),
        # Adding or removing an image anywhere invalidates all messages.
        images=any(has_image(block) for block in content),
        # No source settles whether effort invalidates: the model's `effort_breaks_messages` decides.
        effort=effort if isinstance(effort, str) else None,
    )


def openai_cache_inputs(parameters: Parameters) -> CacheParameters:
    """Reads the field names of both of OpenAI's APIs; no name has two meanings.

    The parameters are the invalidators in OpenAI's "Prompt caching" guide."""
    text = extra_field(parameters, "text")
    tool_choice = decode_json_or_none(parameters.tool_choice_json)
    disables_parallel = nested_field(tool_choice, "disable_parallel_tool_use") is True
    others = {
        "parallel_tool_calls": False if disables_parallel else extra_field(parameters, "parallel_tool_calls"),
        "text_format": extra_field(parameters, "response_format") or nested_field(text, "format"),
        "reasoning_effort": nested_field(decode_json_or_none(parameters.thinking_json), "effort"),
        "verbosity": extra_field(parameters, "verbosity") or nested_field(text, "verbosity"),
        "service_tier": extra_field(parameters, "service_tier"),
        "prompt_cache_key": extra_field(parameters, "prompt_cache_key"),
    }
    # The defaults of the API: setting them changes nothing.
    defaults = {"parallel_tool_calls": True, "service_tier": "auto"}
    changed = {name: value for name, value in others.items() if value not in (None, defaults.get(name))}
    encoded = {name: canonical_json(value).decode() for name, value in changed.items()}
    return CacheParameters(parameters.model, others={**dict.fromkeys(others), **encoded})


def gemini_cache_inputs(parameters: Parameters, others: Mapping[str, str | None]) -> CacheParameters:
    """`others` are further properties of the prefix that the caller knows."""
    tool_config = extra_field(parameters, TOOL_CONFIG)
    choice = canonical_json(tool_config).decode() if tool_config else canonicalize_json(parameters.tool_choice_json)
    return CacheParameters(parameters.model, others={"tool_config": choice, **others})


def cache_settings(
    provider: str, rules: CacheRules, parameters: Parameters, *, ended_thinking: int = 0
) -> tuple[tuple[str, str], ...]:
    """The set parameters that a cached prefix depends on, as sorted (name, value) pairs, without the model.

    A model that drops the thinking of earlier turns sees another prefix once a turn with `ended_thinking` has ended.
    """
    if provider == "gemini":
        inputs = gemini_cache_inputs(parameters, {})
    elif rules.kind == "explicit":
        inputs = anthropic_cache_inputs((), parameters)
    else:
        inputs = openai_cache_inputs(parameters)
    by_name: dict[str, object] = {**msgspec.structs.asdict(inputs), **inputs.others}
    if rules.strips_old_thinking and ended_thinking:
        by_name[OLD_THINKING] = str(ended_thinking)
    return tuple((name, value) for name, value in sorted(by_name.items()) if isinstance(value, str) and name != "model")


def is_web_search(block: Block | ToolSpec) -> bool:
    """Whether it is Anthropic's web search. It is rendered after the other tools, so toggling it keeps their cache."""
    if not isinstance(block, ToolSpec) or block.wire_json is None:
        return False
    return str(nested_field(decode_json_or_none(block.wire_json), "type")).startswith("web_search_")


def has_image(block: Block | ToolSpec) -> bool:
    if isinstance(block, ToolResult):
        return any(has_image(part) for part in block.content)
    return isinstance(block, Image) or (isinstance(block, Opaque) and block.kind == "image")


def _has_citations(block: Block | ToolSpec) -> bool:
    if not isinstance(block, Opaque):
        return False
    return nested_field(decode_json_or_none(block.raw.decode(errors="replace")), "citations", "enabled") is True


def automatic_breakpoint(
    parameters: Parameters, blocks: Sequence[EncodedBlock], breakpoints: Sequence[Breakpoint], rules: CacheRules
) -> tuple[Breakpoint, ...]:
    """The breakpoint after all others; none if it was not asked for, is not supported, or is already there."""
    cache_control = extra_field(parameters, "cache_control")
    if cache_control is None or not rules.accepts_automatic_breakpoint:
        return ()
    # On the last cacheable block: an ineligible one makes the provider walk back (Anthropic, "Prompt caching").
    last = next((index for index in reversed(range(len(blocks))) if blocks[index].accepts_breakpoint), None)
    if last is None or any(point.block_index == last for point in breakpoints):
        return ()
    return (Breakpoint(last, "1h" if nested_field(cache_control, "ttl") == "1h" else "5m", "automatic"),)


def invalidation_methods(model: Model) -> tuple[InvalidationMethod, ...]:
    """A new cache key if requests carry one; a new first system text if only the prefix counts. Tools stay cached."""
    match model.provider:
        # `prompt_cache_key` separates caches (OpenAI, "Prompt caching").
        case "openai" | "openai-chat":
            return ("cache_key",)
        case "openrouter":
            return ("cache_key", "prefix_nonce") if model.cache.kind == "explicit" else ("cache_key",)
        # The command builds its own requests.
        case "claude-code":
            return ()
        case _:
            return ("prefix_nonce",)
