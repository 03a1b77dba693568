"""OpenAI's cache diagnostics: what is compared."""

from collections.abc import Sequence

from holdfast.canonical.prompt import Parameters
from holdfast.catalog.rows import CacheRules
from holdfast.providers.tier_parameters import openai_parameters
from holdfast.simulator.blocks import SentBlock
from holdfast.simulator.diagnosing import NO_WORD, Fingerprint, digest_of, digest_of_settings

_BEFORE_TOOLS = ("model", "prompt_cache_key", "service_tier")
_AFTER_TOOLS = ("text_format", "reasoning_effort", "verbosity")


def fingerprint_of(blocks: Sequence[SentBlock], parameters: Parameters, rules: CacheRules) -> Fingerprint:
    parameter_values = openai_parameters(parameters)

    def digests_of(*names: str) -> tuple[tuple[str, str], ...]:
        return tuple((f"{name}_changed", digest_of_settings(parameter_values, (name,), rules)) for name in names)

    return Fingerprint(
        digests=(
            *digests_of(*_BEFORE_TOOLS),
            ("tools_changed", digest_of(blocks, "tools")),
            *digests_of(*_AFTER_TOOLS),
            # It invalidates the cache, but OpenAI has no reason code for it.
            (NO_WORD, digest_of_settings(parameter_values, ("parallel_tool_calls",), rules)),
        ),
        prompt_reason="input_changed",
        hits_are_read=True,
    )
