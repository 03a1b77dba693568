"""What goes along to another model is legal there, and nothing that could go along stays behind."""

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

passages = st.lists(values.history_entries, max_size=6)


@given(passages, st.booleans())
def test_no_thinking_goes_along_and_what_is_dropped_is_counted(history: list[HistoryEntry], same: bool) -> None:
    carried = transfer_history(history, same_provider=same)
    blocks = [block for passage in carried.entries for block in passage.content]
    before = [block for passage in history for block in passage.content]
    assert not any(isinstance(block, THINKING_TYPES) for block in blocks)
    assert dict(carried.dropped).get("thinking", 0) == sum(isinstance(block, THINKING_TYPES) for block in before)


@given(passages)
def test_with_the_same_provider_all_but_thinking_stays_as_it_was(history: list[HistoryEntry]) -> None:
    carried = transfer_history(history, same_provider=True)
    kept = [block for passage in carried.entries for block in passage.content]
    before = [block for passage in history for block in passage.content if not isinstance(block, THINKING_TYPES)]
    assert kept == before


@given(passages)
def test_another_provider_gets_no_bytes_that_we_do_not_understand(history: list[HistoryEntry]) -> None:
    carried = transfer_history(history, same_provider=False)
    for passage in carried.entries:
        for block in passage.content:
            assert not isinstance(block, Opaque)
            if isinstance(block, ToolResult):
                assert not any(isinstance(part, Opaque) for part in block.content)


@given(passages)
def test_calls_and_results_keep_their_ids(history: list[HistoryEntry]) -> None:
    def ids(some: list[HistoryEntry]) -> list[tuple[str | None, str | None]]:
        pairs = [(get_call_id(block), get_result_call_id(block)) for passage in some for block in passage.content]
        return [pair for pair in pairs if pair != (None, None)]

    assert ids(list(transfer_history(history, same_provider=False).entries)) == ids(history)


@given(passages, st.booleans())
def test_carrying_twice_is_carrying_once(history: list[HistoryEntry], same: bool) -> None:
    once = transfer_history(history, same_provider=same).entries
    assert transfer_history(once, same_provider=same).entries == once


def test_a_call_with_unknown_fields_goes_along_as_a_call_and_its_unknown_result_as_a_word() -> None:
    call = Opaque("tool_use", b'{"type":"tool_use","id":"t1","name":"look","input":{"at": 1},"caller":{"type":"x"}}')
    result = Opaque("tool_result", b'{"type":"tool_result","tool_use_id":"t1","content":[],"new":1}')
    carried = transfer_history(
        [HistoryEntry("assistant", (Thinking("hm", "s"), call)), HistoryEntry("user", (result,))], same_provider=False
    )
    assert [passage.content for passage in carried.entries] == [
        (ToolUse("t1", "look", '{"at": 1}'),),
        (ToolResult("t1", (Text(UNPORTABLE_RESULT),)),),
    ]
    assert carried.dropped == (("thinking", 1), ("tool_result", 1))


def test_reasoning_that_is_kept_as_a_providers_own_bytes_is_thinking_too() -> None:
    sealed = Opaque("reasoning", b'{"type":"reasoning","encrypted_content":"x","content":[]}')
    routed = Opaque("reasoning_details.reasoning.encrypted", b'{"format":"openai-responses-v1","data":"x"}')
    carried = transfer_history([HistoryEntry("assistant", (sealed, routed, Text("So.")))], same_provider=True)
    assert [passage.content for passage in carried.entries] == [(Text("So."),)]
    assert carried.dropped == (("thinking", 2),)


def test_a_call_is_a_call_in_whatever_way_its_provider_writes_it() -> None:
    responses = Opaque(
        "function_call",
        b'{"type":"function_call","call_id":"c1","name":"f","arguments":"{\\"a\\": 1}","ns":"n"}',
    )
    gemini = Opaque("functionCall", b'{"functionCall":{"id":"c2","name":"g","args":{"b":2}},"new":1}')
    carried = transfer_history([HistoryEntry("assistant", (responses, gemini))], same_provider=False)
    assert carried.entries[0].content == (ToolUse("c1", "f", '{"a": 1}'), ToolUse("c2", "g", '{"b":2}'))
    assert (get_call_id(responses), get_call_id(gemini)) == ("c1", "c2")
    answered = Opaque("function_call_output", b'{"type":"function_call_output","call_id":"c1","output":"","x":1}')
    told = Opaque("functionResponse", b'{"functionResponse":{"id":"c2","name":"g","response":{}},"x":1}')
    assert (get_result_call_id(answered), get_result_call_id(told)) == ("c1", "c2")
