"""The simulated providers' diagnoses when they compare two requests."""

from typing import Any

import pytest
from tests.support import simulated as claude
from tests.support import simulated_openai as gpt
from tests.support.simulated import CACHE_CONTROL, LONG, Wire, assistant, request, simulator, text, tool, user

from holdfast.cachemodel.values import CacheCall, CacheScope, PromptPrefix
from holdfast.clock import ManualClock
from holdfast.simulator.cache_diagnostics import AnsweredRequests, DiagnosisFingerprint, DiagnosisRequest
from holdfast.simulator.provider import SimulatedProvider
from holdfast.types.reply import CacheDiagnosis
from holdfast.types.usage import Usage

OPUS = "claude-opus-5-5"
HELLO, MORE = user(text("Hello.", CACHE_CONTROL)), (assistant("Yes?"), user(text("More.", CACHE_CONTROL)))
RESPONSES = gpt.Responses()
KEY = {"prompt_cache_key": "k"}


def ask(provider: SimulatedProvider, *messages: Wire, previous: str | None = None, **fields: Any) -> Wire:
    body: Wire = {"system": LONG, "tools": [tool("read")], **fields}
    status, reply = claude.post(provider, request(*messages, **body, diagnostics={"previous_message_id": previous}))
    assert status == 200, reply
    return reply


def reason(reply: Wire) -> Any:
    return reply["diagnostics"]["cache_miss_reason"]


def test_a_first_request_and_an_appended_one_have_no_difference() -> None:
    provider = simulator()
    first = ask(provider, HELLO)
    assert first["diagnostics"] is None
    second = ask(provider, HELLO, *MORE, previous=first["id"])
    assert second["diagnostics"] is None
    assert second["usage"]["cache_read_input_tokens"] > 0


def test_a_request_without_the_option_gets_no_diagnosis() -> None:
    provider = simulator()
    assert "diagnostics" not in claude.post(provider, request(HELLO))[1]
    assert "diagnostics" not in claude.post(provider, request(HELLO, diagnostics=None))[1]


def test_a_request_can_be_compared_with_one_that_had_no_diagnosis() -> None:
    provider = simulator()
    _, first = claude.post(provider, request(HELLO, system=LONG, tools=[tool("read")]))
    assert ask(provider, HELLO, *MORE, previous=first["id"])["diagnostics"] is None


@pytest.mark.parametrize(
    ("changed", "word", "all_missed"),
    [
        ({"model": OPUS}, "model_changed", True),
        ({"speed": "fast"}, "model_changed", False),
        ({"model": OPUS, "tools": [tool("write")]}, "model_changed", True),
        ({"tools": [tool("read"), tool("write")]}, "tools_changed", False),
        ({"tools": [tool("write")], "system": "Other. " * 2_000}, "tools_changed", True),
        ({"system": "Other. " * 2_000}, "system_changed", False),
        ({"system": "Other. " * 2_000, "tool_choice": {"type": "none"}}, "system_changed", False),
    ],
)
def test_the_first_difference_is_named_with_the_tokens_that_could_have_been_read(
    changed: Wire, word: str, all_missed: bool
) -> None:
    provider = simulator()
    first = ask(provider, HELLO)
    written_tokens = first["usage"]["cache_creation_input_tokens"]
    diagnosis = reason(ask(provider, HELLO, *MORE, previous=first["id"], **changed))
    assert diagnosis["type"] == word
    assert 0 < diagnosis["cache_missed_input_tokens"] <= written_tokens
    assert (diagnosis["cache_missed_input_tokens"] == written_tokens) is all_missed


def test_a_changed_earlier_message_is_named_with_the_tokens_after_it() -> None:
    provider = simulator()
    first = ask(provider, user(LONG), assistant("Yes?"), user(text("More. " * 300, CACHE_CONTROL)))
    diagnosis = reason(ask(provider, user(LONG), assistant("No!"), user("More. " * 300), previous=first["id"]))
    assert diagnosis["type"] == "messages_changed"
    prefix_usage = ask(provider, user(text(LONG, CACHE_CONTROL)))["usage"]
    in_front = prefix_usage["cache_creation_input_tokens"] + prefix_usage["cache_read_input_tokens"]
    assert diagnosis["cache_missed_input_tokens"] == first["usage"]["cache_creation_input_tokens"] - in_front


def test_a_shortened_prompt_is_not_an_appended_one() -> None:
    provider = simulator()
    first = ask(provider, HELLO, *MORE)
    assert reason(ask(provider, HELLO, previous=first["id"]))["type"] == "messages_changed"


@pytest.mark.parametrize(
    "changed",
    [{"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}, {"tool_choice": {"type": "none"}}],
)
def test_a_difference_without_a_name_is_unavailable_whatever_the_messages_are(changed: Wire) -> None:
    provider = simulator()
    first = ask(provider, HELLO)
    diagnosis = reason(ask(provider, user(text("Bye.", CACHE_CONTROL)), previous=first["id"], **changed))
    assert diagnosis == {"type": "unavailable"}


def test_a_request_of_another_key_is_not_found() -> None:
    provider = simulator()
    _, first = claude.post(provider, request(HELLO), key="other")
    assert reason(ask(provider, HELLO, previous=first["id"])) == {"type": "previous_message_not_found"}
    assert reason(ask(provider, HELLO, previous="msg_x")) == {"type": "previous_message_not_found"}


def test_an_expired_entry_is_not_a_difference() -> None:
    provider = simulator()
    first = ask(provider, HELLO)
    provider.advance(400)
    second = ask(provider, HELLO, *MORE, previous=first["id"])
    assert second["diagnostics"] is None
    assert second["usage"]["cache_read_input_tokens"] == 0


@pytest.mark.parametrize("option", [5, "msg_1", [], {"previous_message_id": 5}, {"other": None}])
def test_an_invalid_diagnosis_option_is_refused_by_name(option: object) -> None:
    status, kind, message = claude.refusal(simulator(), request(HELLO, diagnostics=option))
    assert (status, kind) == (400, "invalid_request_error")
    assert message.startswith("diagnostics")


def test_a_model_without_diagnostics_does_not_know_the_field() -> None:
    provider = simulator(models=claude.models_with(diagnoses_misses=False))
    option = {"previous_message_id": None}
    _, _, message = claude.refusal(provider, request(HELLO, diagnostics=option))
    assert message == "diagnostics: Extra inputs are not permitted"
    assert claude.count_tokens(provider, request(HELLO, diagnostics=option)) > 0


def respond(provider: SimulatedProvider, *messages: Wire, previous: str | None = None, **fields: Any) -> Wire:
    settings: Wire = {"prompt_cache_options": {"comparison_response_id": previous}, "tools": [RESPONSES.tool("read")]}
    body = RESPONSES.body(RESPONSES.message("developer", LONG * 3), *messages, **{**settings, **KEY, **fields})
    status, reply = gpt.post(provider, RESPONSES.path, body)
    assert status == 200, reply
    return reply


def hello() -> Wire:
    return RESPONSES.message("user", "Hello.")


def more(first: Wire) -> tuple[Wire, ...]:
    return (hello(), *RESPONSES.reply_messages(first), RESPONSES.message("user", "More."))


def test_openai_reports_that_an_appended_prompt_was_read() -> None:
    provider = SimulatedProvider(clock=ManualClock())
    first = respond(provider, hello())
    assert "prompt_cache_diagnostics" not in first
    second = respond(provider, *more(first), previous=first["id"])
    assert second["prompt_cache_diagnostics"] == {"type": "cache_hit"}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"model": "gpt-6-sol"}, "model_changed"),
        ({"prompt_cache_key": "other"}, "prompt_cache_key_changed"),
        ({"service_tier": "flex"}, "service_tier_changed"),
        ({"tools": [RESPONSES.tool("write")]}, "tools_changed"),
        ({"text": {"format": {"type": "json_object"}}}, "text_format_changed"),
        ({"reasoning": {"effort": "high"}}, "reasoning_effort_changed"),
        ({"text": {"verbosity": "low"}}, "verbosity_changed"),
    ],
)
def test_openai_names_the_first_difference(changed: Wire, word: str) -> None:
    provider = SimulatedProvider(clock=ManualClock())
    first = respond(provider, hello())
    diagnosis = respond(provider, *more(first), previous=first["id"], **changed)["prompt_cache_diagnostics"]
    assert (diagnosis["type"], diagnosis["reason"]) == ("cache_miss", word)
    assert diagnosis["cache_missed_tokens"] == RESPONSES.buckets(first)[2]


def test_openai_names_a_changed_input_with_the_tokens_after_it() -> None:
    provider = SimulatedProvider(clock=ManualClock())
    first = respond(provider, hello())
    other = respond(provider, RESPONSES.message("user", "Bye."), previous=first["id"])["prompt_cache_diagnostics"]
    assert (other["type"], other["reason"]) == ("cache_miss", "input_changed")
    assert 0 < other["cache_missed_tokens"] < RESPONSES.buckets(first)[2]


def test_openai_has_no_name_for_expired_entries_or_parallel_calls() -> None:
    provider = SimulatedProvider(clock=ManualClock())
    first = respond(provider, hello())
    without_parallel_calls = respond(provider, *more(first), previous=first["id"], parallel_tool_calls=False)
    assert without_parallel_calls["prompt_cache_diagnostics"] == {"type": "unavailable"}
    provider.advance(100_000)
    after_expiry = respond(provider, *more(first), previous=first["id"])
    assert after_expiry["prompt_cache_diagnostics"] == {"type": "unavailable"}


def test_openai_finds_neither_a_reply_of_another_key_nor_one_of_another_provider() -> None:
    provider = simulator()
    missing = {"type": "comparison_response_not_found"}
    message = ask(provider, HELLO)["id"]
    assert respond(provider, hello(), previous="resp_x")["prompt_cache_diagnostics"] == missing
    assert respond(provider, hello(), previous=message)["prompt_cache_diagnostics"] == missing


def test_openai_refuses_a_comparison_with_an_invalid_id_or_by_an_unsupported_model() -> None:
    options: Wire = {"prompt_cache_options": {"comparison_response_id": 5}}
    status, reply = gpt.post(SimulatedProvider(), RESPONSES.path, RESPONSES.body(hello(), **options))
    assert (status, "comparison_response_id" in reply["error"]["message"]) == (400, True)
    mute = SimulatedProvider(models=gpt.models_with("openai:gpt-6.1-sol", diagnoses_misses=False))
    options = {"prompt_cache_options": {"comparison_response_id": "resp_1"}}
    status, reply = gpt.post(mute, RESPONSES.path, RESPONSES.body(hello(), **options))
    assert status == 400
    assert reply["error"]["message"] == "Unknown parameter: 'prompt_cache_options.comparison_response_id'."


def add_request(*digests: str) -> CacheCall:
    prefixes = tuple(PromptPrefix("messages", digest, 10 * at) for at, digest in enumerate(digests, start=1))
    return CacheCall(CacheScope("w", "m"), prefixes, (), 0.0)


def test_the_oldest_requests_are_forgotten_by_number_and_by_size() -> None:
    fingerprint, option = DiagnosisFingerprint((), "messages_changed"), DiagnosisRequest("a")
    few = AnsweredRequests(replies_max=2)
    small = AnsweredRequests(blocks_max=3)
    for known_requests in (few, small):
        known_requests.remember("a", fingerprint, add_request("1"), Usage())
        known_requests.remember("b", fingerprint, add_request("1", "2"), Usage())
        assert known_requests.diagnose(option, fingerprint, add_request("1"), Usage()) == CacheDiagnosis("hit")
        known_requests.remember("c", fingerprint, add_request("1"), Usage())
        assert known_requests.diagnose(option, fingerprint, add_request("1"), Usage()) == CacheDiagnosis("not_found")
        assert known_requests.diagnose(
            DiagnosisRequest("b"), fingerprint, add_request("1", "2"), Usage()
        ) == CacheDiagnosis("hit")
    small.remember("huge", fingerprint, add_request("1", "2", "3", "4"), Usage())
    assert small.diagnose(
        DiagnosisRequest("huge"), fingerprint, add_request("1", "2", "3", "4"), Usage()
    ) == CacheDiagnosis("hit")
    assert small.diagnose(DiagnosisRequest("c"), fingerprint, add_request("1"), Usage()) == CacheDiagnosis("not_found")
