"""Rewriting of OpenRouter requests: breakpoints where the model supports them, and one session."""

import json
from typing import Any

import pytest

from holdfast.catalog.lookup import shipped_models
from holdfast.gateway.recording.fingerprint import decode_session_hints
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.volatile_text import DATE_RULE, VolatileExtractor

GUIDE = "You read before you write. " * 300
CLAUDE = "anthropic/claude-sonnet-5.5"
BREAKPOINT = {"type": "ephemeral"}
TOOL = {"type": "function", "function": {"name": "read", "description": "Read.", "parameters": {"type": "object"}}}

Messages = list[dict[str, Any]]


def rewrite(messages: Messages, model: str = CLAUDE, **more: object) -> dict[str, Any] | None:
    body = json.dumps({"model": model, "messages": messages, "tools": [TOOL], **more}).encode()
    rewriter = ConversationRewriter(shipped_models(), VolatileExtractor((DATE_RULE,)))
    rewritten = rewriter.analyze("openrouter", body, path="", account="a", at=1.79e9)
    return None if rewritten.body is None else json.loads(rewritten.body)


def conversation(turns: int, system: object = GUIDE) -> Messages:
    messages: Messages = [{"role": "system", "content": system}, {"role": "user", "content": "Question 0?"}]
    for turn in range(1, turns + 1):
        messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"Question {turn}?"}]
    return messages


def breakpoint_positions(sent: dict[str, Any]) -> dict[int, Any]:
    """The breakpoints of each message."""
    return {
        place: part["cache_control"]
        for place, message in enumerate(sent["messages"])
        for part in message["content"] or ()
        if isinstance(part, dict) and "cache_control" in part
    }


def test_breakpoints_are_at_the_end_of_the_system_prompt_and_of_the_conversation() -> None:
    sent = rewrite(conversation(2))
    assert sent is not None
    assert breakpoint_positions(sent) == {0: BREAKPOINT, 5: BREAKPOINT}


def test_the_callers_breakpoints_on_the_system_text_remain_and_count() -> None:
    full = [{"type": "text", "text": GUIDE, "cache_control": BREAKPOINT} for _ in range(4)]
    assert rewrite(conversation(1, full), session_id="mine") is None


def test_a_date_is_moved_after_the_breakpoint_if_the_user_speaks_last() -> None:
    system = f"Today's date is 2026-11-16.\n{GUIDE}"
    sent = rewrite(conversation(1, system))
    assert sent is not None
    assert sent["messages"][-1]["content"] == [
        {"type": "text", "text": "Question 1?", "cache_control": BREAKPOINT},
        {"type": "text", "text": "Today's date is 2026-11-16."},
    ]
    call = {"id": "1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    used: Messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    tool_results: Messages = [{"role": "tool", "tool_call_id": "1", "content": "It says so."}]
    sent = rewrite([*conversation(0, system), *used, *tool_results])
    assert sent is not None
    assert sent["messages"][0]["content"][0]["text"] == system
    assert breakpoint_positions(sent) == {0: BREAKPOINT, 3: BREAKPOINT}


@pytest.mark.parametrize("model", ["openai/gpt-5.4", "openai/gpt-5.4-mini"])
def test_a_model_without_breakpoints_gets_none(model: str) -> None:
    sent = rewrite(conversation(1), model)
    assert sent is not None
    assert breakpoint_positions(sent) == {}
    assert rewrite(conversation(1), model, session_id="mine") is None


def test_a_session_id_of_our_own_is_not_a_session_hint() -> None:
    sent = rewrite(conversation(1))
    assert decode_session_hints(json.dumps(sent).encode(), []).session is None
    assert decode_session_hints(b'{"session_id":"theirs"}', []).session == "theirs"
