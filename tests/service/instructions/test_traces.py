"""What a trace shows of the units of a record: beside the agent's own words, once, bounded, and for its owner."""

import json
from contextlib import suppress
from typing import Any

import pytest
from tests.support.instruction_places import AGENT, UNITS, Place, entry, uri

from holdfast.errors import StoreError
from holdfast.instructions.usage.trace import (
    TRACE_BYTES_MAX,
    TRACE_STEPS_MAX,
    AgentTextStep,
    ObservationStep,
    ToolCallStep,
)
from holdfast.runtime.instructions.client import InstructionClient
from holdfast.stores.instructions.store import InstructionStore
from holdfast.stores.instructions.tables import AUDIT

CLAIM = "claim a ticket"
DAY_SECONDS = 86_400
USES_IT = [{"type": "text", "text": "I keep to the checkout-procedure unit."}]
NAMES_ANOTHER = [{"type": "text", "text": f"I would need {uri('budget-rules')}."}]


def tell(at: Place, token: object, *, key: str | None = None, **more: object) -> tuple[int, str | None]:
    answered = at.ask("POST", "/v1/instruction/audit", {"audit_token": token, **more}, key=key or at.agent_key)
    return answered.status, None if answered.status == 204 else answered.code


def token_of(at: Place, intent: str = CLAIM, **more: Any) -> str:
    return str(at.recall(intent, max_chunks=1, **more).json["audit_token"])


def record_of(at: Place, token: str) -> dict[str, Any]:
    return next(one for one in at.records() if one["audit_token"] == token)


def test_a_trace_stands_beside_what_the_agent_says_and_neither_changes_the_other(furnished: Place) -> None:
    token = token_of(furnished)
    assert record_of(furnished, token)["detected"] is None
    assert tell(furnished, token, used_chunks=["x"], trace=USES_IT + NAMES_ANOTHER) == (204, None)
    record = record_of(furnished, token)
    assert (record["used_chunks"], record["missed_chunks"]) == (["x"], [])
    assert (record["detected_used"], record["detected_missed"]) == (["checkout-procedure"], ["budget-rules"])
    assert record["detected"][0]["evidence"] == [{"kind": "name", "step": 1, "line": None}]
    assert record["audit_closed"] == record["detected_at"] == "2027-01-15T08:00:00Z"


def test_a_trace_alone_leaves_the_record_open_and_words_without_one_leave_it_untraced(furnished: Place) -> None:
    first, second = token_of(furnished), token_of(furnished)
    assert tell(furnished, first, trace=USES_IT) == (204, None)
    assert record_of(furnished, first)["audit_closed"] is None
    assert record_of(furnished, first)["detected_used"] == ["checkout-procedure"]
    assert tell(furnished, first, used_chunks=["y"]) == (204, None)
    assert record_of(furnished, first)["used_chunks"] == ["y"]
    assert tell(furnished, second) == (204, None)
    assert record_of(furnished, second)["audit_closed"] is not None
    assert record_of(furnished, second)["detected_at"] is None


def test_a_closed_record_takes_one_trace_and_the_first_holds(furnished: Place) -> None:
    token = token_of(furnished)
    tell(furnished, token, used_chunks=["x"])
    furnished.clock.advance(2 * DAY_SECONDS)
    assert tell(furnished, token, trace=[]) == (204, None)
    assert tell(furnished, token, used_chunks=["z"], trace=USES_IT) == (204, None)
    record = record_of(furnished, token)
    assert (record["used_chunks"], record["detected"], record["detected_used"]) == (["x"], [], [])
    assert record["detected_at"] == "2027-01-17T08:00:00Z"


def test_a_trace_is_for_the_owner_of_a_record_that_is_young_or_closed(furnished: Place) -> None:
    token, peer = token_of(furnished), furnished.client.key("agent:other")
    assert tell(furnished, token, key=peer, trace=USES_IT) == (400, "audit_token_invalid")
    assert tell(furnished, "audi_none", trace=USES_IT) == (400, "audit_token_invalid")
    assert tell(furnished, token, key=furnished.client.key("read"), trace=USES_IT) == (403, "instruction_scope_denied")
    furnished.clock.advance(DAY_SECONDS + 1)
    assert tell(furnished, token, trace=USES_IT) == (400, "audit_token_expired")
    assert record_of(furnished, token)["detected_at"] is None


@pytest.mark.parametrize(
    ("trace", "code"),
    [
        ("x", "invalid_body"),
        (None, "invalid_body"),
        ([{"type": "thought", "text": "x"}], "invalid_body"),
        ([{"type": "text"}], "invalid_body"),
        ([{"type": "text", "text": "x", "more": 1}], "invalid_body"),
        ([{"type": "tool_call", "tool": "x", "arguments": [1]}], "invalid_body"),
        ([{"type": "tool_call", "tool": "x" * 401}], "invalid_body"),
        ([{"type": "text", "text": ""}] * (TRACE_STEPS_MAX + 1), "invalid_body"),
        ([{"type": "text", "text": "x" * (TRACE_BYTES_MAX // 2)}] * 2, "trace_too_large"),
        ([{"type": "tool_call", "tool": "x", "arguments": {"x": "y" * TRACE_BYTES_MAX}}], "trace_too_large"),
    ],
)
def test_a_trace_that_does_not_fit_changes_nothing(furnished: Place, trace: object, code: str) -> None:
    token = token_of(furnished)
    assert tell(furnished, token, used_chunks=["x"], trace=trace) == (400, code)
    record = record_of(furnished, token)
    assert (record["audit_closed"], record["detected_at"]) == (None, None)


def test_what_was_done_before_the_recall_and_what_the_recall_answered_shows_nothing(furnished: Place) -> None:
    token, text = token_of(furnished), UNITS["checkout-procedure"][2]
    said = {"type": "text", "text": "Per code-review/v1."}
    answer = {"type": "tool_result", "text": f"{text} {token}", "tool": "bash"}
    phrase = {"type": "text", "text": "Set the issue to in progress, then create a branch. Good."}
    assert tell(furnished, token, trace=[said, answer, phrase]) == (204, None)
    record = record_of(furnished, token)
    assert (record["detected_used"], record["detected_missed"]) == (["checkout-procedure"], [])
    assert record["detected"][0]["evidence"] == [{"kind": "phrase", "step": 1, "line": 1}]


def test_texts_are_those_of_then(furnished: Place) -> None:
    token = token_of(furnished)
    furnished.clock.advance(60)
    furnished.write("checkout-procedure", "v2", "PLAN-7: something else entirely, on gardens.")
    later = token_of(furnished, manifest_hint=["checkout-procedure"])
    trace = [{"type": "text", "text": "Done by PLAN-7, instruction:local/x/checkout-procedure/v2."}]
    for one in (token, later):
        assert tell(furnished, one, trace=trace) == (204, None)
    assert record_of(furnished, token)["detected"] == []
    kinds = [found["kind"] for found in record_of(furnished, later)["detected"][0]["evidence"]]
    assert kinds == ["rule"]


def test_what_another_recall_of_the_run_has_loaded_was_not_missed(furnished: Place) -> None:
    token = token_of(furnished, heartbeat_id="run_9")
    token_of(furnished, "approve a purchase", heartbeat_id="run_9")
    assert tell(furnished, token, trace=USES_IT + NAMES_ANOTHER) == (204, None)
    assert record_of(furnished, token)["detected_missed"] == []


def test_in_shadow_every_unit_is_there_to_be_used(furnished: Place) -> None:
    token = token_of(furnished, shadow=True)
    trace = [{"type": "text", "text": "Purchases above 500 dollars need an approval by finance."}]
    assert tell(furnished, token, trace=trace) == (204, None)
    assert record_of(furnished, token)["detected_missed"] == ["budget-rules"]


def test_a_heartbeat_that_began_before_the_first_manifest_is_seen_by_the_one_it_asked(furnished: Place) -> None:
    token = token_of(furnished)
    records = furnished.library.records
    assert isinstance(records, InstructionStore)
    record = records.audit(token)
    assert record is not None
    early = {**record.detail, "as_of": 5}
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    records.add_audit(type(record)(**fields | {"id": "audevent_2", "audit_token": "audi_2", "detail": early}))
    records.add_audit(
        type(record)(**fields | {"id": "audevent_3", "audit_token": "audi_3", "detail": early, "created_at": 6})
    )
    furnished.library.records.close_audit("audi_3", used=(), missed=(), at=7)
    assert tell(furnished, "audi_2", trace=USES_IT) == (204, None)
    assert tell(furnished, "audi_3", trace=USES_IT) == (204, None)
    assert record_of(furnished, "audi_2")["detected_used"] == ["checkout-procedure"]
    kept = records.audit("audi_3")
    assert kept is not None
    assert kept.detected == ()


def test_measures_are_told_by_both_and_an_untraced_recall_counts_in_one(furnished: Place) -> None:
    tell(furnished, token_of(furnished), trace=USES_IT + NAMES_ANOTHER)
    tell(furnished, token_of(furnished), trace=[])
    tell(furnished, token_of(furnished), used_chunks=["checkout-procedure"])
    tell(furnished, token_of(furnished))
    told = furnished.of_agent("GET", "/instruction-measures").json
    assert (told["recalls"], told["closed"], told["miss_rate"], told["hit_at_k"]) == (4, 2, 0.0, 1.0)
    assert told["detected"] == {"traced": 2, "recall_at_k": 1.0, "hit_at_k": 1.0, "miss_rate": 0.5}
    days = furnished.ask("GET", f"/api/instructions/{AGENT}/days").json
    assert days["days"][-1]["detected"] == days["total"]["detected"] == told["detected"]
    assert days["days"][0]["detected"] == {"traced": 0, "recall_at_k": None, "hit_at_k": None, "miss_rate": None}


@pytest.mark.parametrize(
    "change",
    [
        "detected = '[]'",
        "detected_at = 9, detected = '[]'",
        "detected_at = NULL",
        "used_chunks = '[]'",
        "missed_chunks = '[\"z\"]'",
        "audit_closed = 9",
        "audit_closed = NULL",
        "loaded_chunks = '[]'",
        "intent = 'x'",
    ],
)
def test_no_store_lets_a_record_be_changed_twice(furnished: Place, change: str) -> None:
    token = token_of(furnished)
    tell(furnished, token, used_chunks=["x"], trace=USES_IT)
    assert_refused(furnished, token, change)


@pytest.mark.parametrize(
    "change",
    [
        "detected = '[]'",
        "used_chunks = '[\"x\"]'",
        "detected_at = 9, used_chunks = '[\"x\"]'",
        "audit_closed = 9, detected = '[]'",
        "audit_closed = 9, loaded_chunks = '[]'",
        "intent = 'x'",
    ],
)
def test_no_store_lets_an_open_record_be_changed_by_half(furnished: Place, change: str) -> None:
    assert_refused(furnished, token_of(furnished), change)


def assert_refused(at: Place, token: str, change: str) -> None:
    records = at.library.records
    assert isinstance(records, InstructionStore)
    before = records.audit(token)
    statement = f"UPDATE {AUDIT.name} SET {change} WHERE audit_token = ?"
    with suppress(StoreError):
        records._changes.run_statement(statement, (token,))
    assert records.audit(token) == before


def test_a_heartbeat_of_the_client_shows_what_was_done_after_each_recall(furnished: Place) -> None:
    client = InstructionClient(furnished.client.url, key=furnished.agent_key, agent=AGENT)
    with client.heartbeat() as beat:
        beat.add_steps(AgentTextStep("Per the code-review unit."))
        beat.recall(CLAIM)
        beat.add_steps(
            ObservationStep("Go."),
            ToolCallStep("bash", {"command": "x"}),
            AgentTextStep("Per the checkout-procedure unit."),
        )
        beat.recall("approve a purchase")
        beat.report_used("budget-rules")
    first, second = furnished.records("recall")
    assert first["heartbeat_id"] == second["heartbeat_id"]
    assert (first["detected_used"], first["used_chunks"]) == (["checkout-procedure"], [])
    assert (second["detected"], second["used_chunks"]) == (None, ["budget-rules"])
    assert json.dumps(first["detected"][0]["evidence"]) == '[{"kind": "name", "step": 3, "line": null}]'


def test_what_the_index_says_of_a_unit_anyway_is_no_sign_that_it_was_loaded(at: Place) -> None:
    text = UNITS["code-review"][2]
    at.furnish([{**entry("code-review"), "description": f"About this: {text}"}, entry("checkout-procedure")])
    trace = [{"type": "text", "text": text}]
    lazy, shadow = (token_of(at, "review a pull request", shadow=is_shadow) for is_shadow in (False, True))
    for token in (lazy, shadow):
        assert tell(at, token, trace=trace) == (204, None)
    assert record_of(at, lazy)["detected"] == []
    assert record_of(at, shadow)["detected_used"] == ["code-review"]
