"""Which requests belong to one conversation, and which of them changed the prefix."""

from typing import Any

import pytest
from tests.support.operations import OperationCounter
from tests.support.simulated import CACHE_CONTROL, LONG, SONNET, Wire, assistant, post, request, text, tool, user

from holdfast.testing.prefix_guard import PrefixBreak, RequestHistory, describe_breaks, find_prefix_breaks
from holdfast.testing.simulated_provider import ServedProvider

OPUS = "claude-opus-5-5"


class SentRequests:
    """A provider without a port, and the requests sent to it."""

    def __init__(self) -> None:
        self.provider = ServedProvider()

    def send(self, *messages: Wire, system: str = LONG, **fields: Any) -> str:
        """Send a request; return the text of the reply."""
        members = {"system": [text(system, CACHE_CONTROL)], **fields}
        status, reply = post(self.provider, request(*messages, **members))
        assert status == 200, reply
        reply_text: str = reply["content"][0]["text"]
        return reply_text

    @property
    def breaks(self) -> tuple[PrefixBreak, ...]:
        return find_prefix_breaks(self.provider.calls, self.provider.models)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [(prefix_break.call, prefix_break.call_before) for prefix_break in self.breaks]


@pytest.fixture
def sent() -> SentRequests:
    return SentRequests()


def test_a_conversation_that_only_grows_keeps_its_prefix(sent: SentRequests) -> None:
    messages = [user("one")]
    for word in ("two", "three", "four"):
        messages = [*messages, assistant(sent.send(*messages)), user(word)]
    assert len(sent.provider.calls) == 3
    assert sent.breaks == ()


def test_one_more_call_is_compared_with_one_request_however_many_came_before(sent: SentRequests) -> None:
    messages = [user("one")]
    for number in range(30):
        messages = [*messages, assistant(sent.send(*messages)), user(f"{number}")]
    history, counts = RequestHistory(sent.provider.models), list[int]()
    for call in sent.provider.calls:
        with OperationCounter().counting() as operations:
            assert history.add_call(call) is None
        counts.append(operations["/types/request_buffer.py:count_shared_blocks"])
    # A binary search over two chains of digests takes a step more for twice as many messages.
    assert 0 < counts[1] == counts[-1]


def test_a_changed_system_prompt_is_named_with_layer_block_and_byte(sent: SentRequests) -> None:
    reply = sent.send(user("one"), system=LONG + "A")
    sent.send(user("one"), assistant(reply), user("two"), system=LONG + "B")
    (prefix_break,) = sent.breaks
    assert (prefix_break.call, prefix_break.call_before, prefix_break.is_first_call) == (2, 1, False)
    difference = prefix_break.comparison.difference
    assert difference is not None
    assert (difference.path, difference.section, difference.block) == ("system.0", "system", 0)
    assert prefix_break.comparison.tokens_lost > 500
    assert prefix_break.comparison.lost_usd
    assert f"layer system, block 0, byte {difference.byte}" in describe_breaks(sent.breaks)


def test_interleaved_conversations_are_distinguished(sent: SentRequests) -> None:
    first, second = [user("one")], [user("eins")]
    for word, other in (("two", "zwei"), ("three", "drei")):
        first = [*first, assistant(sent.send(*first)), user(word)]
        second = [*second, assistant(sent.send(*second, system="Another agent. " + LONG)), user(other)]
    sent.send(*first)
    sent.send(*second, system="Another agent. " + LONG)
    assert sent.breaks == ()


def test_the_changed_conversation_is_identified_among_others(sent: SentRequests) -> None:
    first = sent.send(user("one"), system="First. " + LONG)
    second = sent.send(user("eins"), system="Second. " + LONG)
    sent.send(user("one"), assistant(first), user("two"), system="First! " + LONG)
    sent.send(user("eins"), assistant(second), user("zwei"), system="Second. " + LONG)
    assert sent.pairs == [(3, 1)]


def test_repeating_a_request_keeps_the_prefix(sent: SentRequests) -> None:
    reply = sent.send(user("one"))
    for _ in range(2):
        sent.send(user("one"), assistant(reply), user("two"))
    assert sent.breaks == ()


def test_a_refused_request_is_not_compared(sent: SentRequests) -> None:
    reply = sent.send(user("one"))
    refused = request(user("one"), assistant(reply), user("two"), system=[text("Other. " + LONG)])
    assert post(sent.provider, refused, headers={"x-holdfast-fault": "529"})[0] == 529
    sent.send(user("one"), assistant(reply), user("two"))
    assert sent.breaks == ()
    assert [call.number for call in sent.provider.calls] == [1, 2]


def test_a_token_count_request_is_no_call(sent: SentRequests) -> None:
    body = {"model": SONNET, "messages": [user("one")]}
    assert post(sent.provider, body, path="/v1/messages/count_tokens")[0] == 200
    assert sent.provider.calls == ()


def test_two_questions_from_one_state_are_branches(sent: SentRequests) -> None:
    reply = sent.send(user("one"))
    sent.send(user("one"), assistant(reply), user("two"))
    sent.send(user("one"), assistant(reply), user("or that"))
    sent.send(user("one"), assistant(reply), user("or even that"))
    assert sent.breaks == ()


def test_going_back_to_an_earlier_message_is_a_branch(sent: SentRequests) -> None:
    messages = [user("one")]
    for word in ("two", "three", "four"):
        messages = [*messages, assistant(sent.send(*messages)), user(word)]
    sent.send(*messages[:2], user("something else"))
    assert sent.breaks == ()


def test_a_branch_with_another_system_prompt_has_changed(sent: SentRequests) -> None:
    reply = sent.send(user("one"))
    sent.send(user("one"), assistant(reply), user("two"))
    sent.send(user("one"), assistant(reply), user("or that"), system="Hm. " + LONG)
    assert sent.pairs == [(3, 1)]


def test_a_history_that_loses_its_oldest_turn_has_changed(sent: SentRequests) -> None:
    messages = [user("one")]
    for word in ("two", "three", "four"):
        messages = [*messages, assistant(sent.send(*messages)), user(word)]
    sent.send(*messages[2:])
    (prefix_break,) = sent.breaks
    assert (prefix_break.call, prefix_break.call_before) == (4, 3)
    assert prefix_break.comparison.difference is not None
    assert prefix_break.comparison.difference.path == "messages.0.content.0"


def test_a_rewritten_first_message_is_recognised_by_the_reply(sent: SentRequests) -> None:
    reply = sent.send(user("It is 10:15:01. one"))
    sent.send(user("It is 10:15:02. one"), assistant(reply), user("two"))
    (prefix_break,) = sent.breaks
    assert prefix_break.comparison.difference is not None
    assert prefix_break.comparison.difference.section == "messages"
    assert prefix_break.cause is not None
    assert prefix_break.cause.startswith("clock (a time of day)")


def test_text_that_leaves_with_its_turn_changes_the_prefix(sent: SentRequests) -> None:
    reply = sent.send(user("one", "for this turn only"))
    sent.send(user("one"), assistant(reply), user("two", "for this turn only"))
    (prefix_break,) = sent.breaks
    assert prefix_break.comparison.difference is not None
    assert prefix_break.comparison.difference.path == "messages.0.content.1"


def test_another_model_has_another_cache(sent: SentRequests) -> None:
    reply = sent.send(user("one"), system="A. " + LONG)
    sent.send(user("one"), assistant(reply), user("two"), system="B. " + LONG, model=OPUS)
    assert sent.breaks == ()


def test_a_conversation_started_elsewhere_is_a_new_one(sent: SentRequests) -> None:
    sent.send(user("one"))
    sent.send(user("long ago"), assistant("yes"), user("go on"), system="Other. " + LONG)
    assert sent.breaks == ()


def test_few_shot_examples_are_no_history(sent: SentRequests) -> None:
    examples = [user("2 + 2"), assistant("4"), user("3 + 3"), assistant("6")]
    for question in ("5 + 5", "6 + 6", "7 + 7"):
        sent.send(*examples, user(question))
    assert sent.breaks == ()


def test_a_parameter_that_invalidates_the_messages_is_named(sent: SentRequests) -> None:
    tools = [tool("read")]
    reply = sent.send(user("one"), tools=tools)
    sent.send(user("one"), assistant(reply), user("two"), tools=tools, tool_choice={"type": "none"})
    (prefix_break,) = sent.breaks
    assert prefix_break.comparison.difference is None
    assert "tool_choice changed: messages and everything after it is lost" in describe_breaks(sent.breaks)


def test_new_conversations_may_have_any_prompt(sent: SentRequests) -> None:
    for name in ("Anna", "Bert", "Cleo"):
        sent.send(user("one"), system=f"You help {name}, whose id is 1{name}. " + LONG)
    assert sent.breaks == ()


def test_a_time_in_the_system_prompt_prevents_new_conversations_from_reading(sent: SentRequests) -> None:
    for second in (1, 1, 2):
        sent.send(user(f"question {second}"), system=LONG + f"It is 2026-11-16 10:00:0{second}.")
    sent.send(user("a"), system="Something else. " + LONG)
    (prefix_break,) = sent.breaks
    assert (prefix_break.call, prefix_break.call_before, prefix_break.is_first_call) == (3, 2, True)
    assert "call 3 starts a conversation and could have read the prefix of call 2" in describe_breaks(sent.breaks)


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
def test_the_cause_is_guessed_from_the_difference(
    sent: SentRequests, first: str, second: str, cause: str | None
) -> None:
    reply = sent.send(user("one"), system=LONG + first)
    sent.send(user("one"), assistant(reply), user("two"), system=LONG + second)
    (prefix_break,) = sent.breaks
    assert (prefix_break.cause or "none").startswith(cause or "none")


def test_reordered_tools_are_attributed_to_order(sent: SentRequests) -> None:
    reply = sent.send(user("one"), tools=[tool("read"), tool("write", description="Another text.")])
    again = [tool("write", description="Another text."), tool("read")]
    sent.send(user("one"), assistant(reply), user("two"), tools=again)
    (prefix_break,) = sent.breaks
    assert prefix_break.comparison.difference is not None
    assert prefix_break.comparison.difference.section == "tools"
    assert (prefix_break.cause or "").startswith("set order")


def test_reordered_schema_keys_are_attributed_to_unsorted_keys(sent: SentRequests) -> None:
    def tools_with_schema(schema: Wire) -> list[Wire]:
        return [{"name": "read", "description": LONG, "input_schema": schema}]

    reply = sent.send(user("one"), tools=tools_with_schema({"type": "object", "properties": {}}))
    sent.send(user("one"), assistant(reply), user("two"), tools=tools_with_schema({"properties": {}, "type": "object"}))
    (prefix_break,) = sent.breaks
    assert (prefix_break.cause or "").startswith("unsorted JSON keys")


def test_a_removed_block_is_reported(sent: SentRequests) -> None:
    reply = sent.send(user("one", "two", "three"))
    sent.send(user("one", "two"), assistant(reply), user("four"))
    assert "does not extend call 1" in describe_breaks(sent.breaks)


def test_the_first_break_is_described_in_full_and_the_others_by_number(sent: SentRequests) -> None:
    messages = [user("one")]
    for number in range(25):
        messages = [*messages, assistant(sent.send(*messages, system=f"{number:02} {LONG}")), user("more")]
    lines = describe_breaks(sent.breaks).splitlines()
    assert lines[0] == f"the cached prefix changed: call 2 does not extend call 1 (anthropic:{SONNET})"
    assert lines[-1] == f"  also broken: call {', '.join(str(number) for number in range(3, 23))} and 3 more"


def test_a_key_in_the_difference_is_not_shown(sent: SentRequests) -> None:
    reply = sent.send(user("one"), system=LONG + "\nKey sk-ant-very-secret-1.")
    sent.send(user("one"), assistant(reply), user("two"), system=LONG + "\nKey sk-ant-very-secret-2.")
    message = describe_breaks(sent.breaks)
    assert "(the difference is hidden: it looks like a key)" in message
    assert "secret" not in message


def test_a_prompt_below_the_minimum_has_nothing_to_lose_and_the_message_says_so(sent: SentRequests) -> None:
    reply = sent.send(user("one"), system="A")
    sent.send(user("one"), assistant(reply), user("two"), system="B")
    assert sent.breaks[0].comparison.tokens_lost == 0
    assert "note: " in describe_breaks(sent.breaks)
    assert "below the floor" in describe_breaks(sent.breaks)


def test_an_added_tool_is_named_and_order_is_not_blamed(sent: SentRequests) -> None:
    tools = [tool("read"), tool("write", description="Another text.")]
    reply = sent.send(user("one"), tools=tools)
    sent.send(user("one"), assistant(reply), user("two"), tools=[*tools, tool("grep", description="A third.")])
    (prefix_break,) = sent.breaks
    assert prefix_break.cause == "tool list: grep was added; declare all tools in the first call and do not change them"
    assert "tools.2 of call 2 is new in place of system.0: layer tools, block 2, byte " in describe_breaks(sent.breaks)
    assert prefix_break.comparison.difference is not None
    assert not any(line.startswith("-") for line in prefix_break.comparison.difference.diff)


def test_a_removed_tool_is_named(sent: SentRequests) -> None:
    tools = [tool("read"), tool("write", description="Another text.")]
    reply = sent.send(user("one"), tools=tools)
    sent.send(user("one"), assistant(reply), user("two"), tools=tools[:1])
    (prefix_break,) = sent.breaks
    assert (prefix_break.cause or "").startswith("tool list: write was removed; ")
    assert "tools.1 was removed: layer tools, block 1, byte " in describe_breaks(sent.breaks)
    assert prefix_break.comparison.difference is not None
    assert not any(line.startswith("+") for line in prefix_break.comparison.difference.diff)


def test_of_many_new_tools_some_are_named(sent: SentRequests) -> None:
    reply = sent.send(user("one"), tools=[tool("a")])
    many = [tool(name, description=f"Does {name}.") for name in "bcdefgh"]
    sent.send(user("one"), assistant(reply), user("two"), tools=many)
    assert (sent.breaks[0].cause or "").startswith("tool list: b, c, d, e, f and 2 more were added, a was removed; ")


def test_a_changed_tool_description_is_reported(sent: SentRequests) -> None:
    reply = sent.send(user("one"), tools=[tool("read", description="Reads.")])
    sent.send(user("one"), assistant(reply), user("two"), tools=[tool("read", description="Fetches.")])
    assert sent.breaks[0].cause == "tool schema: the description or schema of a tool changed"


def test_removed_messages_are_distinguished_from_changed_ones(sent: SentRequests) -> None:
    messages = [user("one")]
    for word in ("two", "three"):
        messages = [*messages, assistant(sent.send(*messages)), user(word)]
    sent.send(*messages[2:], assistant(sent.send(*messages)), user("four"))
    assert (sent.breaks[0].cause or "").startswith("history: older messages were removed here")
    changed = SentRequests()
    reply = changed.send(user("one"))
    changed.send(user("ONE, in short"), assistant(reply), user("two"))
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
def test_a_time_or_an_id_that_appears_or_disappears_is_detected(
    sent: SentRequests, first: str, second: str, cause: str
) -> None:
    reply = sent.send(user("one"), system=LONG + first)
    sent.send(user("one"), assistant(reply), user("two"), system=LONG + second)
    assert (sent.breaks[0].cause or "").startswith(cause)


def test_two_hidden_keys_are_reported_as_different(sent: SentRequests) -> None:
    reply = sent.send(user("one"), system=LONG + "\nKey sk-ant-very-secret-1 is")
    sent.send(user("one"), assistant(reply), user("two"), system=LONG + "\nKey sk-ant-very-secret-2 is")
    assert "(the difference is hidden: it looks like a key)" in describe_breaks(sent.breaks)
