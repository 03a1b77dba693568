"""A broken transcript is read so that it is legal, and what was done is said."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.canonical.blocks import (
    Image,
    Message,
    Opaque,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UrlSource,
    assistant,
    user,
)
from holdfast.canonical.repair import BEGINNING, CONTINUE, INTERRUPTED, Action, repair
from holdfast.canonical.transcript import TranscriptRules, validate
from transcripts import all_rules, result, system, transcripts


def call(id: str) -> ToolUse:
    return ToolUse(id, "read", "{}")


def interrupted(id: str, name: str = "read") -> ToolResult:
    return ToolResult(id, (Text(INTERRUPTED),), is_error=True, name=name)


AFTER_USER = TranscriptRules(system_messages="after_user")
ANYWHERE = TranscriptRules(system_messages="anywhere")
LOOSE = TranscriptRules(roles_alternate=False, first_role_user=False, results_first=False)


@settings(max_examples=200, deadline=None)
@given(transcripts, all_rules, st.booleans())
def test_what_is_repaired_is_legal(messages: list[Message], rules: TranscriptRules, complete: bool) -> None:
    repaired = repair(messages, rules, complete=complete)
    assert validate(repaired.messages, rules=rules, complete=complete) == ()


@settings(max_examples=60, deadline=None)
@given(transcripts, all_rules, st.booleans())
def test_repairing_again_changes_nothing(messages: list[Message], rules: TranscriptRules, complete: bool) -> None:
    once = repair(messages, rules, complete=complete)
    twice = repair(once.messages, rules, complete=complete)
    assert twice.actions == ()
    assert all(one is other for one, other in zip(once.messages, twice.messages, strict=True))


@settings(max_examples=60, deadline=None)
@given(transcripts, all_rules)
def test_something_is_done_exactly_when_something_is_illegal(messages: list[Message], rules: TranscriptRules) -> None:
    found = validate(messages, rules=rules, complete=True)
    repaired = repair(messages, rules)
    assert bool(found) == bool(repaired.actions)
    if not found:
        assert all(one is other for one, other in zip(messages, repaired.messages, strict=True))


@settings(max_examples=60, deadline=None)
@given(transcripts, all_rules)
def test_a_repair_invents_nothing_but_interruptions_and_user_text(
    messages: list[Message], rules: TranscriptRules
) -> None:
    given = {id(block) for message in messages for block in message.content}
    emptied = [b for m in messages for b in m.content if isinstance(b, ToolResult) and Text("") in b.content]
    for message in repair(messages, rules).messages:
        for block in message.content:
            if id(block) not in given and block not in (Text(BEGINNING), Text(CONTINUE)):
                assert isinstance(block, ToolResult)
                assert block == interrupted(block.tool_use_id, block.name) or any(
                    block.tool_use_id == was.tool_use_id and set(block.content) <= set(was.content) for was in emptied
                )


@settings(max_examples=60, deadline=None)
@given(transcripts, all_rules)
def test_text_and_calls_of_the_assistant_keep_their_order(messages: list[Message], rules: TranscriptRules) -> None:
    spoken = [b for m in messages if m.role == "assistant" for b in m.content if isinstance(b, Text | ToolUse)]
    left = iter(spoken)
    for message in repair(messages, rules).messages:
        for block in message.content:
            if message.role == "assistant" and isinstance(block, Text | ToolUse):
                assert any(block is candidate for candidate in left)


def test_an_open_call_is_answered_as_interrupted() -> None:
    messages = [user("hi"), assistant(call("a"), call("b"))]
    repaired = repair(messages)
    assert repaired.messages == (*messages, user(interrupted("a"), interrupted("b")))
    assert repaired.actions == (
        Action(1, "call_unanswered", "answered call 'a' as interrupted"),
        Action(1, "call_unanswered", "answered call 'b' as interrupted"),
    )


def test_an_open_call_at_the_end_may_stay_open() -> None:
    messages = [user("hi"), assistant(call("a"))]
    assert repair(messages, complete=False).messages == tuple(messages)
    broken = [user("hi", ""), assistant(call("a"))]
    assert repair(broken, complete=False).messages == tuple(messages)


def test_an_open_call_cannot_stay_open_where_the_user_must_be_last() -> None:
    messages = [user("hi"), assistant(call("a"))]
    repaired = repair(messages, TranscriptRules(ends_on_user=True), complete=False)
    assert repaired.messages == (*messages, user(interrupted("a")))


def test_missing_results_stand_behind_those_that_are_there_and_before_text() -> None:
    repaired = repair([user("hi"), assistant(call("a"), call("b")), user(result("b"), "stop")])
    assert repaired.messages[2] == user(result("b"), interrupted("a"), "stop")
    assert [action.index for action in repaired.actions] == [1]


def test_messages_that_are_fine_stay_the_same_objects() -> None:
    messages = [user("hi"), assistant("ho"), user("a"), user("b"), assistant("c")]
    repaired = repair(messages)
    assert repaired.messages == (user("hi"), assistant("ho"), user("a", "b"), assistant("c"))
    assert repaired.messages[0] is messages[0]
    assert repaired.messages[1] is messages[1]
    assert repaired.messages[3] is messages[4]
    assert repaired.actions == (Action(3, "same_role_twice", "joined it to the message before"),)


def test_calls_stored_one_per_message_are_joined_before_their_results_are_sought() -> None:
    messages = [user("hi"), assistant(call("a")), assistant(call("b")), user(result("a")), user(result("b"))]
    repaired = repair(messages)
    assert repaired.messages == (user("hi"), assistant(call("a"), call("b")), user(result("a"), result("b")))
    assert {action.rule for action in repaired.actions} == {"same_role_twice"}


def test_neighbours_of_one_role_stay_apart_where_the_provider_does_not_mind() -> None:
    messages = [user("a"), user("b", "")]
    assert repair(messages, LOOSE).messages == (user("a"), user("b"))


def test_an_orphan_result_is_dropped_and_its_message_with_it() -> None:
    messages = [user("hi"), assistant("ho"), user(result("x")), assistant("more")]
    repaired = repair(messages)
    assert repaired.messages == (user("hi"), assistant("ho", "more"))
    assert repaired.actions[0] == Action(2, "result_without_call", "dropped a result for call 'x'")


def test_of_two_results_for_a_call_the_first_is_kept() -> None:
    repaired = repair([user("hi"), assistant(call("a")), user(result("a", "one"), result("a", "two"))])
    assert repaired.messages[2] == user(result("a", "one"))
    assert repaired.actions == (Action(2, "result_repeated", "dropped a result for call 'a'"),)


def test_a_call_under_a_used_id_is_dropped_and_its_result_with_it() -> None:
    legal = [user("hi"), assistant(call("a")), user(result("a")), assistant("ok"), user("again")]
    repaired = repair([*legal, assistant("now", call("a")), user(result("a", "new"), "so?")])
    assert repaired.messages == (*legal, assistant("now"), user("so?"))
    assert [(action.index, action.rule) for action in repaired.actions] == [
        (5, "call_id_repeated"),
        (6, "result_without_call"),
    ]
    assert repaired.actions[0].text == "dropped a call under the used id 'a'"


def test_blank_text_and_emptied_messages_are_dropped() -> None:
    repaired = repair([user("hi"), assistant(" "), user("ho", "")])
    assert repaired.messages == (user("hi", "ho"),)
    assert repaired.actions == (
        Action(1, "blank_text", "dropped a text block"),
        Action(1, "empty_message", "dropped the message, which had nothing left in it"),
        Action(2, "blank_text", "dropped a text block"),
        Action(2, "same_role_twice", "joined it to the message before"),
    )


def test_an_empty_text_inside_a_result_is_dropped_and_the_rest_of_it_kept() -> None:
    given = ToolResult("a", (Text(""), Image(UrlSource("u")), Text(" ")), is_error=True)
    repaired = repair([user("hi"), assistant(call("a")), user(given)])
    assert repaired.messages[2] == user(ToolResult("a", (Image(UrlSource("u")), Text(" ")), is_error=True))
    assert repaired.actions == (Action(2, "blank_text", "dropped an empty text from a tool result"),)


def test_blocks_of_another_role_are_dropped() -> None:
    repaired = repair([user("hi", Thinking("hm"), call("a")), assistant("ho", result("b"))])
    assert repaired.messages == (user("hi"), assistant("ho"))
    assert repaired.actions == (
        Action(0, "block_of_another_role", "dropped a thinking block"),
        Action(0, "block_of_another_role", "dropped a tool_use block"),
        Action(1, "block_of_another_role", "dropped a tool_result block"),
    )


def test_results_behind_text_are_put_first() -> None:
    repaired = repair([user("hi"), assistant(call("a"), call("b")), user("x", result("a"), "y", result("b"))])
    assert repaired.messages[2] == user(result("a"), result("b"), "x", "y")
    assert repaired.actions == (Action(2, "result_not_first", "put its results first"),)


def test_results_stay_where_they_are_where_the_provider_does_not_mind() -> None:
    messages = [user("hi"), assistant(call("a")), user("x", result("a")), assistant("")]
    assert repair(messages, LOOSE).messages == tuple(messages[:3])


def test_a_transcript_that_starts_with_the_assistant_gets_a_beginning() -> None:
    repaired = repair([assistant("hi")])
    assert repaired.messages == (user(BEGINNING), assistant("hi"))
    assert repaired.actions == (Action(0, "first_role", "put a user message in front"),)


def test_a_transcript_that_must_end_on_the_user_is_continued() -> None:
    repaired = repair([user("hi"), assistant("ho")], TranscriptRules(ends_on_user=True))
    assert repaired.messages == (user("hi"), assistant("ho"), user(CONTINUE))
    assert repaired.actions == (Action(1, "last_role", "put a user message behind"),)


def test_a_refused_system_message_becomes_user_text() -> None:
    repaired = repair([user("hi"), system("be brief"), assistant("ho")])
    assert repaired.messages == (user("hi", "be brief"), assistant("ho"))
    assert repaired.actions[0] == Action(1, "system_message", "made it a user message")


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([system("x"), assistant("y")], [user("x"), assistant("y")]),
        ([user("a"), system("x"), user("b"), system("y")], [user("a", "x", "b"), system("y")]),
        ([user("a"), assistant("b"), system("x")], [user("a"), assistant("b"), user("x")]),
        (
            [user("a"), assistant(call("c")), system("x")],
            [user("a"), assistant(call("c")), user(interrupted("c")), system("x")],
        ),
        (
            [user("a"), assistant(call("c")), system("x"), user(result("c"))],
            [user("a"), assistant(call("c")), user(result("c")), system("x")],
        ),
    ],
)
def test_a_system_message_in_a_wrong_place_becomes_user_text_or_finds_its_place(
    messages: list[Message], expected: list[Message]
) -> None:
    assert list(repair(messages, AFTER_USER).messages) == expected


def test_a_stray_system_message_that_became_user_text_is_reported() -> None:
    repaired = repair([user("a"), assistant("b"), system("x")], AFTER_USER)
    assert repaired.actions == (Action(2, "system_message", "made it a user message"),)


def test_a_result_behind_a_system_message_moves_to_its_call() -> None:
    messages = [user("a"), assistant(call("c")), system("x"), user(result("c"), "b")]
    repaired = repair(messages, ANYWHERE)
    assert repaired.messages == (*messages[:2], user(result("c")), system("x"), user("b"))
    assert repaired.actions == (Action(2, "call_unanswered", "moved results here from messages behind it"),)


def test_a_result_one_message_late_moves_to_its_call_where_roles_need_not_alternate() -> None:
    messages = [user("a"), assistant(call("c")), user("wait"), user(result("c"))]
    assert repair(messages, LOOSE).messages == (*messages[:2], user(result("c"), "wait"))


def test_a_call_between_two_assistant_messages_is_answered_where_roles_need_not_alternate() -> None:
    messages = [assistant(call("c")), assistant("b")]
    assert repair(messages, LOOSE).messages == (messages[0], user(interrupted("c")), messages[1])


def test_nothing_can_be_left_of_garbage() -> None:
    assert repair([user(""), assistant(result("a")), system(" ")]).messages == ()


def test_an_interrupted_call_that_we_cannot_read_in_full_is_answered_without_a_name() -> None:
    unread = Opaque("tool_use", b'{"type":"tool_use","id":"a","caller":1}')
    repaired = repair([user("hi"), assistant(unread)])
    assert repaired.messages[2] == user(interrupted("a", ""))
