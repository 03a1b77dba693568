"""OpenAI's cache options of a request, and which models accept them."""

import msgspec

from holdfast.canonical.prompt import Parameters
from holdfast.catalog.rows import CacheRules
from holdfast.providers.fields import extra_field
from holdfast.simulator.dialect import refuse

CACHE_KEY_CHARS_MAX = 64

_OPTIONS = "prompt_cache_options"
_RETENTION = "prompt_cache_retention"
_KEY = "prompt_cache_key"
_COMPARISON = "comparison_response_id"


class CacheOptions(msgspec.Struct, frozen=True):
    """`ttl` applies to the implicit breakpoint; `explicit_only` turns the implicit breakpoint off.

    `comparison_response_id` is the id of the response that cache diagnostics compare with.
    """

    ttl: str | None = None
    only_marks: bool = False
    prewarms: bool = False
    comparison: str | None = None


def cache_options(parameters: Parameters, rules: CacheRules, *, known: frozenset[str]) -> CacheOptions:
    """`known` are the options of this API."""
    key = extra_field(parameters, _KEY)
    if key is not None and not (isinstance(key, str) and len(key) <= CACHE_KEY_CHARS_MAX):
        raise refuse(f"Invalid '{_KEY}': expected a string of at most {CACHE_KEY_CHARS_MAX} characters.")
    field = extra_field(parameters, _OPTIONS)
    retention = extra_field(parameters, _RETENTION)
    # GPT-5.6 and later take `prompt_cache_options`, earlier models `prompt_cache_retention`.
    if rules.kind == "breakpoints":
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
    return CacheOptions(ttl=ttl, only_marks=mode == "explicit", prewarms=prewarm, comparison=_comparison(field, rules))


def _comparison(field: dict[str, object], rules: CacheRules) -> str | None:
    if _COMPARISON in field and not rules.diagnoses_misses:
        raise refuse(f"Unknown parameter: '{_OPTIONS}.{_COMPARISON}'.")
    id = field.get(_COMPARISON)
    if id is not None and not isinstance(id, str):
        raise refuse(f"Invalid type for '{_OPTIONS}.{_COMPARISON}': expected a string.")
    return id
