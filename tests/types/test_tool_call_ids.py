"""Call ids that one provider assigned and another would refuse."""

import re

from hypothesis import given
from hypothesis import strategies as st

from holdfast.types.blocks import Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry, fit_call_id, fit_call_ids

LEGAL = re.compile(r"[a-z0-9_]{1,40}")


@given(st.text())
def test_an_id_always_fits_and_one_that_fits_is_unchanged(id: str) -> None:
    fitted = fit_call_id(id, LEGAL)
    assert LEGAL.fullmatch(fitted)
    assert fit_call_id(fitted, LEGAL) == fitted
    if LEGAL.fullmatch(id):
        assert fitted == id


def test_a_call_and_its_result_get_the_same_id_and_other_ids_differ() -> None:
    calls = fit_call_ids(HistoryEntry("assistant", (ToolUse("A.1", "f", "{}"), ToolUse("A.2", "f", "{}"))), LEGAL)
    results = fit_call_ids(HistoryEntry("user", (ToolResult("A.1", (Text("x"),)),)), LEGAL)
    first, second = (block.id for block in calls.content if isinstance(block, ToolUse))
    (result,) = (block.tool_use_id for block in results.content if isinstance(block, ToolResult))
    assert first == result != second


def test_an_entry_whose_ids_all_fit_is_the_same_object() -> None:
    entry = HistoryEntry("assistant", (Text("a"), ToolUse("a_1", "f", "{}")))
    assert fit_call_ids(entry, LEGAL) is entry
