"""Transfer of a history to another model: the result is valid there, and nothing transferable is dropped."""

from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_values as values

from holdfast.engine.history_transfer import UNPORTABLE_RESULT, transfer_history
from holdfast.types.blocks import (
    THINKING_TYPES,
    Opaque,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    get_call_id,
    get_result_call_id,
)
from holdfast.types.prompt import HistoryEntry

histories = st.lists(values.history_entries, max_size=6)


@given(histories, st.booleans())
def test_no_thinking_is_transferred_and_dropped_blocks_are_counted(history: list[HistoryEntry], same: bool) -> None:
    transferred = transfer_history(history, same_provider=same)
    blocks = [block for entry in transferred.entries for block in entry.content]
    before = [block for entry in history for block in entry.content]
    assert not any(isinstance(block, THINKING_TYPES) for block in blocks)
    assert dict(transferred.dropped).get("thinking", 0) == sum(isinstance(block, THINKING_TYPES) for block in before)


@given(histories)
def test_the_same_provider_keeps_everything_but_thinking(history: list[HistoryEntry]) -> None:
    transferred = transfer_history(history, same_provider=True)
    after = [block for entry in transferred.entries for block in entry.content]
    before = [block for entry in history for block in entry.content if not isinstance(block, THINKING_TYPES)]
    assert after == before


@given(histories)
def test_another_provider_gets_no_opaque_blocks(history: list[HistoryEntry]) -> None:
    transferred = transfer_history(history, same_provider=False)
    for entry in transferred.entries:
        for block in entry.content:
            assert not isinstance(block, Opaque)
            if isinstance(block, ToolResult):
                assert not any(isinstance(part, Opaque) for part in block.content)


@given(histories)
def test_calls_and_results_keep_their_ids(history: list[HistoryEntry]) -> None:
    def ids(entries: list[HistoryEntry]) -> list[tuple[str | None, str | None]]:
        pairs = [(get_call_id(block), get_result_call_id(block)) for entry in entries for block in entry.content]
        return [pair for pair in pairs if pair != (None, None)]

    assert ids(list(transfer_history(history, same_provider=False).entries)) == ids(history)


@given(histories, st.booleans())
def test_transferring_twice_equals_transferring_once(history: list[HistoryEntry], same: bool) -> None:
    once = transfer_history(history, same_provider=same).entries
    assert transfer_history(once, same_provider=same).entries == once


def test_a_call_with_unknown_fields_stays_a_call_and_its_unknown_result_becomes_a_note() -> None:
    call = Opaque("tool_use", b'{"type":"tool_use","id":"t1","name":"look","input":{"at": 1},"caller":{"type":"x"}}')
    result = Opaque("tool_result", b'{"type":"tool_result","tool_use_id":"t1","content":[],"new":1}')
    transferred = transfer_history(
        [HistoryEntry("assistant", (Thinking("hm", "s"), call)), HistoryEntry("user", (result,))], same_provider=False
    )
    assert [entry.content for entry in transferred.entries] == [
        (ToolUse("t1", "look", '{"at": 1}'),),
        (ToolResult("t1", (Text(UNPORTABLE_RESULT),)),),
    ]
    assert transferred.dropped == (("thinking", 1), ("tool_result", 1))


def test_opaque_reasoning_blocks_count_as_thinking() -> None:
    sealed = Opaque("reasoning", b'{"type":"reasoning","encrypted_content":"x","content":[]}')
    routed = Opaque("reasoning_details.reasoning.encrypted", b'{"format":"openai-responses-v1","data":"x"}')
    transferred = transfer_history([HistoryEntry("assistant", (sealed, routed, Text("So.")))], same_provider=True)
    assert [entry.content for entry in transferred.entries] == [(Text("So."),)]
    assert transferred.dropped == (("thinking", 2),)


def test_calls_of_every_providers_format_are_recognised() -> None:
    responses_call = Opaque(
        "function_call",
        b'{"type":"function_call","call_id":"c1","name":"f","arguments":"{\\"a\\": 1}","ns":"n"}',
    )
    gemini_call = Opaque("functionCall", b'{"functionCall":{"id":"c2","name":"g","args":{"b":2}},"new":1}')
    transferred = transfer_history([HistoryEntry("assistant", (responses_call, gemini_call))], same_provider=False)
    assert transferred.entries[0].content == (ToolUse("c1", "f", '{"a": 1}'), ToolUse("c2", "g", '{"b":2}'))
    assert (get_call_id(responses_call), get_call_id(gemini_call)) == ("c1", "c2")
    responses_result = Opaque(
        "function_call_output", b'{"type":"function_call_output","call_id":"c1","output":"","x":1}'
    )
    gemini_result = Opaque("functionResponse", b'{"functionResponse":{"id":"c2","name":"g","response":{}},"x":1}')
    assert (get_result_call_id(responses_result), get_result_call_id(gemini_result)) == ("c1", "c2")
