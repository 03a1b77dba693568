"""Which transcripts are valid, how an appended message is validated, and where a transcript may be cut."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.transcripts import ROLES, all_rules, contents, result, system, transcripts

from holdfast.types.blocks import (
    Image,
    Message,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UrlSource,
    make_assistant_message,
    make_user_message,
)
from holdfast.types.prompt import HistoryEntry
from holdfast.types.transcript import (
    TranscriptRules,
    TranscriptViolation,
    find_call_ids,
    merge_into_messages,
    split_into_exchanges,
    validate_append,
    validate_transcript,
)


def call(id: str) -> ToolUse:
    return ToolUse(id, "read", '{"path":"secret"}')


def rules_broken(messages: list[Message], *, complete: bool = False, **requirements: object) -> list[tuple[int, str]]:
    rules = TranscriptRules(**requirements)  # type: ignore[arg-type]  # each caller names fields of the rules
    return [(finding.index, finding.rule) for finding in validate_transcript(messages, rules=rules, complete=complete)]


LEGAL = [
    make_user_message("read both"),
    make_assistant_message(Thinking("hm", "sig"), "reading", call("a"), call("b")),
    make_user_message(result("b"), result("a"), "and hurry"),
    make_assistant_message("done"),
]


def test_a_tool_loop_with_parallel_calls_is_valid() -> None:
    assert validate_transcript(LEGAL, complete=True) == ()


def test_an_empty_transcript_is_valid() -> None:
    assert validate_transcript([], rules=TranscriptRules(ends_on_user=True), complete=True) == ()


def test_a_call_in_the_last_message_is_invalid_only_in_a_complete_transcript() -> None:
    messages = [make_user_message("hi"), make_assistant_message(call("a"), call("b"))]
    assert validate_transcript(messages) == ()
    assert validate_transcript(messages, complete=True) == (
        TranscriptViolation(1, "call_open", "call 'a' has no result"),
        TranscriptViolation(1, "call_open", "call 'b' has no result"),
    )


def test_a_call_that_the_next_message_does_not_answer_is_found_there() -> None:
    assert validate_transcript(
        [make_user_message("hi"), make_assistant_message(call("a"), call("b")), make_user_message(result("a"))]
    ) == (TranscriptViolation(2, "call_unanswered", "call 'b' of the message before is not answered"),)


def test_a_result_must_answer_the_message_directly_before_it() -> None:
    messages = [*LEGAL, make_user_message(result("a"))]
    assert validate_transcript(messages) == (
        TranscriptViolation(4, "result_without_call", "result 'a' answers no call of the message before"),
    )


def test_a_result_in_the_first_message_has_no_call() -> None:
    assert rules_broken([make_user_message(result("a"))]) == [(0, "result_without_call")]


def test_a_call_is_answered_once() -> None:
    messages = [make_user_message("hi"), make_assistant_message(call("a")), make_user_message(result("a"), result("a"))]
    assert validate_transcript(messages) == (
        TranscriptViolation(2, "result_repeated", "call 'a' is answered more than once"),
    )


def test_call_ids_are_unique_in_one_message_and_over_the_whole_transcript() -> None:
    twice = [make_user_message("hi"), make_assistant_message(call("a"), call("a")), make_user_message(result("a"))]
    assert validate_transcript(twice) == (TranscriptViolation(1, "call_id_repeated", "call id 'a' was used before"),)
    assert rules_broken([*LEGAL, make_user_message("again"), make_assistant_message(call("b"))]) == [
        (5, "call_id_repeated")
    ]


def test_a_call_with_an_unknown_field_is_still_a_call() -> None:
    raw = b'{"type":"tool_use","id":"a","name":"read","input":{},"caller":{"type":"direct"}}'
    message = make_assistant_message(Opaque("tool_use", raw))
    assert find_call_ids(message) == ("a",)
    assert validate_transcript([make_user_message("hi"), message, make_user_message(result("a"))], complete=True) == ()


def test_a_result_with_an_unknown_field_is_still_a_result() -> None:
    answer = make_user_message(Opaque("tool_result", b'{"tool_use_id":"a","new":1}'))
    assert (
        validate_transcript([make_user_message("hi"), make_assistant_message(call("a")), answer], complete=True) == ()
    )


@pytest.mark.parametrize("raw", [b"?", b"\xff", b'{"id":5}', b"[" * 100_000, b"{}"])
def test_an_opaque_call_without_a_readable_id_is_not_a_call(raw: bytes) -> None:
    assert find_call_ids(make_assistant_message(Opaque("tool_use", raw))) == ()


def test_other_opaque_blocks_are_not_calls() -> None:
    assert find_call_ids(make_assistant_message(Opaque("server_tool_use", b'{"id":"a"}'))) == ()


def test_only_the_assistant_makes_calls() -> None:
    assert find_call_ids(make_user_message(call("a"))) == ()
    assert find_call_ids(make_assistant_message(call("a"), "text", call("b"))) == ("a", "b")


def test_a_message_without_content_is_found() -> None:
    assert validate_transcript([make_user_message("hi"), make_assistant_message()]) == (
        TranscriptViolation(1, "empty_message", "the message has no content"),
    )


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_blank_text_is_found_where_the_provider_refuses_it(text: str) -> None:
    messages = [make_user_message("hi", text)]
    assert validate_transcript(messages) == (
        TranscriptViolation(0, "blank_text", "block 1: text without a visible character"),
    )
    assert rules_broken(messages, accepts_blank_text=True) == []


def test_inside_a_result_white_space_counts_as_text_but_empty_text_does_not() -> None:
    assert (
        rules_broken([make_user_message("hi"), make_assistant_message(call("a")), make_user_message(result("a", "\n"))])
        == []
    )
    assert rules_broken(
        [make_user_message("hi"), make_assistant_message(call("a")), make_user_message(result("a", "x", ""))]
    ) == [(2, "blank_text")]
    assert (
        rules_broken(
            [make_user_message("hi"), make_assistant_message(call("a")), make_user_message(ToolResult("a", ()))]
        )
        == []
    )


def test_roles_alternate_if_the_provider_requires_it() -> None:
    messages = [make_user_message("hi"), make_user_message("ho")]
    assert validate_transcript(messages) == (
        TranscriptViolation(1, "same_role_twice", "a user message follows a user message"),
    )
    assert rules_broken(messages, roles_alternate=False) == []


def test_the_user_speaks_first_if_the_provider_requires_it() -> None:
    messages = [make_assistant_message("hi"), make_user_message("ho")]
    assert validate_transcript(messages) == (
        TranscriptViolation(0, "first_role", "the first message is the assistant's"),
    )
    assert rules_broken(messages, first_role_user=False) == []


def test_a_request_ends_with_the_user_if_the_provider_requires_it() -> None:
    messages = [make_user_message("hi"), make_assistant_message("ho")]
    assert validate_transcript(messages, rules=TranscriptRules(ends_on_user=True)) == (
        TranscriptViolation(1, "last_role", "the last message is the assistant's"),
    )
    assert rules_broken(messages[:1], ends_on_user=True) == []


def test_results_come_first_in_their_message_if_the_provider_requires_it() -> None:
    messages = [
        make_user_message("hi"),
        make_assistant_message(call("a"), call("b")),
        make_user_message(result("a"), "text", result("b")),
    ]
    text = "block 2: a tool result comes after other content"
    assert validate_transcript(messages) == (TranscriptViolation(2, "result_not_first", text),)
    assert rules_broken(messages, results_first=False) == []


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (make_user_message(call("a")), "tool_use"),
        (make_user_message(Thinking("hm")), "thinking"),
        (make_user_message(RedactedThinking("x")), "redacted_thinking"),
        (make_user_message(Opaque("thinking", b"{}")), "thinking"),
        (system("x"), "text"),
        (Message("system", (Image(UrlSource("u")),)), "image"),
    ],
)
def test_blocks_in_the_wrong_role_are_found(message: Message, kind: str) -> None:
    rules = TranscriptRules(system_messages="anywhere")
    findings = validate_transcript([message], rules=rules)
    expected = TranscriptViolation(0, "block_of_another_role", f"block 0: {kind} in a {message.role} message")
    assert findings == (() if kind == "text" else (expected,))


def test_the_assistant_gives_no_results() -> None:
    assert validate_transcript([make_user_message("hi"), make_assistant_message(result("a"))]) == (
        TranscriptViolation(1, "block_of_another_role", "block 0: tool_result in a assistant message"),
    )


def test_system_messages_are_refused_unless_the_provider_supports_them() -> None:
    messages = [make_user_message("hi"), system("be brief"), make_assistant_message("ho")]
    text = "system messages are not accepted among the messages"
    assert validate_transcript(messages) == (TranscriptViolation(1, "system_message", text),)
    assert rules_broken(messages, system_messages="after_user") == []
    assert rules_broken(messages, system_messages="anywhere") == []


@pytest.mark.parametrize(
    ("messages", "index", "text"),
    [
        ([system("x"), make_assistant_message("y")], 0, "a system message does not follow a user message"),
        (
            [make_user_message("a"), make_assistant_message("b"), system("x")],
            2,
            "a system message does not follow a user message",
        ),
        ([make_user_message("a"), system("x"), make_user_message("b")], 2, "a user message follows a system message"),
    ],
)
def test_a_system_message_between_user_and_assistant_can_be_required(
    messages: list[Message], index: int, text: str
) -> None:
    rules = TranscriptRules(system_messages="after_user", first_role_user=False)
    assert validate_transcript(messages, rules=rules) == (TranscriptViolation(index, "system_message", text),)
    assert rules_broken(messages, system_messages="anywhere", first_role_user=False) == []


def test_a_system_message_may_end_a_request() -> None:
    messages = [make_user_message("a"), system("x")]
    assert rules_broken(messages, system_messages="after_user", ends_on_user=True, complete=True) == []


def test_findings_quote_no_content_and_no_long_ids() -> None:
    secret = "s3cret " * 20
    messages = [
        make_assistant_message(secret, call("i" * 200)),
        make_user_message(Thinking(secret), secret),
        make_user_message(secret, ""),
    ]
    findings = validate_transcript(messages, complete=True)
    assert len(findings) >= 5
    assert not any("s3cret" in finding.text or "i" * 65 in finding.text for finding in findings)
    assert any("i" * 64 in finding.text for finding in findings)


def test_all_findings_are_returned_in_order() -> None:
    messages = [make_assistant_message(result("x")), make_user_message(" "), make_user_message(result("y"))]
    assert rules_broken(messages) == [
        (0, "first_role"),
        (0, "block_of_another_role"),
        (1, "blank_text"),
        (2, "same_role_twice"),
        (2, "result_without_call"),
    ]


@settings(max_examples=60, deadline=None)
@given(transcripts, all_rules)
def test_a_transcript_is_valid_exactly_when_every_appended_message_was(
    messages: list[Message], rules: TranscriptRules
) -> None:
    seen_ids: set[str] = set()
    steps: list[TranscriptViolation] = []
    for index, message in enumerate(messages):
        last = messages[index - 1] if index else None
        steps += validate_append(last, message, index=index, seen_ids=seen_ids, rules=rules)
        seen_ids |= set(find_call_ids(message))
    all_findings = [finding for finding in validate_transcript(messages, rules=rules) if finding.rule != "last_role"]
    assert all_findings == steps


@settings(max_examples=60, deadline=None)
@given(transcripts, all_rules)
def test_a_valid_transcript_is_valid_up_to_any_message(messages: list[Message], rules: TranscriptRules) -> None:
    findings = validate_transcript(messages, rules=rules)
    for stop in range(len(messages)):
        part = validate_transcript(messages[:stop], rules=rules)
        assert set(part) - {f for f in part if f.rule == "last_role"} <= set(findings)


@settings(max_examples=60, deadline=None)
@given(transcripts)
def test_exchange_groups_are_the_whole_transcript_in_order(messages: list[Message]) -> None:
    groups = split_into_exchanges(messages)
    assert [message for start, stop in groups for message in messages[start:stop]] == messages
    assert all(start < stop for start, stop in groups)
    assert all(before[1] == after[0] for before, after in pairwise(groups))


@settings(max_examples=60, deadline=None)
@given(transcripts)
def test_no_cut_between_groups_separates_a_call_from_its_result(messages: list[Message]) -> None:
    for _, end in split_into_exchanges(messages)[:-1]:
        call_ids = {call for message in messages[:end] for call in find_call_ids(message)}
        again = {call for message in messages[end:] for call in find_call_ids(message)}
        for message in messages[end:]:
            results = {b.tool_use_id for b in message.content if isinstance(b, ToolResult)}
            if message.role == "user":
                assert not results & (call_ids - again)


def test_a_group_is_a_message_with_calls_and_its_results_or_one_other_message() -> None:
    messages = [*LEGAL, make_user_message("next"), make_assistant_message(call("c")), make_user_message(result("c"))]
    assert split_into_exchanges(messages) == ((0, 1), (1, 3), (3, 4), (4, 5), (5, 7))


def test_a_system_message_belongs_to_the_preceding_group() -> None:
    messages = [
        make_user_message("a"),
        system("x"),
        make_assistant_message(call("c")),
        make_user_message(result("c")),
        system("y"),
        make_assistant_message("b"),
    ]
    assert split_into_exchanges(messages) == ((0, 2), (2, 5), (5, 6))


def test_a_call_with_a_late_result_keeps_everything_between_in_its_group() -> None:
    messages = [
        make_user_message("a"),
        make_assistant_message(call("c")),
        make_user_message("wait"),
        make_assistant_message("ok"),
        make_user_message(result("c")),
        make_assistant_message("b"),
    ]
    assert split_into_exchanges(messages) == ((0, 1), (1, 5), (5, 6))


def test_a_result_belongs_to_the_latest_call_of_its_id() -> None:
    messages = [
        make_assistant_message(call("c")),
        make_user_message(result("c")),
        make_assistant_message(call("c")),
        make_user_message(result("c")),
    ]
    assert split_into_exchanges(messages) == ((0, 2), (2, 4))


def test_an_empty_transcript_has_no_groups() -> None:
    assert split_into_exchanges([]) == ()


entry_lists = st.lists(st.builds(HistoryEntry, st.sampled_from(ROLES), contents), max_size=8)


@settings(max_examples=60, deadline=None)
@given(entry_lists)
def test_messages_contain_the_blocks_of_their_entries_and_never_repeat_a_role(entries: list[HistoryEntry]) -> None:
    messages = merge_into_messages(entries)
    entry_blocks = [(entry.role, block) for entry in entries for block in entry.content]
    assert [(message.role, block) for message in messages for block in message.content] == entry_blocks
    assert all(before.role != after.role for before, after in pairwise(messages))
    assert all(message.content for message in messages)


def test_adjacent_entries_of_one_role_are_one_message() -> None:
    entries = [HistoryEntry("user", (Text("env"),), layer="environment"), HistoryEntry("user", (Text("ask"),))]
    assert merge_into_messages([*entries, HistoryEntry("assistant", (Text("ok"),))]) == (
        make_user_message("env", "ask"),
        make_assistant_message("ok"),
    )
