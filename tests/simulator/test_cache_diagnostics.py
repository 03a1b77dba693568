"""What the simulated providers say of their caches when they are asked to compare two requests."""

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
    given: Wire = {"system": LONG, "tools": [tool("read")], **fields}
    status, reply = claude.post(provider, request(*messages, **given, diagnostics={"previous_message_id": previous}))
    assert status == 200, reply
    return reply


def reason(reply: Wire) -> Any:
    return reply["diagnostics"]["cache_miss_reason"]


def test_a_first_request_and_one_that_only_grew_are_told_that_nothing_differs() -> None:
    provider = simulator()
    first = ask(provider, HELLO)
    assert first["diagnostics"] is None
    second = ask(provider, HELLO, *MORE, previous=first["id"])
    assert second["diagnostics"] is None
    assert second["usage"]["cache_read_input_tokens"] > 0


def test_nobody_is_told_who_has_not_asked() -> None:
    provider = simulator()
    assert "diagnostics" not in claude.post(provider, request(HELLO))[1]
    assert "diagnostics" not in claude.post(provider, request(HELLO, diagnostics=None))[1]


def test_a_request_can_be_compared_with_one_that_did_not_ask() -> None:
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
def test_the_first_difference_is_named_with_what_could_have_been_read(
    changed: Wire, word: str, all_missed: bool
) -> None:
    provider = simulator()
    first = ask(provider, HELLO)
    kept = first["usage"]["cache_creation_input_tokens"]
    told = reason(ask(provider, HELLO, *MORE, previous=first["id"], **changed))
    assert told["type"] == word
    assert 0 < told["cache_missed_input_tokens"] <= kept
    assert (told["cache_missed_input_tokens"] == kept) is all_missed


def test_an_earlier_message_that_changed_is_named_with_what_stood_behind_it() -> None:
    provider = simulator()
    first = ask(provider, user(LONG), assistant("Yes?"), user(text("More. " * 300, CACHE_CONTROL)))
    told = reason(ask(provider, user(LONG), assistant("No!"), user("More. " * 300), previous=first["id"]))
    assert told["type"] == "messages_changed"
    head = ask(provider, user(text(LONG, CACHE_CONTROL)))["usage"]
    in_front = head["cache_creation_input_tokens"] + head["cache_read_input_tokens"]
    assert told["cache_missed_input_tokens"] == first["usage"]["cache_creation_input_tokens"] - in_front


def test_a_prompt_that_became_shorter_did_not_grow() -> None:
    provider = simulator()
    first = ask(provider, HELLO, *MORE)
    assert reason(ask(provider, HELLO, previous=first["id"]))["type"] == "messages_changed"


@pytest.mark.parametrize(
    "changed",
    [{"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000}, {"tool_choice": {"type": "none"}}],
)
def test_a_difference_without_a_word_is_unavailable_whatever_the_messages_say(changed: Wire) -> None:
    provider = simulator()
    first = ask(provider, HELLO)
    told = reason(ask(provider, user(text("Bye.", CACHE_CONTROL)), previous=first["id"], **changed))
    assert told == {"type": "unavailable"}


def test_what_another_key_sent_is_not_found() -> None:
    provider = simulator()
    _, first = claude.post(provider, request(HELLO), key="other")
    assert reason(ask(provider, HELLO, previous=first["id"])) == {"type": "previous_message_not_found"}
    assert reason(ask(provider, HELLO, previous="msg_x")) == {"type": "previous_message_not_found"}


def test_what_only_lapsed_does_not_differ() -> None:
    provider = simulator()
    first = ask(provider, HELLO)
    provider.advance(400)
    second = ask(provider, HELLO, *MORE, previous=first["id"])
    assert second["diagnostics"] is None
    assert second["usage"]["cache_read_input_tokens"] == 0


@pytest.mark.parametrize("wish", [5, "msg_1", [], {"previous_message_id": 5}, {"other": None}])
def test_a_wish_that_is_none_is_refused_by_name(wish: object) -> None:
    status, kind, message = claude.refusal(simulator(), request(HELLO, diagnostics=wish))
    assert (status, kind) == (400, "invalid_request_error")
    assert message.startswith("diagnostics")


def test_a_model_that_does_not_diagnose_does_not_know_the_field() -> None:
    provider = simulator(models=claude.models_with(diagnoses_misses=False))
    wish = {"previous_message_id": None}
    _, _, message = claude.refusal(provider, request(HELLO, diagnostics=wish))
    assert message == "diagnostics: Extra inputs are not permitted"
    assert claude.count_tokens(provider, request(HELLO, diagnostics=wish)) > 0


def respond(provider: SimulatedProvider, *said: Wire, previous: str | None = None, **fields: Any) -> Wire:
    given: Wire = {"prompt_cache_options": {"comparison_response_id": previous}, "tools": [RESPONSES.tool("read")]}
    body = RESPONSES.body(RESPONSES.message("developer", LONG * 3), *said, **{**given, **KEY, **fields})
    status, reply = gpt.post(provider, RESPONSES.path, body)
    assert status == 200, reply
    return reply


def hello() -> Wire:
    return RESPONSES.message("user", "Hello.")


def more(first: Wire) -> tuple[Wire, ...]:
    return (hello(), *RESPONSES.reply_messages(first), RESPONSES.message("user", "More."))


def test_openai_says_that_a_prompt_which_only_grew_was_read() -> None:
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
    told = respond(provider, *more(first), previous=first["id"], **changed)["prompt_cache_diagnostics"]
    assert (told["type"], told["reason"]) == ("cache_miss", word)
    assert told["cache_missed_tokens"] == RESPONSES.buckets(first)[2]


def test_openai_names_an_input_that_changed_with_what_stood_behind_it() -> None:
    provider = SimulatedProvider(clock=ManualClock())
    first = respond(provider, hello())
    other = respond(provider, RESPONSES.message("user", "Bye."), previous=first["id"])["prompt_cache_diagnostics"]
    assert (other["type"], other["reason"]) == ("cache_miss", "input_changed")
    assert 0 < other["cache_missed_tokens"] < RESPONSES.buckets(first)[2]


def test_openai_has_no_word_for_what_lapsed_or_for_parallel_calls() -> None:
    provider = SimulatedProvider(clock=ManualClock())
    first = respond(provider, hello())
    one_call = respond(provider, *more(first), previous=first["id"], parallel_tool_calls=False)
    assert one_call["prompt_cache_diagnostics"] == {"type": "unavailable"}
    provider.advance(100_000)
    lapsed = respond(provider, *more(first), previous=first["id"])
    assert lapsed["prompt_cache_diagnostics"] == {"type": "unavailable"}


def test_openai_finds_neither_a_reply_of_another_key_nor_one_of_another_provider() -> None:
    provider = simulator()
    missing = {"type": "comparison_response_not_found"}
    message = ask(provider, HELLO)["id"]
    assert respond(provider, hello(), previous="resp_x")["prompt_cache_diagnostics"] == missing
    assert respond(provider, hello(), previous=message)["prompt_cache_diagnostics"] == missing


def test_openai_refuses_a_comparison_with_what_is_no_id_or_by_a_model_that_makes_none() -> None:
    options: Wire = {"prompt_cache_options": {"comparison_response_id": 5}}
    status, reply = gpt.post(SimulatedProvider(), RESPONSES.path, RESPONSES.body(hello(), **options))
    assert (status, "comparison_response_id" in reply["error"]["message"]) == (400, True)
    mute = SimulatedProvider(models=gpt.models_with("openai:gpt-6.1-sol", diagnoses_misses=False))
    options = {"prompt_cache_options": {"comparison_response_id": "resp_1"}}
    status, reply = gpt.post(mute, RESPONSES.path, RESPONSES.body(hello(), **options))
    assert status == 400
    assert reply["error"]["message"] == "Unknown parameter: 'prompt_cache_options.comparison_response_id'."


def call_of(*digests: str) -> CacheCall:
    prefixes = tuple(PromptPrefix("messages", digest, 10 * at) for at, digest in enumerate(digests, start=1))
    return CacheCall(CacheScope("w", "m"), prefixes, (), 0.0)


def test_the_oldest_requests_are_forgotten_by_number_and_by_size() -> None:
    mark, wish = DiagnosisFingerprint((), "messages_changed"), DiagnosisRequest("a")
    few = AnsweredRequests(replies_max=2)
    small = AnsweredRequests(blocks_max=3)
    for known in (few, small):
        known.remember("a", mark, call_of("1"), Usage())
        known.remember("b", mark, call_of("1", "2"), Usage())
        assert known.diagnose(wish, mark, call_of("1"), Usage()) == CacheDiagnosis("hit")
        known.remember("c", mark, call_of("1"), Usage())
        assert known.diagnose(wish, mark, call_of("1"), Usage()) == CacheDiagnosis("not_found")
        assert known.diagnose(DiagnosisRequest("b"), mark, call_of("1", "2"), Usage()) == CacheDiagnosis("hit")
    small.remember("huge", mark, call_of("1", "2", "3", "4"), Usage())
    assert small.diagnose(DiagnosisRequest("huge"), mark, call_of("1", "2", "3", "4"), Usage()) == CacheDiagnosis("hit")
    assert small.diagnose(DiagnosisRequest("c"), mark, call_of("1"), Usage()) == CacheDiagnosis("not_found")
