"""A request as Anthropic's cache sees it, and as its cache diagnostics compare it.

The cache sees blocks in hashing order, and the parameters that each tier depends on.
"""

from collections.abc import Sequence

from holdfast.cachemodel.tiers import chain_prefixes, chain_seeds
from holdfast.cachemodel.values import CacheCall, CacheScope
from holdfast.catalog.schema import CacheRules, Model
from holdfast.providers.anthropic.cache_diagnostics import DIAGNOSTICS_FIELD
from holdfast.providers.cache_inputs import anthropic_cache_inputs, is_web_search
from holdfast.providers.json_splice import extra_field
from holdfast.simulator import cache_diagnostics
from holdfast.simulator.provider_api import RequestContext, refuse
from holdfast.simulator.request_blocks import SentBlock, make_cache_block
from holdfast.types.prompt import Breakpoint, Parameters, PromptSection

# Anthropic hashes tools, then system, then messages, cumulatively (its page "Prompt caching").
_SECTIONS: tuple[PromptSection, ...] = ("tools", "system", "messages")


def make_anthropic_cache_call(
    blocks: Sequence[SentBlock], parameters: Parameters, *, model: Model, context: RequestContext
) -> CacheCall:
    """The request as the cache sees it."""
    # Switching web search keeps the tools tier and loses the later ones, so its definition counts as system text.
    ordered = sorted(blocks, key=lambda sent: _SECTIONS.index(_tier(sent)))
    seeds = chain_seeds(model.cache, anthropic_cache_inputs((sent.block for sent in blocks), parameters))
    cache_blocks = (make_cache_block(sent, _tier(sent), model=model, count=context.count) for sent in ordered)
    breakpoints = tuple(Breakpoint(index, sent.ttl) for index, sent in enumerate(ordered) if sent.ttl is not None)
    scope = CacheScope(context.workspace, parameters.model)
    return CacheCall(scope, chain_prefixes(seeds, cache_blocks), breakpoints, context.at)


def _tier(sent: SentBlock) -> PromptSection:
    return "system" if is_web_search(sent.block) else sent.encoded.section


_PREVIOUS = "previous_message_id"


def fingerprint_anthropic_request(
    blocks: Sequence[SentBlock], parameters: Parameters, rules: CacheRules
) -> cache_diagnostics.DiagnosisFingerprint:
    settings = anthropic_cache_inputs((sent.block for sent in blocks), parameters)
    message_settings = ("thinking", "tool_choice", "images", "citations", "effort")
    return cache_diagnostics.DiagnosisFingerprint(
        digests=(
            # Anthropic reports a changed `speed` as a changed model.
            ("model_changed", cache_diagnostics.digest_settings(settings, ("model", "speed"), rules)),
            ("tools_changed", cache_diagnostics.digest_section(blocks, "tools")),
            ("system_changed", cache_diagnostics.digest_section(blocks, "system")),
            # Differences in these parameters are reported as `unavailable`.
            (cache_diagnostics.NO_REASON, cache_diagnostics.digest_settings(settings, message_settings, rules)),
        ),
        prompt_reason="messages_changed",
    )


def read_diagnosis_request(parameters: Parameters, rules: CacheRules) -> cache_diagnostics.DiagnosisRequest | None:
    field = extra_field(parameters, DIAGNOSTICS_FIELD)
    if field is None:
        return None
    if not rules.diagnoses_misses:
        raise refuse(f"{DIAGNOSTICS_FIELD}: Extra inputs are not permitted")
    if not isinstance(field, dict) or not field.keys() <= {_PREVIOUS}:
        raise refuse(f"{DIAGNOSTICS_FIELD}: must be an object with {_PREVIOUS}")
    previous = field.get(_PREVIOUS)
    if previous is not None and not isinstance(previous, str):
        raise refuse(f"{DIAGNOSTICS_FIELD}.{_PREVIOUS}: must be text or null")
    return cache_diagnostics.DiagnosisRequest(previous)
