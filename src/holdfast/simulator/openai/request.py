"""Parses a request as OpenAI does: what the model, the cache and cache diagnostics see of it."""

from collections.abc import Callable, Sequence
from itertools import zip_longest

import msgspec

from holdfast.cachemodel.tiers import chain_prefixes, chain_seeds
from holdfast.cachemodel.values import CacheCall, CacheScope
from holdfast.catalog.schema import CacheRules, Model
from holdfast.providers.adapter import Adapter, WireRequest
from holdfast.providers.cache_inputs import openai_cache_inputs
from holdfast.providers.json_splice import extra_field
from holdfast.simulator import cache_diagnostics, request_blocks
from holdfast.simulator.openai import validation
from holdfast.simulator.provider_api import AcceptedRequest, RequestContext, refuse
from holdfast.types.prompt import Breakpoint, Parameters
from holdfast.types.transcript import merge_into_messages


class OpenAIInterface(msgspec.Struct, frozen=True):
    """The differences between OpenAI's two APIs: field names, cache options and checks."""

    adapter: Adapter
    prompt_name: str
    cache_options: frozenset[str]
    check_calls: validation.CheckCalls
    check_thinking: Callable[[Sequence[request_blocks.SentBlock]], None]


def parse_openai_request(
    wire: WireRequest, context: RequestContext, interface: OpenAIInterface, *, counting: bool = False
) -> AcceptedRequest:
    """Raises `ProviderError` for what the provider refuses. With `counting`, output limits are not checked."""
    parameters = wire.parameters
    model = validation.find_openai_model(parameters.model, context.models)
    messages = merge_into_messages(wire.prompt.entries)
    if not messages:
        raise refuse(f"Invalid '{interface.prompt_name}': it holds nothing to answer to.")
    validation.check_openai_types(parameters)
    if not counting:
        validation.check_openai_output(parameters, model)
    interface.check_calls(messages)
    sent = request_blocks.list_sent_blocks(interface.adapter, wire)
    validation.check_openai_tools(sent, parameters)
    validation.check_openai_breakpoints(sent, model)
    interface.check_thinking(sent)
    options = read_cache_options(parameters, model.cache, known=interface.cache_options)
    call = make_openai_cache_call(sent, parameters, model=model, options=options, context=context)
    validation.check_openai_window(call.tokens, model)
    compared_id = options.comparison_response_id
    return AcceptedRequest(
        model=model,
        parameters=parameters,
        messages=messages,
        call=call,
        conversations=request_blocks.digest_conversation_starts(context.workspace, sent),
        prefix=request_blocks.digest_conversation(sent),
        # A prewarming request gets no output.
        prewarm_stop_reason="end_turn" if options.is_prewarm else None,
        fingerprint=fingerprint_openai_request(sent, parameters, model.cache),
        diagnosis_request=cache_diagnostics.DiagnosisRequest(compared_id) if compared_id is not None else None,
    )


class CacheOptions(msgspec.Struct, frozen=True):
    """`ttl` applies to the implicit breakpoint; `explicit_only` turns the implicit breakpoint off.

    `comparison_response_id` is the id of the response that cache diagnostics compare with.
    """

    ttl: str | None = None
    explicit_only: bool = False
    is_prewarm: bool = False
    comparison_response_id: str | None = None


def make_openai_cache_call(
    blocks: Sequence[request_blocks.SentBlock],
    parameters: Parameters,
    *,
    model: Model,
    options: CacheOptions,
    context: RequestContext,
) -> CacheCall:
    """The request as the cache sees it."""
    # The implicit breakpoint may be at the end of a user message, of a group of tool results, or of the initial
    # developer messages (OpenAI's prompt caching guide); those ends are marked here.
    seeds = chain_seeds(model.cache, openai_cache_inputs(parameters))
    start = _conversation_start(blocks)
    cache_blocks = (
        request_blocks.make_cache_block(
            sent,
            "system" if index < start and sent.encoded.section == "messages" else sent.encoded.section,
            model=model,
            count=context.count,
            ending=(index == start - 1 and sent.encoded.section != "tools") or _ends_turn(sent, following),
        )
        for index, (sent, following) in enumerate(zip_longest(blocks, blocks[1:]))
    )
    breakpoints = tuple(Breakpoint(index, sent.ttl) for index, sent in enumerate(blocks) if sent.ttl is not None)
    scope = CacheScope(context.workspace, parameters.model)
    prefixes = chain_prefixes(seeds, cache_blocks)
    return CacheCall(scope, prefixes, breakpoints, context.at, options.ttl, options.explicit_only)


def _conversation_start(blocks: Sequence[request_blocks.SentBlock]) -> int:
    """The number of blocks before the conversation: tools, and the leading developer messages."""
    conversation_blocks = (index for index, sent in enumerate(blocks) if sent.encoded.role in ("user", "assistant"))
    return next(conversation_blocks, len(blocks))


def _ends_turn(sent: request_blocks.SentBlock, following: request_blocks.SentBlock | None) -> bool:
    """Whether the block ends a user message, or a run of tool results."""
    if sent.encoded.role != "user":
        return False
    if following is None or following.encoded.role != "user":
        return True
    return following.kind != "tool_result" if sent.kind == "tool_result" else bool(following.encoded.container_start)


CACHE_KEY_CHARS_MAX = 64
_OPTIONS = "prompt_cache_options"
_RETENTION = "prompt_cache_retention"
_KEY = "prompt_cache_key"
_COMPARISON = "comparison_response_id"


def read_cache_options(parameters: Parameters, rules: CacheRules, *, known: frozenset[str]) -> CacheOptions:
    """`known` are the options of this API."""
    key = extra_field(parameters, _KEY)
    if key is not None and not (isinstance(key, str) and len(key) <= CACHE_KEY_CHARS_MAX):
        raise refuse(f"Invalid '{_KEY}': expected a string of at most {CACHE_KEY_CHARS_MAX} characters.")
    field = extra_field(parameters, _OPTIONS)
    retention = extra_field(parameters, _RETENTION)
    # GPT-5.6 and later take `prompt_cache_options`, earlier models `prompt_cache_retention`.
    if rules.kind == "hybrid":
        if retention is not None:
            raise refuse(f"Unsupported parameter: '{_RETENTION}' is not supported with this model; use {_OPTIONS}.ttl.")
        return CacheOptions() if field is None else _parse_options(field, rules, known)
    if field is not None:
        raise refuse(f"Unsupported parameter: '{_OPTIONS}' is not supported with this model.")
    if retention is not None and (not isinstance(retention, str) or retention not in rules.ttls_seconds):
        supported = " or ".join(repr(ttl) for ttl in rules.ttls_seconds) or "none"
        raise refuse(f"Invalid value for '{_RETENTION}': this model supports {supported}.")
    return CacheOptions(ttl=retention if isinstance(retention, str) else None)


def _parse_options(field: object, rules: CacheRules, known: frozenset[str]) -> CacheOptions:
    if not isinstance(field, dict):
        raise refuse(f"Invalid type for '{_OPTIONS}': expected an object.")
    if unknown := sorted(set(field) - known):
        raise refuse(f"Unknown parameter: '{_OPTIONS}.{unknown[0][:60]}'.")
    mode, ttl, prewarm = field.get("mode", "implicit"), field.get("ttl"), field.get("prewarm", False)
    if mode not in ("implicit", "explicit"):
        raise refuse(f"Invalid value for '{_OPTIONS}.mode': supported values are 'implicit' and 'explicit'.")
    if ttl is not None and (not isinstance(ttl, str) or ttl not in rules.ttls_seconds):
        supported = " and ".join(repr(name) for name in rules.ttls_seconds)
        raise refuse(f"Invalid value for '{_OPTIONS}.ttl': supported values are {supported}.")
    if not isinstance(prewarm, bool):
        raise refuse(f"Invalid type for '{_OPTIONS}.prewarm': expected a boolean.")
    return CacheOptions(ttl, mode == "explicit", prewarm, _comparison(field, rules))


def _comparison(field: dict[str, object], rules: CacheRules) -> str | None:
    if _COMPARISON in field and not rules.diagnoses_misses:
        raise refuse(f"Unknown parameter: '{_OPTIONS}.{_COMPARISON}'.")
    id = field.get(_COMPARISON)
    if id is not None and not isinstance(id, str):
        raise refuse(f"Invalid type for '{_OPTIONS}.{_COMPARISON}': expected a string.")
    return id


_BEFORE_TOOLS = ("model", "prompt_cache_key", "service_tier")
_AFTER_TOOLS = ("text_format", "reasoning_effort", "verbosity")


def fingerprint_openai_request(
    blocks: Sequence[request_blocks.SentBlock], parameters: Parameters, rules: CacheRules
) -> cache_diagnostics.DiagnosisFingerprint:
    parameter_values = openai_cache_inputs(parameters)

    def digests_of(*names: str) -> tuple[tuple[str, str], ...]:
        return tuple(
            (f"{name}_changed", cache_diagnostics.digest_settings(parameter_values, (name,), rules)) for name in names
        )

    return cache_diagnostics.DiagnosisFingerprint(
        digests=(
            *digests_of(*_BEFORE_TOOLS),
            ("tools_changed", cache_diagnostics.digest_section(blocks, "tools")),
            *digests_of(*_AFTER_TOOLS),
            # It invalidates the cache, but OpenAI has no reason code for it.
            (
                cache_diagnostics.NO_REASON,
                cache_diagnostics.digest_settings(parameter_values, ("parallel_tool_calls",), rules),
            ),
        ),
        prompt_reason="input_changed",
        hit_requires_read=True,
    )
