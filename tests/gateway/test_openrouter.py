"""What improving makes of OpenRouter's requests: marks where the model that is asked takes them, and one session."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from holdfast.catalog.lookup import shipped_models
from holdfast.gateway.recording.conversation_match import decode_session_hints
from holdfast.gateway.rewrite.rewriter import RequestRewriter
from holdfast.gateway.rewrite.volatile_text import DATE_RULE, VolatileExtractor

GUIDE = "You read before you write. " * 300
CLAUDE = "anthropic/claude-sonnet-5.5"
MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}

Messages = list[dict[str, Any]]


def improved(messages: Messages, model: str = CLAUDE, **more: object) -> dict[str, Any] | None:
    body = json.dumps({"model": model, "messages": messages, **more}).encode()
    made = RequestRewriter(shipped_models(), VolatileExtractor((DATE_RULE,))).rewrite_request("openrouter", body)
    return None if made.body is None else json.loads(made.body)


def talk(turns: int, system: object = GUIDE) -> Messages:
    said: Messages = [{"role": "system", "content": system}, {"role": "user", "content": "Question 0?"}]
    for turn in range(1, turns + 1):
        said += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": f"Question {turn}?"}]
    return said


def marks_in(sent: dict[str, Any]) -> dict[int, Any]:
    """By message."""
    return {
        place: part["cache_control"]
        for place, message in enumerate(sent["messages"])
        for part in message["content"] or ()
        if isinstance(part, dict) and "cache_control" in part
    }


def without_marks(messages: Messages) -> Messages:
    unmarked: Messages = msgspec.json.decode(
        json.dumps(messages).replace(', "cache_control": {"type": "ephemeral"}', "")
    )
    return unmarked


def test_marks_stand_at_the_end_of_the_system_prompt_and_of_the_conversation() -> None:
    sent = improved(talk(2))
    assert sent is not None
    assert marks_in(sent) == {0: MARK, 5: MARK}


def test_what_is_made_of_a_longer_conversation_begins_with_what_was_made_of_a_shorter_one() -> None:
    made = [improved(talk(turns)) for turns in range(4)]
    sent = [one for one in made if one is not None]
    assert len(sent) == 4
    assert len({one["session_id"] for one in sent}) == 1
    for before, after in pairwise(sent):
        shorter, longer = without_marks(before["messages"]), without_marks(after["messages"])
        assert longer[: len(shorter)] == shorter


def test_a_conversation_whose_end_is_far_from_the_one_before_is_marked_there_too() -> None:
    parts = [{"type": "text", "text": f"Line {number}."} for number in range(30)]
    sent = improved([*talk(1)[:-1], {"role": "user", "content": parts}])
    assert sent is not None
    assert marks_in(sent) == {0: MARK, 1: MARK, 3: MARK}


def test_the_callers_marks_stay_and_count_and_are_put_in_order() -> None:
    text = {"type": "text", "text": GUIDE}
    full = [{**text, "cache_control": MARK} for _ in range(4)]
    sent = improved(talk(1, full), session_id="mine")
    assert sent is None
    last = {"role": "user", "content": [{"type": "text", "text": "Last?", "cache_control": HOUR}]}
    sent = improved([*talk(0), {"role": "assistant", "content": "Yes."}, last])
    assert sent is not None
    assert marks_in(sent) == {0: HOUR, 3: HOUR}


def test_a_date_goes_behind_the_mark_where_a_user_speaks_last_and_stays_where_not() -> None:
    system = f"Today's date is 2026-11-16.\n{GUIDE}"
    sent = improved(talk(1, system))
    assert sent is not None
    assert sent["messages"][-1]["content"] == [
        {"type": "text", "text": "Question 1?", "cache_control": MARK},
        {"type": "text", "text": "Today's date is 2026-11-16."},
    ]
    call = {"id": "1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    used: Messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    told: Messages = [{"role": "tool", "tool_call_id": "1", "content": "It says so."}]
    sent = improved([*talk(0, system), *used, *told])
    assert sent is not None
    assert sent["messages"][0]["content"][0]["text"] == system
    assert marks_in(sent) == {0: MARK, 3: MARK}


@pytest.mark.parametrize("model", ["openai/gpt-5.4", "openai/gpt-5.4-mini"])
def test_a_model_that_takes_no_marks_gets_none(model: str) -> None:
    sent = improved(talk(1), model)
    assert sent is not None
    assert marks_in(sent) == {}
    assert improved(talk(1), model, session_id="mine") is None


def test_a_session_that_we_named_ourselves_is_no_clue() -> None:
    sent = improved(talk(1))
    assert decode_session_hints(json.dumps(sent).encode(), []).session is None
    assert decode_session_hints(b'{"session_id":"theirs"}', []).session == "theirs"
