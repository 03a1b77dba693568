"""What a request asks of OpenAI's cache, and which models take it."""

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
    """`ttl` is the lifetime of what nobody marked; `only_marks` turns the implicit breakpoint off.

    `comparison` is the response that the cache's use is to be compared with.
    """

    ttl: str | None = None
    only_marks: bool = False
    prewarms: bool = False
    comparison: str | None = None


def cache_options(parameters: Parameters, rules: CacheRules, *, known: frozenset[str]) -> CacheOptions:
    """`known` are the options that this interface has."""
    key = extra_field(parameters, _KEY)
    if key is not None and not (isinstance(key, str) and len(key) <= CACHE_KEY_CHARS_MAX):
        raise refuse(f"Invalid '{_KEY}': expected a string of at most {CACHE_KEY_CHARS_MAX} characters.")
    asked = extra_field(parameters, _OPTIONS)
    retention = extra_field(parameters, _RETENTION)
    if rules.kind == "breakpoints":
        if retention is not None:
            raise refuse(f"Unsupported parameter: '{_RETENTION}' is not supported with this model; use {_OPTIONS}.ttl.")
        return CacheOptions() if asked is None else _read_options(asked, rules, known)
    if asked is not None:
        raise refuse(f"Unsupported parameter: '{_OPTIONS}' is not supported with this model.")
    if retention is not None and (not isinstance(retention, str) or retention not in rules.ttls_seconds):
        supported = " or ".join(repr(ttl) for ttl in rules.ttls_seconds) or "none"
        raise refuse(f"Invalid value for '{_RETENTION}': this model supports {supported}.")
    return CacheOptions(ttl=retention if isinstance(retention, str) else None)


def _read_options(asked: object, rules: CacheRules, known: frozenset[str]) -> CacheOptions:
    if not isinstance(asked, dict):
        raise refuse(f"Invalid type for '{_OPTIONS}': expected an object.")
    if unknown := sorted(set(asked) - known):
        raise refuse(f"Unknown parameter: '{_OPTIONS}.{unknown[0][:60]}'.")
    mode, ttl, prewarm = asked.get("mode", "implicit"), asked.get("ttl"), asked.get("prewarm", False)
    if mode not in ("implicit", "explicit"):
        raise refuse(f"Invalid value for '{_OPTIONS}.mode': supported values are 'implicit' and 'explicit'.")
    if ttl is not None and (not isinstance(ttl, str) or ttl not in rules.ttls_seconds):
        supported = " and ".join(repr(name) for name in rules.ttls_seconds)
        raise refuse(f"Invalid value for '{_OPTIONS}.ttl': supported values are {supported}.")
    if not isinstance(prewarm, bool):
        raise refuse(f"Invalid type for '{_OPTIONS}.prewarm': expected a boolean.")
    return CacheOptions(ttl=ttl, only_marks=mode == "explicit", prewarms=prewarm, comparison=_comparison(asked, rules))


def _comparison(asked: dict[str, object], rules: CacheRules) -> str | None:
    if _COMPARISON in asked and not rules.diagnoses_misses:
        raise refuse(f"Unknown parameter: '{_OPTIONS}.{_COMPARISON}'.")
    id = asked.get(_COMPARISON)
    if id is not None and not isinstance(id, str):
        raise refuse(f"Invalid type for '{_OPTIONS}.{_COMPARISON}': expected a string.")
    return id
