"""Thinking that the simulated provider accepts back, drops, or refuses."""

import base64
from typing import Any

import msgspec
import pytest
from tests.support.simulated import (
    CACHE_CONTROL,
    LONG,
    SONNET,
    Wire,
    assistant,
    count_tokens,
    models_with,
    post,
    refusal,
    request,
    simulator,
    text,
    tool,
    usage,
    user,
)

from holdfast.simulator.provider import SimulatedProvider

BETA = {"anthropic-beta": "thinking-binding-controls-2026-08-01"}
DROP: Wire = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
OLD = "claude-haiku-4-5"
THOUGHT = {"type": "thinking", "thinking": "Let me see."}
CALL = {"type": "tool_use", "name": "read", "input": {"path": "a", "line": 1}}


def script(*contents: list[Wire]) -> str:
    return "\n".join(msgspec.json.encode({"content": content}).decode() for content in contents)


def thinker() -> SimulatedProvider:
    return simulator(script([THOUGHT, text("One.")], [THOUGHT, text("Two.")], [THOUGHT, text("Three.")]))


def converse(provider: SimulatedProvider, turns: int, *, ask: str = "Ask.", **fields: Any) -> list[Wire]:
    """A conversation with that many replies, and one more question at its end."""
    messages = [user(ask)]
    for _ in range(turns):
        status, reply = post(provider, request(*messages, **fields))
        assert status == 200, reply
        messages += [assistant(*reply["content"]), user("Go on.")]
    return messages


def test_thinking_is_signed_and_accepted_back() -> None:
    provider = thinker()
    messages = converse(provider, 3)
    assert [block["type"] for block in messages[1]["content"]] == ["thinking", "text"]
    assert len({message["content"][0]["signature"] for message in messages[1::2]}) == 3


def test_a_conversation_replayed_gets_the_same_replies() -> None:
    provider = thinker()
    assert converse(provider, 3) == converse(provider, 3)


def test_a_moved_breakpoint_does_not_change_what_thinking_is_bound_to() -> None:
    provider = thinker()
    first, reply, more = converse(provider, 1, ask="Ask.")
    question = user(text("Ask.", CACHE_CONTROL))
    assert post(provider, request(question, reply, more))[0] == 200
    assert first != question


def test_a_moved_breakpoint_is_a_change_where_the_catalog_says_so() -> None:
    provider = simulator(script([THOUGHT, text("One.")]), models=models_with(breakpoints_change_binding=True))
    first, reply, more = converse(provider, 1)
    assert post(provider, request(first, reply, more))[0] == 200
    assert refusal(provider, request(user(text("Ask.", CACHE_CONTROL)), reply, more))[0] == 400


CHANGES: dict[str, Wire] = {
    "the system prompt": {"system": "Be rude."},
    "the tools": {"tools": [tool("read")]},
}


@pytest.mark.parametrize("fields", CHANGES.values(), ids=list(CHANGES))
def test_bound_thinking_after_a_changed_system_prompt_is_refused(fields: Wire) -> None:
    provider = thinker()
    messages = converse(provider, 1)
    status, kind, message = refusal(provider, request(*messages, **fields))
    assert (status, kind) == (400, "invalid_request_error")
    assert message.startswith("messages.1.content.0: this thinking block is bound to a different conversation")
    assert "drop_block" in message


def test_bound_thinking_after_a_changed_message_is_refused() -> None:
    provider = thinker()
    _, *rest = converse(provider, 1)
    assert refusal(provider, request(user("Another ask."), *rest))[0] == 400


def test_removing_thinking_between_other_thinking_is_refused() -> None:
    provider = thinker()
    messages = converse(provider, 2)
    messages[1] = assistant("One.")
    assert "messages.3.content.0" in refusal(provider, request(*messages))[2]


def test_removing_all_thinking_is_accepted() -> None:
    provider = thinker()
    messages = converse(provider, 2)
    messages[1], messages[3] = assistant("One."), assistant("Two.")
    assert post(provider, request(*messages))[0] == 200


def test_models_without_bound_thinking_accept_it_after_another_prefix() -> None:
    provider = simulator(script([THOUGHT, text("One.")]))
    _, *rest = converse(provider, 1, model="claude-opus-4-5")
    assert post(provider, request(user("Another ask."), *rest, model="claude-opus-4-5"))[0] == 200


def test_parameters_may_change_after_bound_thinking() -> None:
    provider = thinker()
    messages = converse(provider, 1, tools=[tool("read")])
    body = request(*messages, tools=[tool("read")], thinking={"type": "adaptive"}, tool_choice={"type": "none"})
    assert post(provider, body)[0] == 200


def test_a_client_may_reformat_the_input_of_a_call() -> None:
    provider = simulator(script([CALL, THOUGHT, text("One.")], [text("Two.")]))
    body = request(user("Ask."), tools=[tool("read")])
    _, reply = post(provider, body)
    call, *rest = reply["content"]
    again = {**call, "input": dict(reversed(call["input"].items()))}
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "ok"}
    status, second = post(provider, request(user("Ask."), assistant(again, *rest), user(result), tools=[tool("read")]))
    assert status == 200, second


def test_mismatched_thinking_is_dropped_on_request_and_reported() -> None:
    provider = thinker()
    _, *rest = converse(provider, 2)
    changed = request(user("Another ask."), *rest, thinking=DROP)
    status, reply = post(provider, changed, headers=BETA)
    assert status == 200
    assert reply["input_transformations"] == [
        {"type": "thinking_dropped", "path": f"messages.{n}.content.0", "reason": "prefix_binding_mismatch"}
        for n in (1, 3)
    ]
    without = request(user("Another ask."), assistant("One."), user("Go on."), assistant("Two."), user("Go on."))
    assert sum(tokens_in(reply)) == count_tokens(provider, without)


def tokens_in(reply: Wire) -> tuple[int, int, int]:
    reported = reply["usage"]
    names = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    first, second, third = (reported[name] for name in names)
    return first, second, third


def test_thinking_made_after_a_drop_is_bound_to_the_remaining_blocks() -> None:
    provider = thinker()
    _, *rest = converse(provider, 1)
    changed = [user("Another ask."), *rest]
    _, reply = post(provider, request(*changed, thinking=DROP), headers=BETA)
    longer = request(*changed, assistant(*reply["content"]), user("Go on."), thinking=DROP)
    _, second = post(provider, longer, headers=BETA)
    assert [dropped["path"] for dropped in second["input_transformations"]] == ["messages.1.content.0"]


def test_with_the_beta_a_reply_reports_that_nothing_was_dropped() -> None:
    assert post(thinker(), request(user("Ask.")), headers=BETA)[1]["input_transformations"] == []
    assert "input_transformations" not in post(thinker(), request(user("Ask.")))[1]


def test_a_stream_reports_dropped_thinking_at_the_start_of_its_message() -> None:
    provider = thinker()
    _, *rest = converse(provider, 1)
    body = msgspec.json.encode(request(user("Another ask."), *rest, thinking=DROP, stream=True))
    answer = provider.handle("POST", "/v1/messages", headers={"x-api-key": "key", **BETA}, body=body)
    first, *others = [chunk for chunk in answer.chunks if isinstance(chunk, bytes)]
    name, _, start = first.partition(b"\ndata: ")
    event = msgspec.json.decode(start)
    assert name == b"event: message_start"
    assert event["type"] == "message_start"
    assert [dropped["path"] for dropped in event["message"]["input_transformations"]] == ["messages.1.content.0"]
    assert first.endswith(b"}\n\n")
    assert others[-1].startswith(b"event: message_stop\n")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("error", "bound to a different conversation"),
        (None, "bound to a different conversation"),
        ("keep", 'must be "error" or "drop_block"'),
    ],
)
def test_mismatched_thinking_is_refused_unless_dropping_is_requested(value: str | None, words: str) -> None:
    provider = thinker()
    _, *rest = converse(provider, 1)
    thinking = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": value}}
    status, _, message = refusal(provider, request(user("Another ask."), *rest, thinking=thinking), headers=BETA)
    assert status == 400
    assert words in message


def test_another_models_thinking_is_dropped_silently() -> None:
    provider = thinker()
    messages = converse(provider, 1)
    status, reply = post(provider, request(*messages, model="claude-opus-5-5"))
    assert status == 200
    without = request(user("Ask."), assistant("One."), user("Go on."), model="claude-opus-5-5")
    assert sum(tokens_in(reply)) == count_tokens(provider, without)


def test_with_the_beta_another_models_thinking_is_reported() -> None:
    provider = thinker()
    messages = converse(provider, 1)
    _, reply = post(provider, request(*messages, model="claude-opus-5-5"), headers=BETA)
    assert [dropped["reason"] for dropped in reply["input_transformations"]] == ["model_binding_mismatch"]


def seal_of_another_model(maker: str) -> str:
    return base64.b64encode(msgspec.json.encode([maker, SONNET, "", ""])).decode()


@pytest.mark.parametrize(
    "block",
    [
        {"type": "thinking", "thinking": "Hm.", "signature": "made up"},
        {"type": "thinking", "thinking": "Hm.", "signature": "bWFkZSB1cA=="},
        {"type": "thinking", "thinking": "Hm."},
        {"type": "thinking", "thinking": "", "signature": seal_of_another_model("simulated")},
        {"type": "thinking", "thinking": "Hm.", "signature": "x", "more": 1},
        {"type": "redacted_thinking", "data": "made up"},
        {"type": "redacted_thinking", "data": seal_of_another_model("somebody")},
    ],
)
def test_unsigned_thinking_is_refused(block: Wire) -> None:
    member = "data" if block["type"] == "redacted_thinking" else "signature"
    status, _, message = refusal(thinker(), request(user("Ask."), assistant(block, "One."), user("Go on.")))
    assert status == 400
    assert f"messages.1.content.0: Invalid `{member}` in `{block['type']}` block" in message


def test_altered_thinking_is_refused() -> None:
    provider = thinker()
    messages = converse(provider, 1)
    messages[1]["content"][0]["thinking"] += " Or not."
    assert "Invalid `signature`" in refusal(provider, request(*messages))[2]


def test_redacted_thinking_is_sealed_and_accepted_back() -> None:
    provider = simulator(script([{"type": "redacted_thinking", "data": "x"}, text("One.")]))
    messages = converse(provider, 1)
    assert messages[1]["content"][0]["data"] != "x"
    assert post(provider, request(*messages))[0] == 200
    messages[0] = user("Another ask.")
    assert refusal(provider, request(*messages))[0] == 400


def test_a_breakpoint_on_thinking_is_refused() -> None:
    provider = thinker()
    messages = converse(provider, 1)
    messages[1]["content"][0]["cache_control"] = CACHE_CONTROL
    assert "cache_control cannot be set for thinking blocks" in refusal(provider, request(*messages))[2]


# Models that drop old thinking


def test_a_model_that_drops_old_thinking_loses_its_cache_there() -> None:
    provider = simulator(script([THOUGHT, {**CALL, "id": "t1"}], [text("Two.")]))
    tools = [tool("read")]
    start = [user(text(LONG * 8, CACHE_CONTROL))]
    _, reply = post(provider, request(*start, model=OLD, tools=tools))
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}
    loop = [*start, assistant(*reply["content"]), user({**result, "cache_control": CACHE_CONTROL})]
    written_tokens = usage(provider, request(*loop, model=OLD, tools=tools))["cache_creation_input_tokens"]
    again = usage(provider, request(*loop, model=OLD, tools=tools))
    assert again["cache_creation_input_tokens"] == 0
    messages = [*start, assistant(*reply["content"]), user(result, text("Go on.", CACHE_CONTROL))]
    after = usage(provider, request(*messages, model=OLD, tools=tools))
    assert after["cache_read_input_tokens"] == again["cache_read_input_tokens"] - written_tokens
    bare = [*start, assistant(reply["content"][1]), user(result, text("Go on.", CACHE_CONTROL))]
    assert count_tokens(provider, request(*messages, model=OLD, tools=tools)) == count_tokens(
        provider, request(*bare, model=OLD, tools=tools)
    )


def test_a_model_that_keeps_old_thinking_keeps_its_cache() -> None:
    provider = thinker()
    messages = converse(provider, 1)
    bare = request(user("Ask."), assistant("One."), user("Go on."))
    assert count_tokens(provider, request(*messages)) > count_tokens(provider, bare)
