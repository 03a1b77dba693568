"""Requests that the simulated provider refuses, as the real one would."""

import msgspec
import pytest
from tests.support.simulated import (
    CACHE_CONTROL,
    LONG,
    SONNET,
    Wire,
    assistant,
    models_with,
    post,
    refusal,
    request,
    simulator,
    text,
    tool,
    user,
)

from holdfast.catalog.lookup import shipped_models

HELLO = user("Hello.")
CALL = {"type": "tool_use", "id": "t1", "name": "read", "input": {}}
OTHER_CALL = {**CALL, "id": "t2"}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
OTHER_RESULT = {**RESULT, "tool_use_id": "t2"}
SYSTEM_MESSAGE = {"role": "system", "content": "Be brief."}
THINKING_ENABLED = {"type": "enabled", "budget_tokens": 1_024}

INVALID: dict[str, tuple[Wire | bytes, str]] = {
    "no JSON": (b"{", "cannot be read"),
    "no object": (b"[]", "cannot be read"),
    "no UTF-8": (b'{"model": "\xff"}', "cannot be read"),
    "nesting": (b"[" * 100_000, "cannot be read"),
    "no max_tokens": ({"model": SONNET, "messages": [HELLO]}, "max_tokens"),
    "negative max_tokens": (request(HELLO, max_tokens=-1), "max_tokens"),
    "no model": ({"max_tokens": 1, "messages": [HELLO]}, "model"),
    "no messages": ({"model": SONNET, "max_tokens": 1}, "messages"),
    "empty messages": (request(), "at least one message is required"),
    "empty content": (request(HELLO, assistant(), HELLO), "messages.1: all messages must have non-empty content"),
    "empty text": (request(user("")), "messages.0: block 0: text without"),
    "an unknown role": (request({"role": "robot", "content": "Hello."}), "messages.0"),
    "a first assistant": (request(assistant("Hi."), HELLO), "messages.0: the first message"),
    "a result without call": (request(user(RESULT)), "answers no call"),
    "an unanswered call": (request(HELLO, assistant(CALL), user("Go on.")), "messages.2: call 't1'"),
    "half the answers": (request(HELLO, assistant(CALL, OTHER_CALL), user(RESULT)), "call 't2'"),
    "a result twice": (request(HELLO, assistant(CALL), user(RESULT, RESULT)), "answered more than once"),
    "a call id twice": (
        request(HELLO, assistant(CALL), user(RESULT), assistant(CALL), user(RESULT)),
        "call id 't1' was used before",
    ),
    "text before a result": (request(HELLO, assistant(CALL), user("So:", RESULT)), "comes after other content"),
    "a call by the user": (request(user(CALL)), "tool_use in a user message"),
    "a system message after the assistant": (
        request(HELLO, assistant("Hi."), SYSTEM_MESSAGE),
        "a system message does not follow a user message",
    ),
    "an unknown field of a message": (request({**HELLO, "clear_at": 1}), "messages.0.clear_at: Extra inputs"),
    "a beta's field without the beta": (
        request(HELLO, {**SYSTEM_MESSAGE, "output_config": {"effort": "low"}}),
        "messages.1.output_config: Extra inputs",
    ),
    "a user message after a system message": (request(HELLO, SYSTEM_MESSAGE, HELLO), "follows a system message"),
    "five breakpoints": (
        request(user(*(text(str(n), CACHE_CONTROL) for n in range(5)))),
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "a long ttl after a short one": (
        request(user(text("a", CACHE_CONTROL), text("b", {**CACHE_CONTROL, "ttl": "1h"}))),
        "must not come after",
    ),
    "an unknown ttl": (request(user(text("a", {**CACHE_CONTROL, "ttl": "2h"}))), "cache_control"),
    "a breakpoint on empty text": (
        request(HELLO, system=[text(" ", CACHE_CONTROL)]),
        "system.0: cache_control cannot be set for empty text blocks",
    ),
    "two tools of one name": (request(HELLO, tools=[tool("a"), tool("a")]), "Tool names must be unique"),
    "too much output": (request(HELLO, max_tokens=128_001), "max_tokens: 128001 > 128000"),
    "a choice without tools": (request(HELLO, tool_choice={"type": "auto"}), "while providing tools"),
    "an unknown choice": (request(HELLO, tools=[tool("a")], tool_choice={"type": "some"}), "auto, any, tool, none"),
    "a choice that is none": (request(HELLO, tools=[tool("a")], tool_choice=1), "tool_choice: must be an object"),
    "an unknown tool": (
        request(HELLO, model="claude-opus-5-5", tools=[tool("a")], tool_choice={"type": "tool", "name": "b"}),
        "tool_choice.name",
    ),
    "a forced tool": (
        request(HELLO, tools=[tool("a")], tool_choice={"type": "tool", "name": "a"}),
        "does not support forced tool use (tool)",
    ),
    "any forced tool": (
        request(HELLO, tools=[tool("a")], tool_choice={"type": "any"}),
        "does not support forced tool use (any)",
    ),
    "a prefill": (request(HELLO, assistant("The answer")), "does not support assistant message prefill"),
    "little thinking": (
        request(HELLO, max_tokens=5_000, thinking={"type": "enabled", "budget_tokens": 1_023}),
        "at least 1024",
    ),
    "unbounded thinking": (request(HELLO, max_tokens=5_000, thinking={"type": "enabled"}), "budget_tokens"),
    "only thinking": (request(HELLO, max_tokens=1_024, thinking=THINKING_ENABLED), "must be greater than"),
    "thinking that is no object": (request(HELLO, thinking="deep"), "thinking: must be an object"),
    "binding without its beta": (
        request(HELLO, thinking={"type": "adaptive", "block_binding": {}}),
        "needs the beta thinking-binding-controls-2026-08-01",
    ),
    "streaming while warming": (request(HELLO, max_tokens=0, stream=True), "0 cannot be combined with stream"),
    "thinking while warming": (
        request(HELLO, max_tokens=0, thinking=THINKING_ENABLED),
        '0 cannot be combined with thinking.type "enabled"',
    ),
    "a format while warming": (
        request(HELLO, max_tokens=0, output_config={"format": {"type": "json_schema"}}),
        "0 cannot be combined with output_config.format",
    ),
    "a forced tool while warming": (
        request(HELLO, max_tokens=0, model="claude-opus-5-5", tools=[tool("a")], tool_choice={"type": "any"}),
        "0 cannot be combined with tool_choice.type 'any'",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_request_is_refused_with_its_reason(case: str) -> None:
    body, words = INVALID[case]
    status, kind, message = refusal(simulator(), body)
    assert (status, kind) == (400, "invalid_request_error")
    assert words in message


VALID: dict[str, Wire] = {
    "answered calls": request(HELLO, assistant(CALL, OTHER_CALL), user(RESULT, OTHER_RESULT, "Go on.")),
    "results in two messages": request(HELLO, assistant(CALL, OTHER_CALL), user(RESULT), user(OTHER_RESULT)),
    "four breakpoints": request(user(*(text(str(n), CACHE_CONTROL) for n in range(4)))),
    "all the output": request(HELLO, max_tokens=128_000),
    "a free choice": request(HELLO, tools=[tool("a")], tool_choice={"type": "none"}),
    "no choice": request(HELLO, tool_choice=None),
    "a forced tool where it is taken": request(
        HELLO, model="claude-opus-5-5", tools=[tool("a")], tool_choice={"type": "tool", "name": "a"}
    ),
    "a prefill where it is taken": request(HELLO, assistant("The answer"), model="claude-opus-4-5"),
    "a budget": request(HELLO, max_tokens=1_025, thinking=THINKING_ENABLED),
    "warming with a free choice": request(HELLO, max_tokens=0, tools=[tool("a")], tool_choice={"type": "auto"}),
    "warming with adaptive thinking": request(HELLO, max_tokens=0, thinking={"type": "adaptive"}),
    "a system message": request(HELLO, SYSTEM_MESSAGE),
}


@pytest.mark.parametrize("case", VALID)
def test_a_valid_request_is_answered(case: str) -> None:
    status, reply = post(simulator(), VALID[case])
    assert status == 200, reply


def test_a_system_message_is_refused_where_the_model_has_none() -> None:
    body = request(HELLO, SYSTEM_MESSAGE, model="claude-opus-4-7")
    assert refusal(simulator(), body)[0] == 400


def test_an_unknown_model_is_not_found_and_similar_ones_are_suggested() -> None:
    status, kind, message = refusal(simulator(), request(HELLO, model="claude-sonet-5-5"))
    assert (status, kind) == (404, "not_found_error")
    assert message.startswith("model: ")
    assert "did you mean claude-sonnet-5-5" in message
    assert "anthropic:" not in message


@pytest.mark.parametrize(
    "headers", [{}, {"x-api-key": ""}, {"authorization": "Bearer"}, {"authorization": "Basic abc"}]
)
def test_a_request_without_a_key_is_an_authentication_error(headers: dict[str, str]) -> None:
    answer = simulator().handle("POST", "/v1/messages", headers=headers, body=msgspec.json.encode(request(HELLO)))
    error = msgspec.json.decode(answer.read_body())["error"]
    assert (answer.status, error["type"]) == (401, "authentication_error")


@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21"])
def test_both_versions_of_the_api_are_supported(version: str) -> None:
    assert post(simulator(), request(HELLO), headers={"anthropic-version": version})[0] == 200


def test_another_version_of_the_api_is_refused() -> None:
    status, _, message = refusal(simulator(), request(HELLO), headers={"anthropic-version": "2022-01-01"})
    assert status == 400
    assert "2023-06-01, 2026-10-21" in message


def test_a_prompt_beyond_the_window_is_too_long() -> None:
    models = dict(shipped_models())
    row = models[f"anthropic:{SONNET}"]
    tokens = post(simulator(), request(HELLO, system=LONG))[1]["usage"]["input_tokens"]
    for window, status in ((tokens, 200), (tokens - 1, 400)):
        provider = simulator(models={row.id: msgspec.structs.replace(row, context_tokens_max=window)})
        error_status, reply = post(provider, request(HELLO, system=LONG))
        assert error_status == status
    assert reply["error"]["message"] == f"prompt is too long: {tokens} tokens > {tokens - 1} maximum"


def test_a_body_beyond_the_limit_is_too_large() -> None:
    status, kind, _ = refusal(simulator(), b" " * (32 * 1024 * 1024 + 1))
    assert (status, kind) == (413, "request_too_large")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/messages"),
        ("POST", "/v1/models"),
        ("POST", "/v1/models/x"),
        ("GET", "/v1/models/"),
        ("GET", "/"),
        ("DELETE", "/v1/messages"),
        ("POST", "/v1/messages/batches"),
    ],
)
def test_an_unknown_path_is_not_found(method: str, path: str) -> None:
    answer = simulator().handle(method, path, headers={"x-api-key": "key"})
    reply = msgspec.json.decode(answer.read_body())
    assert (answer.status, reply["type"], reply["error"]["type"]) == (404, "error", "not_found_error")
    assert "POST /v1/messages/count_tokens" in reply["error"]["message"]


def test_a_refused_request_leaves_the_cache_unchanged() -> None:
    provider = simulator(models=models_with(tokens_min=0))
    refusal(provider, request(user(text("Hello.", CACHE_CONTROL)), assistant("Hi.")))
    assert provider.cache == ()


# Models


def get(path: str, **query: str) -> tuple[int, Wire]:
    answer = simulator().handle("GET", path, headers={"x-api-key": "key"}, query=query)
    return answer.status, msgspec.json.decode(answer.read_body())


def ids(page: Wire) -> list[str]:
    return [row["id"] for row in page["data"]]


def test_models_are_listed_newest_first_page_by_page() -> None:
    _, everything = get("/v1/models", limit="1000")
    names = ids(everything)
    dates = [row["created_at"] for row in everything["data"]]
    assert dates == sorted(dates, reverse=True)
    assert everything["has_more"] is False
    assert len(names) > 20
    _, first = get("/v1/models")
    assert (ids(first), first["has_more"]) == (names[:20], True)
    assert (first["first_id"], first["last_id"]) == (names[0], names[19])
    _, second = get("/v1/models", after_id=names[19])
    assert (ids(second), second["has_more"]) == (names[20:], False)
    _, back = get("/v1/models", before_id=names[5], limit="2")
    assert (ids(back), back["has_more"]) == (names[3:5], True)


def test_a_page_after_the_last_model_is_empty() -> None:
    names = ids(get("/v1/models", limit="1000")[1])
    _, page = get("/v1/models", after_id=names[-1])
    assert page == {"data": [], "has_more": False, "first_id": None, "last_id": None}


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "1001"}, {"limit": "ten"}, {"limit": "²"}, {"after_id": "x"}]
)
def test_an_invalid_page_is_refused(query: dict[str, str]) -> None:
    assert get("/v1/models", **query)[0] == 400


def test_one_model_is_described() -> None:
    status, described = get(f"/v1/models/{SONNET}")
    assert status == 200
    assert described == {
        "type": "model",
        "id": SONNET,
        "display_name": "Claude Sonnet 5 5",
        "created_at": "2026-09-28T00:00:00Z",
        "lifecycle": "active",
        "max_input_tokens": 1_000_000,
        "max_tokens": 128_000,
    }
    assert get("/v1/models/gpt")[0] == 404


@pytest.mark.parametrize("beta", ["per-turn-control-2026-07-01", "mid-conversation-output-config-2026-07-01"])
def test_output_config_is_accepted_on_a_system_message_with_its_beta(beta: str) -> None:
    provider = simulator()
    body = request(HELLO, {**SYSTEM_MESSAGE, "output_config": {"effort": "low"}})
    assert post(provider, body, headers={"anthropic-beta": f"other-2026-01-01,{beta}"})[0] == 200
    assert post(provider, request({**HELLO, "output_config": {}}), headers={"anthropic-beta": beta})[0] == 400
