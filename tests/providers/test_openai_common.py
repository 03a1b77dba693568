"""Request fields that keep a session on one OpenAI cache."""

import json

import pytest
from msgspec.structs import replace

from holdfast.catalog.lookup import find_model
from holdfast.catalog.schema import CacheKind, Model
from holdfast.providers.openai_common import CACHE_KEY_CHARS_MAX
from holdfast.providers.openai_responses import openai_responses

BREAKPOINTS = find_model("openai:gpt-6-sol")
IMPLICIT = find_model("openai:gpt-5.4")


def fields_of(model: Model, session_id: str = "s") -> dict[str, object]:
    return {name: json.loads(value) for name, value in openai_responses.session_fields(model, session_id)}


def with_cache(model: Model, *, kind: CacheKind, ttls_seconds: dict[str, int]) -> Model:
    return replace(model, cache=replace(model.cache, kind=kind, ttls_seconds=ttls_seconds))


def test_a_model_with_breakpoints_also_requests_the_implicit_one() -> None:
    options = {"mode": "implicit", "ttl": "30m"}
    assert fields_of(BREAKPOINTS) == {"prompt_cache_key": "s", "prompt_cache_options": options}


@pytest.mark.parametrize(
    ("ttls_seconds", "fields"),
    [
        ({"24h": 86_400}, {"prompt_cache_key": "s", "prompt_cache_retention": "24h"}),
        ({"in_memory": 300}, {"prompt_cache_key": "s"}),
    ],
)
def test_an_implicit_cache_lasts_a_day_where_that_is_offered(
    ttls_seconds: dict[str, int], fields: dict[str, object]
) -> None:
    assert fields_of(with_cache(IMPLICIT, kind="implicit", ttls_seconds=ttls_seconds)) == fields


def test_a_model_without_a_cache_gets_no_cache_fields() -> None:
    assert fields_of(with_cache(IMPLICIT, kind="none", ttls_seconds={"24h": 86_400})) == {}


def test_a_model_with_only_breakpoints_needs_only_the_key() -> None:
    assert fields_of(with_cache(IMPLICIT, kind="explicit", ttls_seconds={"24h": 86_400})) == {"prompt_cache_key": "s"}


def test_an_id_that_is_too_long_always_has_the_same_key() -> None:
    fitting = "x" * CACHE_KEY_CHARS_MAX
    assert fields_of(BREAKPOINTS, fitting)["prompt_cache_key"] == fitting
    keys = [fields_of(BREAKPOINTS, fitting + tail)["prompt_cache_key"] for tail in ("a", "a", "b", "\ud800")]
    assert all(isinstance(key, str) and len(key) <= CACHE_KEY_CHARS_MAX for key in keys)
    assert (keys[0] == keys[1], len(set(keys))) == (True, 3)
