"""Anthropic's cache diagnostics: what is compared, and how a request asks for it."""

from collections.abc import Sequence

from holdfast.canonical.prompt import Parameters
from holdfast.catalog.rows import CacheRules
from holdfast.providers.anthropic.diagnosing import FIELD
from holdfast.providers.fields import extra_field
from holdfast.providers.tier_parameters import anthropic_parameters
from holdfast.simulator.blocks import SentBlock
from holdfast.simulator.diagnosing import NO_WORD, Fingerprint, Wish, digest_of, digest_of_settings
from holdfast.simulator.dialect import refuse

_PREVIOUS = "previous_message_id"


def fingerprint_of(blocks: Sequence[SentBlock], parameters: Parameters, rules: CacheRules) -> Fingerprint:
    settings = anthropic_parameters((sent.block for sent in blocks), parameters)
    message_settings = ("thinking", "tool_choice", "images", "citations", "effort")
    return Fingerprint(
        digests=(
            # Anthropic reports a changed `speed` as a changed model.
            ("model_changed", digest_of_settings(settings, ("model", "speed"), rules)),
            ("tools_changed", digest_of(blocks, "tools")),
            ("system_changed", digest_of(blocks, "system")),
            # Differences in these parameters are reported as `unavailable`.
            (NO_WORD, digest_of_settings(settings, message_settings, rules)),
        ),
        prompt_reason="messages_changed",
    )


def wish_of(parameters: Parameters, rules: CacheRules) -> Wish | None:
    field = extra_field(parameters, FIELD)
    if field is None:
        return None
    if not rules.diagnoses_misses:
        raise refuse(f"{FIELD}: Extra inputs are not permitted")
    if not isinstance(field, dict) or not field.keys() <= {_PREVIOUS}:
        raise refuse(f"{FIELD}: must be an object with {_PREVIOUS}")
    previous = field.get(_PREVIOUS)
    if previous is not None and not isinstance(previous, str):
        raise refuse(f"{FIELD}.{_PREVIOUS}: must be text or null")
    return Wish(previous)
