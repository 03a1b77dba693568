"""The simulator as OpenAI, in both APIs: replies, refusals, and the effect of a request on the cache."""

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
    """A system prompt, then `count` questions, all answered except the last."""
    messages = [api.message("developer", system)]
    for turn in range(turns):
        messages += [api.message("user", f"Question {turn}."), api.message("assistant", f"Answer {turn}.")]
    return messages[:-1]


# Replies


@both
def test_the_last_message_is_echoed(api: Chat) -> None:
    reply = replied(simulator(), api, api.body(api.message("user", "Hello.")))
    assert api.text(reply) == "Echo: Hello."
    assert reply["id"] == f"{api.reply_prefix}sim-000001"


@both
def test_a_scripted_call_is_answered_and_the_script_continues(api: Chat) -> None:
    provider = simulator(CALL + '\n{"content": "Done."}')
    messages = [api.message("user", "Look.")]
    reply = replied(provider, api, api.body(*messages, tools=[api.tool("read")]))
    messages += api.reply_messages(reply)
    call = messages[-1]["tool_calls"][0]["id"] if api.path == Chat.path else messages[-1]["call_id"]
    assert call.startswith("call_")
    messages.append(api.result(call))
    assert api.text(replied(provider, api, api.body(*messages, tools=[api.tool("read")]))) == "Done."


@both
def test_the_same_conversation_gets_the_same_ids_under_another_key(api: Chat) -> None:
    body = api.body(api.message("user", "Look."), prompt_cache_key="one")
    first = replied(simulator(CALL), api, body, key="one")
    two = replied(simulator(CALL), api, {**body, "prompt_cache_key": "two"}, key="two")
    assert api.reply_messages(first) == api.reply_messages(two)


@both
def test_a_scripted_failure_is_in_the_providers_format(api: Chat) -> None:
    provider = simulator('{"content": "At last.", "fault": "429;retry-after=2"}')
    body = api.body(api.message("user", "Ask."))
    assert refused(provider, api, body) == (429, "this failure was ordered")
    assert api.text(replied(provider, api, body)) == "At last."


def test_chat_shows_no_thinking() -> None:
    script = '{"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]}'
    reply = replied(simulator(script), Chat(), Chat().body(Chat().message("user", "Ask.")))
    assert "Hm." not in str(reply)
    assert Chat().text(reply) == "Yes."


def test_a_chat_stream_reports_its_usage_only_on_request() -> None:
    api, provider = Chat(), simulator()
    body = api.body(api.message("user", "Ask."), stream=True)
    silent, with_usage = (
        post_stream(provider, api, {**body, **more}) for more in ({}, {"stream_options": {"include_usage": True}})
    )
    assert b'"usage":{' not in silent
    assert b'"usage":{' in with_usage
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
    error_status, message = refused(simulator(), api, api.body(api.message("user", "Ask."), **fields))
    assert error_status == status
    assert words in message


@both
def test_a_tool_choice_with_an_unknown_tool_is_refused(api: Chat) -> None:
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
def test_a_result_without_its_call_is_refused(api: Chat) -> None:
    status, message = refused(simulator(), api, api.body(api.message("user", "Ask."), api.result("call_1")))
    assert (status, "'call_1'" in message) == (400, True)


@both
@pytest.mark.parametrize("result_ids", [(), ("call_1",)])
def test_an_unanswered_call_is_refused(api: Chat, result_ids: tuple[str, ...]) -> None:
    messages = [api.message("user", "Ask."), *api.calls("call_1", "call_2"), *map(api.result, result_ids)]
    status, message = refused(simulator(), api, api.body(*messages))
    assert (status, "'call_2'" in message or not result_ids) == (400, True)
    assert (
        post(simulator(), api.path, api.body(*messages, *map(api.result, {"call_1", "call_2"} - {*result_ids})))[0]
        == 200
    )


def test_calls_of_non_function_tools_are_answered_like_others() -> None:
    chat, responses = Chat(), Responses()
    custom = {"id": "call_1", "type": "custom", "custom": {"name": "grep", "input": "x"}}
    messages = [chat.message("user", "Ask."), {"role": "assistant", "tool_calls": [custom]}]
    assert refused(simulator(), chat, chat.body(*messages))[0] == 400
    assert post(simulator(), chat.path, chat.body(*messages, chat.result("call_1")))[0] == 200
    messages = [
        responses.message("user", "Ask."),
        {"type": "custom_tool_call", "call_id": "c", "name": "grep", "input": "x"},
    ]
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "y"}
    assert refused(simulator(), responses, responses.body(*messages))[0] == 400
    assert refused(simulator(), responses, responses.body(messages[0], output))[0] == 400
    assert post(simulator(), responses.path, responses.body(*messages, output))[0] == 200


def test_chat_requires_results_right_after_their_calls_and_responses_do_not() -> None:
    for api, status in ((Chat(), 400), (Responses(), 200)):
        messages = [
            api.message("user", "Ask."),
            *api.calls("call_1"),
            api.message("user", "Wait."),
            api.result("call_1"),
        ]
        assert post(simulator(), api.path, api.body(*messages))[0] == status


@both
def test_a_prompt_beyond_the_window_is_refused_by_its_code(api: Chat) -> None:
    provider = simulator(models=models_with("openai:gpt-6.1-sol", context_tokens_max=1_000))
    status, reply = post(provider, api.path, api.body(api.message("user", LONG)))
    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 1000 tokens" in reply["error"]["message"]


def test_an_output_limit_above_the_models_is_refused_and_no_limit_is_allowed() -> None:
    api = Chat()
    ask = api.body(api.message("user", "Ask."), model="gpt-4o")
    assert "max_tokens is too large" in refused(simulator(), api, {**ask, "max_completion_tokens": 100_000})[1]
    assert api.text(replied(simulator(), api, ask)) == "Echo: Ask."


@both
def test_a_breakpoint_on_a_model_without_breakpoints_is_refused(api: Chat) -> None:
    body = api.body(api.message("user", api.part("Ask.", BREAKPOINT)), model=OLDER)
    assert "'prompt_cache_breakpoint' is not supported" in refused(simulator(), api, body)[1]


@both
def test_a_request_without_a_key_is_refused(api: Chat) -> None:
    answer = simulator().handle("POST", api.path, body=b"{}")
    assert answer.status == 401
    assert b"authorization header is required" in answer.read_body()
    assert b'"invalid_api_key"' in answer.read_body()


def test_responses_refuse_references_to_stored_state() -> None:
    api = Responses()
    body = api.body(api.message("user", "Ask."), previous_response_id="resp_1")
    assert "'previous_response_id' was not found" in refused(simulator(), api, body)[1]


# The cache


@both
def test_a_growing_conversation_reads_the_entry_of_its_last_call(api: Chat) -> None:
    provider = simulator()
    plain, read, written_tokens = buckets(provider, api, api.body(*conversation(api, 1)))
    assert (plain, read) == (0, 0)
    assert written_tokens > 1_024
    _, again, more = buckets(provider, api, api.body(*conversation(api, 2)))
    assert again == written_tokens
    assert 0 < more < 100


@both
def test_a_conversation_with_one_message_per_question_reads_up_to_each(api: Chat) -> None:
    """Two adjacent user messages are two messages; a message that is extended is a different one."""
    provider = simulator()
    system, question = api.message("developer", LONG), api.message("user", "One.")
    _, _, written_tokens = buckets(provider, api, api.body(system, question))
    assert buckets(provider, api, api.body(system, question, api.message("user", "Two.")))[1] == written_tokens
    assert buckets(provider, api, api.body(system, api.message("user", "One.", "Two.")))[1] == 0


@both
def test_a_shared_system_prompt_is_read_only_where_it_had_a_breakpoint(api: Chat) -> None:
    for breakpoint_, reads in ((None, False), (BREAKPOINT, True)):
        provider = simulator()
        system = api.message("developer", api.part(LONG, breakpoint_))
        buckets(provider, api, api.body(system, api.message("user", "One task.")))
        assert (buckets(provider, api, api.body(system, api.message("user", "Another.")))[1] > 0) == reads


@both
def test_the_end_of_several_developer_messages_is_looked_up(api: Chat) -> None:
    provider = simulator()
    first = [api.message("developer", LONG), api.message("developer", api.part("Be brief.", BREAKPOINT))]
    _, _, written_tokens = buckets(provider, api, api.body(*first, api.message("user", "One task.")))
    plain = [api.message("developer", LONG), api.message("developer", "Be brief.")]
    _, read, _ = buckets(provider, api, api.body(*plain, *conversation(api, 30)[1:]))
    assert written_tokens - 50 < read < written_tokens


@both
def test_only_the_last_result_of_a_run_is_a_lookup_position(api: Chat) -> None:
    provider = simulator()
    messages = [api.message("developer", LONG), api.message("user", "Look."), *api.calls("call_1", "call_2")]
    results = [api.result("call_1"), api.result("call_2")]
    _, _, written_tokens = buckets(provider, api, api.body(*messages, *results))
    more = [*api.calls("call_3"), api.result("call_3")]
    assert buckets(provider, api, api.body(*messages, *results, *more))[1] == written_tokens


@both
def test_explicit_mode_without_a_breakpoint_caches_nothing(api: Chat) -> None:
    provider = simulator()
    body = api.body(*conversation(api, 1), prompt_cache_options={"mode": "explicit"})
    assert [buckets(provider, api, body)[1:] for _ in range(2)] == [(0, 0), (0, 0)]


@both
def test_an_entry_lives_half_an_hour_or_twelve_hours(api: Chat) -> None:
    for breakpoint_, reads in ((BREAKPOINT, 0), ({**BREAKPOINT, "ttl": "12h"}, 1)):
        provider = simulator()
        system = api.message("developer", api.part(LONG, breakpoint_))
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
def test_a_parameter_that_the_cache_depends_on_invalidates_everything(api: Chat, change: Wire) -> None:
    provider = simulator()
    body = api.body(*conversation(api, 1), tools=[api.tool("read")])
    buckets(provider, api, body)
    assert buckets(provider, api, {**body, **change})[1] == 0
    assert buckets(provider, api, body)[1] > 0


@both
@pytest.mark.parametrize("change", [{"tool_choice": "none"}, {"parallel_tool_calls": True}, {"service_tier": "auto"}])
def test_other_parameters_invalidate_nothing(api: Chat, change: Wire) -> None:
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
def test_the_response_format_is_part_of_the_prefix(api: Chat, change: Wire) -> None:
    provider = simulator()
    body = api.body(*conversation(api, 1))
    buckets(provider, api, body)
    assert buckets(provider, api, {**body, **change})[1] == 0


@both
def test_an_older_model_reads_any_common_prefix_in_steps_of_128(api: Chat) -> None:
    provider = simulator()
    system = api.message("developer", LONG)
    assert buckets(provider, api, api.body(system, api.message("user", "One."), model=OLDER))[1:] == (0, 0)
    _, read, written_tokens = buckets(provider, api, api.body(system, api.message("user", "Another."), model=OLDER))
    assert (read % 128, written_tokens) == (0, 0)
    assert read >= 1_024


@both
def test_an_older_model_caches_for_the_requested_retention(api: Chat) -> None:
    for retention, reads in (({}, False), ({"prompt_cache_retention": "24h"}, True)):
        provider = simulator()
        body = api.body(*conversation(api, 1), model=OLDER, **retention)
        buckets(provider, api, body)
        provider.advance(3_600)
        assert (buckets(provider, api, body)[1] > 0) == reads


@both
def test_keys_do_not_share_a_cache(api: Chat) -> None:
    provider = simulator()
    body = api.body(*conversation(api, 1))
    buckets(provider, api, body, key="one")
    assert buckets(provider, api, body, key="two")[1] == 0
    assert buckets(provider, api, body, key="one")[1] > 0


# The Responses API


REASONED = '{"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}]}'


def reasoned() -> tuple[SimulatedProvider, list[Wire]]:
    api, provider = Responses(), simulator(REASONED)
    messages = [api.message("user", "Ask.")]
    reply = replied(provider, api, api.body(*messages))
    return provider, [*messages, *api.reply_messages(reply), api.message("user", "And?")]


def test_reasoning_comes_encrypted_and_is_accepted_back_unchanged() -> None:
    provider, messages = reasoned()
    assert messages[1]["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert messages[1]["id"].startswith("rs_")
    assert Responses().text(replied(provider, Responses(), Responses().body(*messages))) == "Echo: And?"


@pytest.mark.parametrize(
    "change",
    [{"encrypted_content": "bm90IG91cnM="}, {"encrypted_content": "?"}, {"summary": []}],
)
def test_altered_reasoning_is_refused(change: Wire) -> None:
    provider, messages = reasoned()
    messages[1] = {**messages[1], **change}
    status, message = refused(provider, Responses(), Responses().body(*messages))
    assert (status, "could not be verified" in message) == (400, True)


def test_reasoning_with_unknown_members_is_still_verified() -> None:
    provider, messages = reasoned()
    with_text = {**messages[1], "content": [{"type": "reasoning_text", "text": "Hm, hm."}]}
    assert post(provider, Responses.path, Responses().body(messages[0], with_text, *messages[2:]))[0] == 200
    tampered = {**with_text, "encrypted_content": "bm90IG91cnM="}
    assert refused(provider, Responses(), Responses().body(messages[0], tampered, *messages[2:]))[0] == 400


def test_redacted_thinking_is_reasoning_without_a_summary() -> None:
    script = '{"content": [{"type": "redacted_thinking", "data": ""}, {"type": "text", "text": "Yes."}]}'
    api = Responses()
    reply = replied(simulator(script), api, api.body(api.message("user", "Ask.")))
    assert (reply["output"][0]["type"], reply["output"][0]["summary"]) == ("reasoning", [])


def test_prewarming_writes_the_cache_and_returns_no_output() -> None:
    api, provider = Responses(), simulator(CALL)
    body = api.body(*conversation(api, 1))
    warmed = replied(provider, api, {**body, "prompt_cache_options": {"prewarm": True}})
    assert (warmed["output"], warmed["status"], warmed["usage"]["output_tokens"]) == ([], "completed", 0)
    assert api.buckets(warmed)[2] > 1_024
    assert buckets(provider, api, body)[1] == api.buckets(warmed)[2]


def test_token_counts_equal_billed_tokens() -> None:
    api, provider = Responses(), simulator()
    body = api.body(*conversation(api, 2))
    status, token_count = post(provider, "/v1/responses/input_tokens", body)
    assert (status, token_count["object"]) == (200, "response.input_tokens")
    assert token_count["input_tokens"] == sum(buckets(provider, api, body))


def test_counting_needs_no_output_limit() -> None:
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


def test_the_creation_date_of_a_model_is_its_release_date() -> None:
    row = shipped_models()["openai:gpt-6.1-sol"]
    released = msgspec.structs.replace(row, released=datetime.date(1970, 1, 2))
    unknown = msgspec.structs.replace(row, name="gpt-unknown", released=None)
    _, listed = get(simulator(models={released.id: released, unknown.id: unknown}), "/v1/models")
    assert [row["created"] for row in listed["data"]] == [86_400, 0]
