"""Ids that one provider gave to a call and another would refuse."""

import re

from hypothesis import given
from hypothesis import strategies as st

from holdfast.types.blocks import Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry, fit_call_id, fit_call_ids

LEGAL = re.compile(r"[a-z0-9_]{1,40}")


@given(st.text())
def test_an_id_always_fits_and_one_that_fits_stays(id: str) -> None:
    fitted = fit_call_id(id, LEGAL)
    assert LEGAL.fullmatch(fitted)
    assert fit_call_id(fitted, LEGAL) == fitted
    if LEGAL.fullmatch(id):
        assert fitted == id


def test_a_call_and_its_result_stay_together_and_other_ids_apart() -> None:
    asked = fit_call_ids(HistoryEntry("assistant", (ToolUse("A.1", "f", "{}"), ToolUse("A.2", "f", "{}"))), LEGAL)
    told = fit_call_ids(HistoryEntry("user", (ToolResult("A.1", (Text("x"),)),)), LEGAL)
    first, second = (block.id for block in asked.content if isinstance(block, ToolUse))
    (result,) = (block.tool_use_id for block in told.content if isinstance(block, ToolResult))
    assert first == result != second


def test_a_passage_whose_ids_all_fit_is_the_same_object() -> None:
    passage = HistoryEntry("assistant", (Text("a"), ToolUse("a_1", "f", "{}")))
    assert fit_call_ids(passage, LEGAL) is passage
