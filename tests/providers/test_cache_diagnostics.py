"""Requests for a cache diagnosis, and decoding of the providers' diagnoses."""

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
PARAMETERS = Parameters("m", 10)
REPLY = Reply((), "end_turn", Usage(), "m", "id")

ANTHROPIC_DIAGNOSES = {
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
OPENAI_DIAGNOSES = {
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


def decode_anthropic_diagnosis(diagnostics: str) -> bytes:
    return b'{"id":"id","type":"message","model":"m","content":[],"stop_reason":"end_turn","diagnostics":%b}' % (
        diagnostics.encode()
    )


def decode_openai_diagnosis(diagnostics: str) -> bytes:
    diagnosis_bytes = (diagnostics.encode(),)
    return b'{"id":"id","model":"m","status":"completed","output":[],"prompt_cache_diagnostics":%b}' % diagnosis_bytes


@pytest.mark.parametrize("diagnosis_json", ANTHROPIC_DIAGNOSES)
def test_anthropics_diagnosis_is_decoded_whole_and_streamed(diagnosis_json: str) -> None:
    decoded = decode_anthropic_diagnosis(diagnosis_json)
    start = b'event: message_start\ndata: {"type":"message_start","message":%b}\n\n' % decoded
    stop = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    (finished,) = (
        delta for delta in anthropic.make_stream_decoder().feed(start + stop) if isinstance(delta, ReplyFinished)
    )
    assert anthropic.decode_reply(decoded).diagnosis == finished.reply.diagnosis == ANTHROPIC_DIAGNOSES[diagnosis_json]


@pytest.mark.parametrize("diagnosis_json", OPENAI_DIAGNOSES)
def test_openais_diagnosis_is_decoded_whole_and_streamed(diagnosis_json: str) -> None:
    decoded = decode_openai_diagnosis(diagnosis_json)
    created = b'data: {"type":"response.created","response":{"id":"id","model":"m"}}\n\n'
    completed = b'data: {"type":"response.completed","response":%b}\n\n' % decoded
    reader = openai_responses.make_stream_decoder()
    (finished,) = (delta for delta in reader.feed(created + completed) if isinstance(delta, ReplyFinished))
    assert (
        openai_responses.decode_reply(decoded).diagnosis == finished.reply.diagnosis == OPENAI_DIAGNOSES[diagnosis_json]
    )


def test_a_comparison_at_the_end_of_the_stream_replaces_a_pending_one() -> None:
    start = decode_anthropic_diagnosis('{"cache_miss_reason":null}')
    later = '{"cache_miss_reason":{"type":"system_changed","cache_missed_input_tokens":3}}'
    stream = (
        b'data: {"type":"message_start","message":%b}\n\n'
        b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn","diagnostics":%b}}\n\n'
        b'data: {"type":"message_delta","delta":{}}\n\ndata: {"type":"message_stop"}\n\n'
    ) % (start, later.encode())
    (finished,) = (delta for delta in anthropic.make_stream_decoder().feed(stream) if isinstance(delta, ReplyFinished))
    assert finished.reply.diagnosis == CacheDiagnosis("miss", "system_changed", 3)


@pytest.mark.parametrize("diagnosis_json", UNREADABLE)
def test_an_undecodable_diagnosis_does_not_lose_the_reply(diagnosis_json: str) -> None:
    assert anthropic.decode_reply(decode_anthropic_diagnosis(diagnosis_json)) == REPLY
    assert openai_responses.decode_reply(decode_openai_diagnosis(diagnosis_json)) == REPLY


@pytest.mark.parametrize(
    "diagnosis_json", ['{"cache_miss_reason":{"type":"\\ud800"}}', '{"type":"cache_hit"', "{" * 5_000]
)
def test_a_diagnosis_that_is_not_json_makes_the_reply_undecodable_like_any_member(diagnosis_json: str) -> None:
    with pytest.raises(ProviderError, match="cannot be read"):
        anthropic.decode_reply(decode_anthropic_diagnosis(diagnosis_json))
    with pytest.raises(ProviderError, match="cannot be read"):
        openai_responses.decode_reply(decode_openai_diagnosis(diagnosis_json))


def test_a_key_that_a_provider_repeats_is_not_recorded() -> None:
    diagnosis_json = '{"cache_miss_reason":{"type":"key sk-ant-0123456789abcdef"}}'
    assert anthropic.decode_reply(decode_anthropic_diagnosis(diagnosis_json)).diagnosis == CacheDiagnosis(
        "miss", "key [redacted]"
    )


def test_anthropic_is_asked_from_the_first_request_on_and_sent_the_beta_once() -> None:
    first = anthropic.request_diagnosis(PARAMETERS, None)
    assert first.extra == (("diagnostics", '{"previous_message_id":null}'),)
    assert first.betas == (BETA,)
    second = anthropic.request_diagnosis(Parameters("m", 10, betas=(BETA, "b"), extra=(("x", "1"),)), "msg_1")
    assert second.extra == (("x", "1"), ("diagnostics", '{"previous_message_id":"msg_1"}'))
    assert second.betas == (BETA, "b")


def test_openai_is_asked_from_the_second_request_on_and_its_other_options_remain() -> None:
    options = '{"mode": "implicit", "ttl":"12h"}'
    parameters = Parameters("m", 10, extra=(("prompt_cache_options", options), ("user", '"u"')))
    assert openai_responses.request_diagnosis(parameters, None) is parameters
    with_diagnosis = openai_responses.request_diagnosis(parameters, "resp_1")
    assert [name for name, _ in with_diagnosis.extra] == ["prompt_cache_options", "user"]
    expected_options = {"mode": "implicit", "ttl": "12h", "comparison_response_id": "resp_1"}
    assert json.loads(dict(with_diagnosis.extra)["prompt_cache_options"]) == expected_options
    alone = openai_responses.request_diagnosis(PARAMETERS, "resp_1")
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
def test_a_callers_own_setting_is_not_changed(provider: str, name: str, value: str) -> None:
    adapter, parameters = get_adapter(provider), Parameters("m", 10, extra=((name, value),))
    assert isinstance(adapter, CacheDiagnosticsAdapter)
    assert adapter.request_diagnosis(parameters, "other") is parameters
    assert adapter.requests_comparison(parameters) == ("_mine" in value)


def test_only_providers_with_diagnostics_can_be_asked_to_compare() -> None:
    diagnosing = {name for name, provider in PROVIDERS.items() if isinstance(provider.adapter, CacheDiagnosticsAdapter)}
    assert diagnosing == {"anthropic", "openai"}
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
def test_a_refused_diagnosis_is_recognised_by_its_name(provider: str, kind: str, message: str, refused: bool) -> None:
    adapter = get_adapter(provider)
    assert isinstance(adapter, CacheDiagnosticsAdapter)
    assert adapter.is_diagnosis_refusal(ProviderError(kind, message, status=400)) is refused  # type: ignore[arg-type]
