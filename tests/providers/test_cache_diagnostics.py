"""How providers are asked why their cache did not hold, and what is understood of their answers."""

import json

import pytest

from holdfast.errors import ProviderError
from holdfast.providers.adapter import CacheDiagnosticsAdapter, expects_diagnosis
from holdfast.providers.anthropic import anthropic
from holdfast.providers.openai_responses import openai_responses
from holdfast.providers.registry import PROVIDERS, get_adapter
from holdfast.types.prompt import Parameters
from holdfast.types.reply import REASON_CHARS_MAX, CacheDiagnosis, Reply, ReplyFinished
from holdfast.types.usage import TOKENS_MAX, Usage

BETA = "cache-diagnosis-2026-04-07"
ASKED = Parameters("m", 10)
REPLY = Reply((), "end_turn", Usage(), "m", "id")

ANTHROPIC_SAYS = {
    "null": CacheDiagnosis("hit"),
    '{"cache_miss_reason":null}': CacheDiagnosis("pending"),
    '{"cache_miss_reason":{"type":"previous_message_not_found"}}': CacheDiagnosis("not_found"),
    '{"cache_miss_reason":{"type":"unavailable"}}': CacheDiagnosis("unavailable"),
    '{"cache_miss_reason":{"type":"tools_changed","cache_missed_input_tokens":12}}': CacheDiagnosis(
        "miss", "tools_changed", 12
    ),
    '{"cache_miss_reason":{"type":"of_tomorrow"},"more":1}': CacheDiagnosis("miss", "of_tomorrow"),
    '{"cache_miss_reason":{"type":"x","cache_missed_input_tokens":-5}}': CacheDiagnosis("miss", "x"),
    '{"cache_miss_reason":{"type":"x","cache_missed_input_tokens":1' + "0" * 30 + "}}": CacheDiagnosis(
        "miss", "x", TOKENS_MAX
    ),
    '{"cache_miss_reason":{"type":"%s"}}' % ("y" * 999): CacheDiagnosis("miss", "y" * REASON_CHARS_MAX),
}
_INPUT_CHANGED = '{"type":"cache_miss","reason":"input_changed","cache_missed_tokens":7,"comparison_reusable_tokens":9}'
OPENAI_SAYS = {
    "null": None,
    '{"type":"cache_hit"}': CacheDiagnosis("hit"),
    '{"type":"comparison_response_not_found"}': CacheDiagnosis("not_found"),
    '{"type":"unavailable"}': CacheDiagnosis("unavailable"),
    _INPUT_CHANGED: CacheDiagnosis("miss", "input_changed", 7),
    '{"type":"cache_miss","reason":null,"cache_missed_tokens":-7}': CacheDiagnosis("miss"),
    '{"type":"of_tomorrow"}': CacheDiagnosis("unavailable", "of_tomorrow"),
    '{"type":"%s"}' % ("y" * 999): CacheDiagnosis("unavailable", "y" * REASON_CHARS_MAX),
}
UNREADABLE = (
    *("5", "[]", '"text"', "true", "{}", '{"type":5}', '{"cache_miss_reason":"text"}', '{"type":null}'),
    *('{"cache_miss_reason":{}}', '{"cache_miss_reason":{"type":7}}', '{"type":"cache_miss","reason":[]}'),
    '{"cache_miss_reason":{"type":"x","cache_missed_input_tokens":"9"}}',
    '{"type":"cache_miss","reason":"x","cache_missed_tokens":1.5}',
)


def said_by_anthropic(diagnostics: str) -> bytes:
    return b'{"id":"id","type":"message","model":"m","content":[],"stop_reason":"end_turn","diagnostics":%b}' % (
        diagnostics.encode()
    )


def said_by_openai(diagnostics: str) -> bytes:
    told = (diagnostics.encode(),)
    return b'{"id":"id","model":"m","status":"completed","output":[],"prompt_cache_diagnostics":%b}' % told


@pytest.mark.parametrize("told", ANTHROPIC_SAYS)
def test_what_anthropic_says_of_its_cache_is_understood_whole_and_streamed(told: str) -> None:
    whole = said_by_anthropic(told)
    start = b'event: message_start\ndata: {"type":"message_start","message":%b}\n\n' % whole
    stop = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    (finished,) = (one for one in anthropic.make_stream_decoder().feed(start + stop) if isinstance(one, ReplyFinished))
    assert anthropic.decode_reply(whole).diagnosis == finished.reply.diagnosis == ANTHROPIC_SAYS[told]


@pytest.mark.parametrize("told", OPENAI_SAYS)
def test_what_openai_says_of_its_cache_is_understood_whole_and_streamed(told: str) -> None:
    whole = said_by_openai(told)
    begun = b'data: {"type":"response.created","response":{"id":"id","model":"m"}}\n\n'
    ended = b'data: {"type":"response.completed","response":%b}\n\n' % whole
    reader = openai_responses.make_stream_decoder()
    (finished,) = (one for one in reader.feed(begun + ended) if isinstance(one, ReplyFinished))
    assert openai_responses.decode_reply(whole).diagnosis == finished.reply.diagnosis == OPENAI_SAYS[told]


def test_a_comparison_that_ends_with_the_stream_replaces_one_that_was_pending() -> None:
    start = said_by_anthropic('{"cache_miss_reason":null}')
    later = '{"cache_miss_reason":{"type":"system_changed","cache_missed_input_tokens":3}}'
    stream = (
        b'data: {"type":"message_start","message":%b}\n\n'
        b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn","diagnostics":%b}}\n\n'
        b'data: {"type":"message_delta","delta":{}}\n\ndata: {"type":"message_stop"}\n\n'
    ) % (start, later.encode())
    (finished,) = (one for one in anthropic.make_stream_decoder().feed(stream) if isinstance(one, ReplyFinished))
    assert finished.reply.diagnosis == CacheDiagnosis("miss", "system_changed", 3)


@pytest.mark.parametrize("told", UNREADABLE)
def test_a_reply_is_not_lost_because_its_diagnosis_cannot_be_read(told: str) -> None:
    assert anthropic.decode_reply(said_by_anthropic(told)) == REPLY
    assert openai_responses.decode_reply(said_by_openai(told)) == REPLY


@pytest.mark.parametrize("told", ['{"cache_miss_reason":{"type":"\\ud800"}}', '{"type":"cache_hit"', "{" * 5_000])
def test_a_diagnosis_that_is_no_json_makes_the_reply_unreadable_as_any_member_does(told: str) -> None:
    with pytest.raises(ProviderError, match="cannot be read"):
        anthropic.decode_reply(said_by_anthropic(told))
    with pytest.raises(ProviderError, match="cannot be read"):
        openai_responses.decode_reply(said_by_openai(told))


def test_a_key_that_a_provider_repeats_is_not_recorded() -> None:
    told = '{"cache_miss_reason":{"type":"key sk-ant-0123456789abcdef"}}'
    assert anthropic.decode_reply(said_by_anthropic(told)).diagnosis == CacheDiagnosis("miss", "key [redacted]")


def test_anthropic_is_asked_from_the_first_request_on_and_told_the_beta_once() -> None:
    first = anthropic.request_diagnosis(ASKED, None)
    assert first.extra == (("diagnostics", '{"previous_message_id":null}'),)
    assert first.betas == (BETA,)
    second = anthropic.request_diagnosis(Parameters("m", 10, betas=(BETA, "b"), extra=(("x", "1"),)), "msg_1")
    assert second.extra == (("x", "1"), ("diagnostics", '{"previous_message_id":"msg_1"}'))
    assert second.betas == (BETA, "b")


def test_openai_is_asked_from_the_second_request_on_and_its_other_options_stay_where_they_are() -> None:
    options = '{"mode": "implicit", "ttl":"12h"}'
    given = Parameters("m", 10, extra=(("prompt_cache_options", options), ("user", '"u"')))
    assert openai_responses.request_diagnosis(given, None) is given
    asked = openai_responses.request_diagnosis(given, "resp_1")
    assert [name for name, _ in asked.extra] == ["prompt_cache_options", "user"]
    told = {"mode": "implicit", "ttl": "12h", "comparison_response_id": "resp_1"}
    assert json.loads(dict(asked.extra)["prompt_cache_options"]) == told
    alone = openai_responses.request_diagnosis(ASKED, "resp_1")
    assert alone.extra == (("prompt_cache_options", '{"comparison_response_id":"resp_1"}'),)


@pytest.mark.parametrize(
    ("provider", "name", "value"),
    [
        ("anthropic", "diagnostics", '{"previous_message_id":"msg_mine"}'),
        ("anthropic", "diagnostics", "null"),
        ("openai", "prompt_cache_options", '{"comparison_response_id":"resp_mine"}'),
        ("openai", "prompt_cache_options", '{"comparison_response_id":null}'),
        ("openai", "prompt_cache_options", "null"),
        ("openai", "prompt_cache_options", "{"),
    ],
)
def test_what_a_caller_says_in_the_same_place_is_left_alone(provider: str, name: str, value: str) -> None:
    adapter, given = get_adapter(provider), Parameters("m", 10, extra=((name, value),))
    assert isinstance(adapter, CacheDiagnosticsAdapter)
    assert adapter.request_diagnosis(given, "other") is given
    assert adapter.requests_comparison(given) == ("_mine" in value)


def test_only_the_providers_that_diagnose_can_be_asked_to_compare() -> None:
    telling = {name for name, provider in PROVIDERS.items() if isinstance(provider.adapter, CacheDiagnosticsAdapter)}
    assert telling == {"anthropic", "openai"}
    named = Parameters("m", 10, extra=(("diagnostics", '{"previous_message_id":"msg_1"}'),))
    assert [name for name in PROVIDERS if expects_diagnosis(get_adapter(name), named)] == ["anthropic"]


@pytest.mark.parametrize(
    ("provider", "kind", "message", "refused"),
    [
        ("anthropic", "invalid_request", "diagnostics: Extra inputs are not permitted", True),
        ("anthropic", "invalid_request", f"Unexpected value(s) `{BETA}` for the `anthropic-beta` header", True),
        ("anthropic", "invalid_request", "max_tokens: too many", False),
        ("anthropic", "rate_limit", "diagnostics: slow down", False),
        ("openai", "invalid_request", "Unknown parameter: 'prompt_cache_options.comparison_response_id'.", True),
        ("openai", "invalid_request", "Unknown parameter: 'prompt_cache_options.ttl'.", False),
        ("openai", "server_error", "comparison_response_id", False),
    ],
)
def test_a_refused_diagnosis_is_known_by_its_name(provider: str, kind: str, message: str, refused: bool) -> None:
    adapter = get_adapter(provider)
    assert isinstance(adapter, CacheDiagnosticsAdapter)
    assert adapter.is_diagnosis_refusal(ProviderError(kind, message, status=400)) is refused  # type: ignore[arg-type]
