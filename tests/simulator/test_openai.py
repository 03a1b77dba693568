"""The simulator as OpenAI, in both of its interfaces: replies, refusals, and what the cache makes of a request."""

import datetime
from typing import Any

import msgspec
import pytest
from tests.support.simulated import simulator
from tests.support.simulated_openai import BREAKPOINT, LONG, OLDER, Chat, Responses, Wire, get, models_with, post

from holdfast.catalog.lookup import shipped_models
from holdfast.simulator.provider import SimulatedProvider

CALL = (
    '{"content": [{"type": "text", "text": "I look."}, {"type": "tool_use", "name": "read", "input": {"path": "a"}}]}'
)

both = pytest.mark.parametrize("api", [Chat(), Responses()], ids=["chat", "responses"])


def replied(provider: SimulatedProvider, api: Chat, body: Wire, **options: Any) -> Wire:
    status, reply = post(provider, api.path, body, **options)
    assert status == 200, reply
    return reply


def buckets(provider: SimulatedProvider, api: Chat, body: Wire, **options: Any) -> tuple[int, int, int]:
    return api.buckets(replied(provider, api, body, **options))


def refused(provider: SimulatedProvider, api: Chat, body: Wire | bytes) -> tuple[int, str]:
    status, reply = post(provider, api.path, body)
    error = reply["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return status, error["message"]


def conversation(api: Chat, turns: int, *, system: str = LONG) -> list[Wire]:
    """A system prompt, then so many questions, answered but for the last."""
    said = [api.message("developer", system)]
    for turn in range(turns):
        said += [api.message("user", f"Question {turn}."), api.message("assistant", f"Answer {turn}.")]
    return said[:-1]


# Replies


@both
def test_the_last_words_are_echoed(api: Chat) -> None:
    reply = replied(simulator(), api, api.body(api.message("user", "Hello.")))
    assert api.text(reply) == "Echo: Hello."
    assert reply["id"] == f"{api.reply_prefix}sim-000001"


@both
def test_a_scripted_call_is_answered_and_the_script_goes_on(api: Chat) -> None:
    provider = simulator(CALL + '\n{"content": "Done."}')
    said = [api.message("user", "Look.")]
    reply = replied(provider, api, api.body(*said, tools=[api.tool("read")]))
    said += api.reply_messages(reply)
    call = said[-1]["tool_calls"][0]["id"] if api.path == Chat.path else said[-1]["call_id"]
    assert call.startswith("call_")
    said.append(api.result(call))
    assert api.text(replied(provider, api, api.body(*said, tools=[api.tool("read")]))) == "Done."


@both
def test_the_same_conversation_gets_the_same_ids_under_another_key(api: Chat) -> None:
    body = api.body(api.message("user", "Look."), prompt_cache_key="one")
    one = replied(simulator(CALL), api, body, key="one")
    two = replied(simulator(CALL), api, {**body, "prompt_cache_key": "two"}, key="two")
    assert api.reply_messages(one) == api.reply_messages(two)


@both
def test_a_failure_that_the_script_orders_comes_in_the_words_of_the_provider(api: Chat) -> None:
    provider = simulator('{"content": "At last.", "fault": "429;retry-after=2"}')
    body = api.body(api.message("user", "Ask."))
    assert refused(provider, api, body) == (429, "this failure was ordered")
    assert api.text(replied(provider, api, body)) == "At last."


def test_chat_shows_no_thinking() -> None:
    script = '{"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]}'
    reply = replied(simulator(script), Chat(), Chat().body(Chat().message("user", "Ask.")))
    assert "Hm." not in str(reply)
    assert Chat().text(reply) == "Yes."


def test_a_stream_of_chat_tells_its_usage_only_where_it_is_asked_to() -> None:
    api, provider = Chat(), simulator()
    body = api.body(api.message("user", "Ask."), stream=True)
    silent, telling = (
        post_stream(provider, api, {**body, **more}) for more in ({}, {"stream_options": {"include_usage": True}})
    )
    assert b'"usage":{' not in silent
    assert b'"usage":{' in telling
    assert silent.endswith(b"data: [DONE]\n\n")


def post_stream(provider: SimulatedProvider, api: Chat, body: Wire) -> bytes:
    answer = provider.handle("POST", api.path, headers={"authorization": "Bearer key"}, body=msgspec.json.encode(body))
    assert answer.headers["content-type"].startswith("text/event-stream")
    return answer.read_body()


# Refusals


@both
@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"model": "gpt-none"}, 404, "`gpt-none` does not exist"),
        ({"tool_choice": "sometimes"}, 400, "Invalid value for 'tool_choice'"),
        ({"tool_choice": 5}, 400, "Invalid value for 'tool_choice'"),
        ({"tool_choice": "required"}, 400, "only allowed when 'tools' are specified"),
        ({"prompt_cache_retention": "24h"}, 400, "'prompt_cache_retention' is not supported"),
        ({"prompt_cache_options": 5}, 400, "expected an object"),
        ({"prompt_cache_options": {"mode": "often"}}, 400, "'prompt_cache_options.mode'"),
        ({"prompt_cache_options": {"ttl": "5m"}}, 400, "'30m' and '12h'"),
        ({"prompt_cache_options": {"ttl": ["30m"]}}, 400, "'30m' and '12h'"),
        ({"prompt_cache_options": {"prewarm": "yes"}}, 400, "prewarm"),
        ({"prompt_cache_options": {"size": 1}}, 400, "Unknown parameter: 'prompt_cache_options.size'"),
        ({"prompt_cache_key": 5}, 400, "'prompt_cache_key'"),
        ({"prompt_cache_key": "k" * 65}, 400, "'prompt_cache_key'"),
        ({"model": OLDER, "prompt_cache_options": {}}, 400, "'prompt_cache_options' is not supported"),
        ({"model": OLDER, "prompt_cache_retention": "5m"}, 400, "'in_memory' or '24h'"),
        ({"model": "gpt-5.5", "prompt_cache_retention": "in_memory"}, 400, "supports '24h'"),
        ({"parallel_tool_calls": "no"}, 400, "parallel_tool_calls"),
        ({"service_tier": 5}, 400, "'service_tier': expected a string"),
        ({"n": 2}, 400, "'n'"),
        ({"model": 5}, 400, "$.model"),
        ({"stream": "yes"}, 400, "$.stream"),
    ],
)
def test_an_invalid_request_is_refused_with_its_reason(api: Chat, fields: Wire, status: int, words: str) -> None:
    found, message = refused(simulator(), api, api.body(api.message("user", "Ask."), **fields))
    assert found == status
    assert words in message


@both
def test_a_tool_choice_that_names_no_tool_is_refused(api: Chat) -> None:
    choice = {"type": "function", "function": {"name": "write"}, "name": "write"}
    choice.pop("name" if api.path == Chat.path else "function")
    body = api.body(api.message("user", "Ask."), tools=[api.tool("read")], tool_choice=choice)
    assert refused(simulator(), api, body)[1].endswith("is not found in 'tools'.")
    assert post(simulator(), api.path, {**body, "tools": [api.tool("write")]})[0] == 200


@both
def test_an_empty_conversation_is_refused(api: Chat) -> None:
    assert refused(simulator(), api, api.body())[0] == 400
    assert refused(simulator(), api, api.body(api.message("developer", "Be brief.")))[0] == 400


@both
def test_a_result_that_answers_nothing_is_refused(api: Chat) -> None:
    status, message = refused(simulator(), api, api.body(api.message("user", "Ask."), api.result("call_1")))
    assert (status, "'call_1'" in message) == (400, True)


@both
@pytest.mark.parametrize("answered", [(), ("call_1",)])
def test_a_call_that_is_not_answered_is_refused(api: Chat, answered: tuple[str, ...]) -> None:
    said = [api.message("user", "Ask."), *api.calls("call_1", "call_2"), *map(api.result, answered)]
    status, message = refused(simulator(), api, api.body(*said))
    assert (status, "'call_2'" in message or not answered) == (400, True)
    assert post(simulator(), api.path, api.body(*said, *map(api.result, {"call_1", "call_2"} - {*answered})))[0] == 200


def test_calls_of_tools_that_are_no_functions_are_answered_like_any() -> None:
    chat, responses = Chat(), Responses()
    custom = {"id": "call_1", "type": "custom", "custom": {"name": "grep", "input": "x"}}
    said = [chat.message("user", "Ask."), {"role": "assistant", "tool_calls": [custom]}]
    assert refused(simulator(), chat, chat.body(*said))[0] == 400
    assert post(simulator(), chat.path, chat.body(*said, chat.result("call_1")))[0] == 200
    said = [
        responses.message("user", "Ask."),
        {"type": "custom_tool_call", "call_id": "c", "name": "grep", "input": "x"},
    ]
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "y"}
    assert refused(simulator(), responses, responses.body(*said))[0] == 400
    assert refused(simulator(), responses, responses.body(said[0], output))[0] == 400
    assert post(simulator(), responses.path, responses.body(*said, output))[0] == 200


def test_chat_wants_results_right_behind_their_calls_and_responses_do_not() -> None:
    for api, status in ((Chat(), 400), (Responses(), 200)):
        said = [api.message("user", "Ask."), *api.calls("call_1"), api.message("user", "Wait."), api.result("call_1")]
        assert post(simulator(), api.path, api.body(*said))[0] == status


@both
def test_a_prompt_beyond_the_window_is_refused_by_its_code(api: Chat) -> None:
    provider = simulator(models=models_with("openai:gpt-6.1-sol", context_tokens_max=1_000))
    status, reply = post(provider, api.path, api.body(api.message("user", LONG)))
    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 1000 tokens" in reply["error"]["message"]


def test_more_output_than_the_model_gives_is_refused_and_no_limit_is_none() -> None:
    api = Chat()
    ask = api.body(api.message("user", "Ask."), model="gpt-4o")
    assert "max_tokens is too large" in refused(simulator(), api, {**ask, "max_completion_tokens": 100_000})[1]
    assert api.text(replied(simulator(), api, ask)) == "Echo: Ask."


@both
def test_a_mark_on_a_model_without_breakpoints_is_refused(api: Chat) -> None:
    body = api.body(api.message("user", api.part("Ask.", BREAKPOINT)), model=OLDER)
    assert "'prompt_cache_breakpoint' is not supported" in refused(simulator(), api, body)[1]


@both
def test_without_a_key_nothing_is_answered(api: Chat) -> None:
    answer = simulator().handle("POST", api.path, body=b"{}")
    assert answer.status == 401
    assert b"authorization header is required" in answer.read_body()
    assert b'"invalid_api_key"' in answer.read_body()


def test_responses_refuse_what_was_never_stored() -> None:
    api = Responses()
    body = api.body(api.message("user", "Ask."), previous_response_id="resp_1")
    assert "'previous_response_id' was not found" in refused(simulator(), api, body)[1]


# The cache


@both
def test_a_conversation_that_grows_reads_what_its_last_call_wrote(api: Chat) -> None:
    provider = simulator()
    plain, read, written = buckets(provider, api, api.body(*conversation(api, 1)))
    assert (plain, read) == (0, 0)
    assert written > 1_024
    _, again, more = buckets(provider, api, api.body(*conversation(api, 2)))
    assert again == written
    assert 0 < more < 100


@both
def test_a_conversation_of_many_questions_in_one_message_each_reads_behind_each(api: Chat) -> None:
    """Two user messages behind one another are two; one that is extended is another one."""
    provider = simulator()
    system, question = api.message("developer", LONG), api.message("user", "One.")
    _, _, written = buckets(provider, api, api.body(system, question))
    assert buckets(provider, api, api.body(system, question, api.message("user", "Two.")))[1] == written
    assert buckets(provider, api, api.body(system, api.message("user", "One.", "Two.")))[1] == 0


@both
def test_a_shared_system_prompt_is_read_only_where_it_was_marked(api: Chat) -> None:
    for mark, reads in ((None, False), (BREAKPOINT, True)):
        provider = simulator()
        system = api.message("developer", api.part(LONG, mark))
        buckets(provider, api, api.body(system, api.message("user", "One task.")))
        assert (buckets(provider, api, api.body(system, api.message("user", "Another.")))[1] > 0) == reads


@both
def test_the_end_of_several_messages_of_the_developer_is_looked_up(api: Chat) -> None:
    provider = simulator()
    first = [api.message("developer", LONG), api.message("developer", api.part("Be brief.", BREAKPOINT))]
    _, _, written = buckets(provider, api, api.body(*first, api.message("user", "One task.")))
    plain = [api.message("developer", LONG), api.message("developer", "Be brief.")]
    _, read, _ = buckets(provider, api, api.body(*plain, *conversation(api, 30)[1:]))
    assert written - 50 < read < written


@both
def test_only_the_last_result_of_a_run_is_a_point_to_look_at(api: Chat) -> None:
    provider = simulator()
    said = [api.message("developer", LONG), api.message("user", "Look."), *api.calls("call_1", "call_2")]
    results = [api.result("call_1"), api.result("call_2")]
    _, _, written = buckets(provider, api, api.body(*said, *results))
    more = [*api.calls("call_3"), api.result("call_3")]
    assert buckets(provider, api, api.body(*said, *results, *more))[1] == written


@both
def test_explicit_mode_without_a_mark_caches_nothing(api: Chat) -> None:
    provider = simulator()
    body = api.body(*conversation(api, 1), prompt_cache_options={"mode": "explicit"})
    assert [buckets(provider, api, body)[1:] for _ in range(2)] == [(0, 0), (0, 0)]


@both
def test_an_entry_lives_half_an_hour_or_twelve_hours(api: Chat) -> None:
    for mark, reads in ((BREAKPOINT, 0), ({**BREAKPOINT, "ttl": "12h"}, 1)):
        provider = simulator()
        system = api.message("developer", api.part(LONG, mark))
        body = api.body(system, api.message("user", "Ask."), prompt_cache_options={"mode": "explicit", "ttl": "30m"})
        buckets(provider, api, body)
        provider.advance(1_800)
        assert min(1, buckets(provider, api, body)[1]) == reads


@both
@pytest.mark.parametrize(
    "change",
    [
        {"prompt_cache_key": "another"},
        {"service_tier": "priority"},
        {"parallel_tool_calls": False},
        {"model": "gpt-6-sol"},
        {"tools": []},
    ],
)
def test_a_parameter_that_the_cache_depends_on_loses_everything(api: Chat, change: Wire) -> None:
    provider = simulator()
    body = api.body(*conversation(api, 1), tools=[api.tool("read")])
    buckets(provider, api, body)
    assert buckets(provider, api, {**body, **change})[1] == 0
    assert buckets(provider, api, body)[1] > 0


@both
@pytest.mark.parametrize("change", [{"tool_choice": "none"}, {"parallel_tool_calls": True}, {"service_tier": "auto"}])
def test_what_the_cache_does_not_depend_on_loses_nothing(api: Chat, change: Wire) -> None:
    provider = simulator()
    body = api.body(*conversation(api, 1), tools=[api.tool("read")])
    buckets(provider, api, body)
    assert buckets(provider, api, {**body, **change})[1] > 0


@pytest.mark.parametrize(
    ("api", "change"),
    [
        (Chat(), {"reasoning_effort": "high"}),
        (Chat(), {"verbosity": "low"}),
        (Chat(), {"response_format": {"type": "json_object"}}),
        (Responses(), {"reasoning": {"effort": "high"}}),
        (Responses(), {"text": {"verbosity": "low"}}),
        (Responses(), {"text": {"format": {"type": "json_object"}}}),
    ],
)
def test_how_the_model_shall_write_is_part_of_the_prefix(api: Chat, change: Wire) -> None:
    provider = simulator()
    body = api.body(*conversation(api, 1))
    buckets(provider, api, body)
    assert buckets(provider, api, {**body, **change})[1] == 0


@both
def test_an_older_model_reads_any_beginning_in_steps_of_128(api: Chat) -> None:
    provider = simulator()
    system = api.message("developer", LONG)
    assert buckets(provider, api, api.body(system, api.message("user", "One."), model=OLDER))[1:] == (0, 0)
    _, read, written = buckets(provider, api, api.body(system, api.message("user", "Another."), model=OLDER))
    assert (read % 128, written) == (0, 0)
    assert read >= 1_024


@both
def test_an_older_model_keeps_for_as_long_as_the_retention_says(api: Chat) -> None:
    for retention, reads in (({}, False), ({"prompt_cache_retention": "24h"}, True)):
        provider = simulator()
        body = api.body(*conversation(api, 1), model=OLDER, **retention)
        buckets(provider, api, body)
        provider.advance(3_600)
        assert (buckets(provider, api, body)[1] > 0) == reads


@both
def test_keys_do_not_share_their_cache(api: Chat) -> None:
    provider = simulator()
    body = api.body(*conversation(api, 1))
    buckets(provider, api, body, key="one")
    assert buckets(provider, api, body, key="two")[1] == 0
    assert buckets(provider, api, body, key="one")[1] > 0


# The Responses API


REASONED = '{"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]}'


def reasoned() -> tuple[SimulatedProvider, list[Wire]]:
    api, provider = Responses(), simulator(REASONED)
    said = [api.message("user", "Ask.")]
    reply = replied(provider, api, api.body(*said))
    return provider, [*said, *api.reply_messages(reply), api.message("user", "And?")]


def test_reasoning_comes_with_encrypted_content_and_goes_back_as_it_came() -> None:
    provider, said = reasoned()
    assert said[1]["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert said[1]["id"].startswith("rs_")
    assert Responses().text(replied(provider, Responses(), Responses().body(*said))) == "Echo: And?"


@pytest.mark.parametrize(
    "change",
    [{"encrypted_content": "bm90IG91cnM="}, {"encrypted_content": "?"}, {"summary": []}],
)
def test_reasoning_that_was_tampered_with_is_refused(change: Wire) -> None:
    provider, said = reasoned()
    said[1] = {**said[1], **change}
    status, message = refused(provider, Responses(), Responses().body(*said))
    assert (status, "could not be verified" in message) == (400, True)


def test_reasoning_that_holds_more_than_we_know_is_checked_all_the_same() -> None:
    provider, said = reasoned()
    whole = {**said[1], "content": [{"type": "reasoning_text", "text": "Hm, hm."}]}
    assert post(provider, Responses.path, Responses().body(said[0], whole, *said[2:]))[0] == 200
    tampered = {**whole, "encrypted_content": "bm90IG91cnM="}
    assert refused(provider, Responses(), Responses().body(said[0], tampered, *said[2:]))[0] == 400


def test_redacted_thinking_is_reasoning_without_a_summary() -> None:
    script = '{"content": [{"type": "redacted_thinking", "data": ""}, {"type": "text", "text": "Yes."}]}'
    api = Responses()
    reply = replied(simulator(script), api, api.body(api.message("user", "Ask.")))
    assert (reply["output"][0]["type"], reply["output"][0]["summary"]) == ("reasoning", [])


def test_prewarming_writes_and_says_nothing() -> None:
    api, provider = Responses(), simulator(CALL)
    body = api.body(*conversation(api, 1))
    warmed = replied(provider, api, {**body, "prompt_cache_options": {"prewarm": True}})
    assert (warmed["output"], warmed["status"], warmed["usage"]["output_tokens"]) == ([], "completed", 0)
    assert api.buckets(warmed)[2] > 1_024
    assert buckets(provider, api, body)[1] == api.buckets(warmed)[2]


def test_tokens_are_counted_as_they_are_billed() -> None:
    api, provider = Responses(), simulator()
    body = api.body(*conversation(api, 2))
    status, counted = post(provider, "/v1/responses/input_tokens", body)
    assert (status, counted["object"]) == (200, "response.input_tokens")
    assert counted["input_tokens"] == sum(buckets(provider, api, body))


def test_counting_asks_for_no_output() -> None:
    api = Responses()
    body = api.body(api.message("user", "Ask."), max_output_tokens=10**9)
    assert refused(simulator(), api, body)[0] == 400
    assert post(simulator(), "/v1/responses/input_tokens", body)[0] == 200


def test_only_responses_compare_and_prewarm() -> None:
    for options in ({"comparison_response_id": "resp_1"}, {"prewarm": False}):
        for api, status in ((Responses(), 200), (Chat(), 400)):
            body = api.body(api.message("user", "Ask."), prompt_cache_options=options)
            assert post(simulator(), api.path, body)[0] == status


# Models


def test_models_are_listed_and_described() -> None:
    status, listed = get(simulator(), "/v1/models")
    assert (status, listed["object"]) == (200, "list")
    names = [row["id"] for row in listed["data"]]
    assert "gpt-6.1-sol" in names
    assert not any(name.startswith(("claude", "gemini")) for name in names)
    assert get(simulator(), "/v1/models/gpt-6.1-sol")[1] == next(
        row for row in listed["data"] if row["id"] == "gpt-6.1-sol"
    )
    assert get(simulator(), "/v1/models/claude-sonnet-5-5")[0] == 404


def test_a_model_was_created_when_it_was_released() -> None:
    row = shipped_models()["openai:gpt-6.1-sol"]
    released = msgspec.structs.replace(row, released=datetime.date(1970, 1, 2))
    unknown = msgspec.structs.replace(row, name="gpt-unknown", released=None)
    _, listed = get(simulator(models={released.id: released, unknown.id: unknown}), "/v1/models")
    assert [row["created"] for row in listed["data"]] == [86_400, 0]
