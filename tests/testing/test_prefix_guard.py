"""Which requests belong together, and which of them moved the prefix."""

from typing import Any

import pytest
from tests.support.simulated import LONG, MARK, SONNET, Wire, assistant, post, request, text, tool, user

from holdfast.testing.prefix_guard import PrefixBreak, describe_breaks, find_prefix_breaks
from holdfast.testing.simulated_provider import ServedProvider

OPUS = "claude-opus-5-5"


class Asked:
    """A provider without a port, and what was asked of it."""

    def __init__(self) -> None:
        self.provider = ServedProvider()

    def ask(self, *messages: Wire, system: str = LONG, **fields: Any) -> str:
        """The text of the reply."""
        given = {"system": [text(system, MARK)], **fields}
        status, reply = post(self.provider, request(*messages, **given))
        assert status == 200, reply
        said: str = reply["content"][0]["text"]
        return said

    @property
    def breaks(self) -> tuple[PrefixBreak, ...]:
        return find_prefix_breaks(self.provider.calls, self.provider.models)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [(found.call, found.call_before) for found in self.breaks]


@pytest.fixture
def asked() -> Asked:
    return Asked()


def test_a_conversation_that_only_grows_moves_nothing(asked: Asked) -> None:
    messages = [user("one")]
    for word in ("two", "three", "four"):
        messages = [*messages, assistant(asked.ask(*messages)), user(word)]
    assert len(asked.provider.calls) == 3
    assert asked.breaks == ()


def test_a_changed_system_prompt_is_named_by_layer_block_and_byte(asked: Asked) -> None:
    reply = asked.ask(user("one"), system=LONG + "A")
    asked.ask(user("one"), assistant(reply), user("two"), system=LONG + "B")
    (found,) = asked.breaks
    assert (found.call, found.call_before, found.is_first_call) == (2, 1, False)
    moved = found.comparison.difference
    assert moved is not None
    assert (moved.path, moved.section, moved.block) == ("system.0", "system", 0)
    assert found.comparison.tokens_lost > 500
    assert found.comparison.lost_usd
    assert f"layer system, block 0, byte {moved.byte}" in describe_breaks(asked.breaks)


def test_conversations_that_take_turns_are_kept_apart(asked: Asked) -> None:
    first, second = [user("one")], [user("eins")]
    for word, other in (("two", "zwei"), ("three", "drei")):
        first = [*first, assistant(asked.ask(*first)), user(word)]
        second = [*second, assistant(asked.ask(*second, system="Another agent. " + LONG)), user(other)]
    asked.ask(*first)
    asked.ask(*second, system="Another agent. " + LONG)
    assert asked.breaks == ()


def test_the_conversation_that_moved_is_known_among_others(asked: Asked) -> None:
    first = asked.ask(user("one"), system="First. " + LONG)
    second = asked.ask(user("eins"), system="Second. " + LONG)
    asked.ask(user("one"), assistant(first), user("two"), system="First! " + LONG)
    asked.ask(user("eins"), assistant(second), user("zwei"), system="Second. " + LONG)
    assert asked.pairs == [(3, 1)]


def test_the_same_request_once_more_moves_nothing(asked: Asked) -> None:
    reply = asked.ask(user("one"))
    for _ in range(2):
        asked.ask(user("one"), assistant(reply), user("two"))
    assert asked.breaks == ()


def test_what_the_provider_refused_is_not_what_was_sent(asked: Asked) -> None:
    reply = asked.ask(user("one"))
    refused = request(user("one"), assistant(reply), user("two"), system=[text("Other. " + LONG)])
    assert post(asked.provider, refused, headers={"x-holdfast-fault": "529"})[0] == 529
    asked.ask(user("one"), assistant(reply), user("two"))
    assert asked.breaks == ()
    assert [call.number for call in asked.provider.calls] == [1, 2]


def test_a_count_of_tokens_is_no_call(asked: Asked) -> None:
    body = {"model": SONNET, "messages": [user("one")]}
    assert post(asked.provider, body, path="/v1/messages/count_tokens")[0] == 200
    assert asked.provider.calls == ()


def test_two_questions_from_one_state_are_branches(asked: Asked) -> None:
    reply = asked.ask(user("one"))
    asked.ask(user("one"), assistant(reply), user("two"))
    asked.ask(user("one"), assistant(reply), user("or that"))
    asked.ask(user("one"), assistant(reply), user("or even that"))
    assert asked.breaks == ()


def test_going_back_to_say_something_else_is_a_branch(asked: Asked) -> None:
    messages = [user("one")]
    for word in ("two", "three", "four"):
        messages = [*messages, assistant(asked.ask(*messages)), user(word)]
    asked.ask(*messages[:2], user("something else"))
    assert asked.breaks == ()


def test_a_branch_with_another_system_prompt_has_moved(asked: Asked) -> None:
    reply = asked.ask(user("one"))
    asked.ask(user("one"), assistant(reply), user("two"))
    asked.ask(user("one"), assistant(reply), user("or that"), system="Hm. " + LONG)
    assert asked.pairs == [(3, 1)]


def test_a_history_that_loses_its_oldest_turn_has_moved(asked: Asked) -> None:
    messages = [user("one")]
    for word in ("two", "three", "four"):
        messages = [*messages, assistant(asked.ask(*messages)), user(word)]
    asked.ask(*messages[2:])
    (found,) = asked.breaks
    assert (found.call, found.call_before) == (4, 3)
    assert found.comparison.difference is not None
    assert found.comparison.difference.path == "messages.0.content.0"


def test_a_first_message_that_is_written_anew_is_known_by_the_reply(asked: Asked) -> None:
    reply = asked.ask(user("It is 10:15:01. one"))
    asked.ask(user("It is 10:15:02. one"), assistant(reply), user("two"))
    (found,) = asked.breaks
    assert found.comparison.difference is not None
    assert found.comparison.difference.section == "messages"
    assert found.cause is not None
    assert found.cause.startswith("clock (a time of day)")


def test_text_that_leaves_with_its_turn_has_moved_the_prefix(asked: Asked) -> None:
    reply = asked.ask(user("one", "for this turn only"))
    asked.ask(user("one"), assistant(reply), user("two", "for this turn only"))
    (found,) = asked.breaks
    assert found.comparison.difference is not None
    assert found.comparison.difference.path == "messages.0.content.1"


def test_another_model_has_another_cache(asked: Asked) -> None:
    reply = asked.ask(user("one"), system="A. " + LONG)
    asked.ask(user("one"), assistant(reply), user("two"), system="B. " + LONG, model=OPUS)
    assert asked.breaks == ()


def test_a_conversation_that_was_begun_elsewhere_is_a_new_one(asked: Asked) -> None:
    asked.ask(user("one"))
    asked.ask(user("long ago"), assistant("yes"), user("go on"), system="Other. " + LONG)
    assert asked.breaks == ()


def test_examples_in_front_of_each_question_are_no_history(asked: Asked) -> None:
    examples = [user("2 + 2"), assistant("4"), user("3 + 3"), assistant("6")]
    for question in ("5 + 5", "6 + 6", "7 + 7"):
        asked.ask(*examples, user(question))
    assert asked.breaks == ()


def test_a_parameter_that_costs_the_messages_is_named(asked: Asked) -> None:
    tools = [tool("read")]
    reply = asked.ask(user("one"), tools=tools)
    asked.ask(user("one"), assistant(reply), user("two"), tools=tools, tool_choice={"type": "none"})
    (found,) = asked.breaks
    assert found.comparison.difference is None
    assert "tool_choice changed: messages and everything after it is lost" in describe_breaks(asked.breaks)


def test_new_conversations_may_have_any_prompt(asked: Asked) -> None:
    for name in ("Anna", "Bert", "Cleo"):
        asked.ask(user("one"), system=f"You help {name}, whose id is 1{name}. " + LONG)
    assert asked.breaks == ()


def test_a_time_in_the_head_keeps_new_conversations_from_reading(asked: Asked) -> None:
    for second in (1, 1, 2):
        asked.ask(user(f"question {second}"), system=LONG + f"It is 2026-11-16 10:00:0{second}.")
    asked.ask(user("a"), system="Something else. " + LONG)
    (found,) = asked.breaks
    assert (found.call, found.call_before, found.is_first_call) == (3, 2, True)
    assert "call 3 starts a conversation and could have read the prefix of call 2" in describe_breaks(asked.breaks)


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        ("It is 2026-11-16T10:00:01Z.", "It is 2026-11-16T10:00:02Z.", "clock (a date and time): "),
        ("On 2026-11-16.", "On 2026-11-17.", "clock (a date): "),
        (
            "Id 0b1e2d3c-0000-4000-8000-000000000001.",
            "Id 0b1e2d3c-0000-4000-8000-000000000002.",
            "random (a UUID): ",
        ),
        ("<Tool at 0x7f0000000001>", "<Tool at 0x7f0000000002>", "object address (an object's address): "),
        ("At commit 1234567.", "At commit 1234568.", "it contains a git hash"),
        ("red, green, blue", "blue, red, green", "set order: "),
        ("Be brief.", "Be long.", None),
    ],
)
def test_the_cause_is_guessed_by_what_differs(asked: Asked, first: str, second: str, cause: str | None) -> None:
    reply = asked.ask(user("one"), system=LONG + first)
    asked.ask(user("one"), assistant(reply), user("two"), system=LONG + second)
    (found,) = asked.breaks
    assert (found.cause or "none").startswith(cause or "none")


def test_tools_in_another_order_are_blamed_on_order(asked: Asked) -> None:
    reply = asked.ask(user("one"), tools=[tool("read"), tool("write", description="Another text.")])
    again = [tool("write", description="Another text."), tool("read")]
    asked.ask(user("one"), assistant(reply), user("two"), tools=again)
    (found,) = asked.breaks
    assert found.comparison.difference is not None
    assert found.comparison.difference.section == "tools"
    assert (found.cause or "").startswith("set order")


def test_members_of_a_schema_in_another_order_are_blamed_on_keys(asked: Asked) -> None:
    def written(schema: Wire) -> list[Wire]:
        return [{"name": "read", "description": LONG, "input_schema": schema}]

    reply = asked.ask(user("one"), tools=written({"type": "object", "properties": {}}))
    asked.ask(user("one"), assistant(reply), user("two"), tools=written({"properties": {}, "type": "object"}))
    (found,) = asked.breaks
    assert (found.cause or "").startswith("unsorted JSON keys")


def test_a_block_that_is_gone_is_told_as_such(asked: Asked) -> None:
    reply = asked.ask(user("one", "two", "three"))
    asked.ask(user("one", "two"), assistant(reply), user("four"))
    assert "does not extend call 1" in describe_breaks(asked.breaks)


def test_the_first_break_is_told_in_full_and_the_others_by_number(asked: Asked) -> None:
    messages = [user("one")]
    for number in range(25):
        messages = [*messages, assistant(asked.ask(*messages, system=f"{number:02} {LONG}")), user("more")]
    lines = describe_breaks(asked.breaks).splitlines()
    assert lines[0] == f"the cached prefix changed: call 2 does not extend call 1 (anthropic:{SONNET})"
    assert lines[-1] == f"  also broken: call {', '.join(str(number) for number in range(3, 23))} and 3 more"


def test_what_looks_like_a_key_is_not_shown(asked: Asked) -> None:
    reply = asked.ask(user("one"), system=LONG + "\nKey sk-ant-very-secret-1.")
    asked.ask(user("one"), assistant(reply), user("two"), system=LONG + "\nKey sk-ant-very-secret-2.")
    message = describe_breaks(asked.breaks)
    assert "(the difference is hidden: it looks like a key)" in message
    assert "secret" not in message


def test_a_prompt_below_the_floor_has_nothing_to_lose_and_that_is_said(asked: Asked) -> None:
    reply = asked.ask(user("one"), system="A")
    asked.ask(user("one"), assistant(reply), user("two"), system="B")
    assert asked.breaks[0].comparison.tokens_lost == 0
    assert "note: " in describe_breaks(asked.breaks)
    assert "below the floor" in describe_breaks(asked.breaks)


def test_a_tool_that_is_added_is_named_and_no_order_is_blamed(asked: Asked) -> None:
    tools = [tool("read"), tool("write", description="Another text.")]
    reply = asked.ask(user("one"), tools=tools)
    asked.ask(user("one"), assistant(reply), user("two"), tools=[*tools, tool("grep", description="A third.")])
    (found,) = asked.breaks
    assert found.cause == "tool list: grep was added; declare all tools in the first call and do not change them"
    assert "tools.2 of call 2 is new in place of system.0: layer tools, block 2, byte " in describe_breaks(asked.breaks)
    assert found.comparison.difference is not None
    assert not any(line.startswith("-") for line in found.comparison.difference.diff)


def test_a_tool_that_is_gone_is_named(asked: Asked) -> None:
    tools = [tool("read"), tool("write", description="Another text.")]
    reply = asked.ask(user("one"), tools=tools)
    asked.ask(user("one"), assistant(reply), user("two"), tools=tools[:1])
    (found,) = asked.breaks
    assert (found.cause or "").startswith("tool list: write was removed; ")
    assert "tools.1 was removed: layer tools, block 1, byte " in describe_breaks(asked.breaks)
    assert found.comparison.difference is not None
    assert not any(line.startswith("+") for line in found.comparison.difference.diff)


def test_of_many_new_tools_some_are_named(asked: Asked) -> None:
    reply = asked.ask(user("one"), tools=[tool("a")])
    many = [tool(name, description=f"Does {name}.") for name in "bcdefgh"]
    asked.ask(user("one"), assistant(reply), user("two"), tools=many)
    assert (asked.breaks[0].cause or "").startswith("tool list: b, c, d, e, f and 2 more were added, a was removed; ")


def test_another_description_of_a_tool_is_told_as_such(asked: Asked) -> None:
    reply = asked.ask(user("one"), tools=[tool("read", description="Reads.")])
    asked.ask(user("one"), assistant(reply), user("two"), tools=[tool("read", description="Fetches.")])
    assert asked.breaks[0].cause == "tool schema: the description or schema of a tool changed"


def test_messages_that_were_dropped_are_told_from_messages_that_were_changed(asked: Asked) -> None:
    messages = [user("one")]
    for word in ("two", "three"):
        messages = [*messages, assistant(asked.ask(*messages)), user(word)]
    asked.ask(*messages[2:], assistant(asked.ask(*messages)), user("four"))
    assert (asked.breaks[0].cause or "").startswith("history: older messages were removed here")
    changed = Asked()
    reply = changed.ask(user("one"))
    changed.ask(user("ONE, in short"), assistant(reply), user("two"))
    assert (changed.breaks[0].cause or "").startswith(
        "history: a message that was already sent has changed; only append"
    )


@pytest.mark.parametrize(
    ("first", "second", "cause"),
    [
        ("Now 1790000000.25", "Now 1790000003.5", "clock (seconds since the epoch): "),
        ("Be brief.", "Be brief. It is 12:30:01.", "clock (a time of day): "),
        ("Be brief. Id 0b1e2d3c-0000-4000-8000-000000000001.", "Be brief.", "random (a UUID): "),
    ],
)
def test_a_time_or_an_id_that_comes_or_goes_is_seen(asked: Asked, first: str, second: str, cause: str) -> None:
    reply = asked.ask(user("one"), system=LONG + first)
    asked.ask(user("one"), assistant(reply), user("two"), system=LONG + second)
    assert (asked.breaks[0].cause or "").startswith(cause)


def test_two_keys_that_are_both_hidden_are_said_to_differ(asked: Asked) -> None:
    reply = asked.ask(user("one"), system=LONG + "\nKey sk-ant-very-secret-1 is")
    asked.ask(user("one"), assistant(reply), user("two"), system=LONG + "\nKey sk-ant-very-secret-2 is")
    assert "(the difference is hidden: it looks like a key)" in describe_breaks(asked.breaks)
