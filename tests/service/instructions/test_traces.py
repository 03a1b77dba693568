"""Unit usage detected in a trace: stored next to the reported usage, once, bounded, and only for the owner."""

import json
from contextlib import suppress
from typing import Any

import pytest
from tests.support.instruction_service import AGENT, UNITS, InstructionService, entry, uri

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


def submit(
    service: InstructionService, token: object, *, key: str | None = None, **more: object
) -> tuple[int, str | None]:
    response = service.request(
        "POST", "/v1/instruction/audit", {"audit_token": token, **more}, key=key or service.agent_key
    )
    return response.status, None if response.status == 204 else response.code


def token_of(service: InstructionService, intent: str = CLAIM, **more: Any) -> str:
    return str(service.recall(intent, max_chunks=1, **more).json["audit_token"])


def record_of(service: InstructionService, token: str) -> dict[str, Any]:
    return next(record for record in service.records() if record["audit_token"] == token)


def test_trace_and_reported_usage_are_stored_side_by_side_unchanged(published_service: InstructionService) -> None:
    token = token_of(published_service)
    assert record_of(published_service, token)["detected"] is None
    assert submit(published_service, token, used_chunks=["x"], trace=USES_IT + NAMES_ANOTHER) == (204, None)
    record = record_of(published_service, token)
    assert (record["used_chunks"], record["missed_chunks"]) == (["x"], [])
    assert (record["detected_used"], record["detected_missed"]) == (["checkout-procedure"], ["budget-rules"])
    assert record["detected"][0]["evidence"] == [{"kind": "name", "step": 1, "line": None}]
    assert record["audit_closed"] == record["detected_at"] == "2027-01-15T08:00:00Z"


def test_trace_alone_leaves_the_record_open_and_usage_alone_leaves_it_untraced(
    published_service: InstructionService,
) -> None:
    first, second = token_of(published_service), token_of(published_service)
    assert submit(published_service, first, trace=USES_IT) == (204, None)
    assert record_of(published_service, first)["audit_closed"] is None
    assert record_of(published_service, first)["detected_used"] == ["checkout-procedure"]
    assert submit(published_service, first, used_chunks=["y"]) == (204, None)
    assert record_of(published_service, first)["used_chunks"] == ["y"]
    assert submit(published_service, second) == (204, None)
    assert record_of(published_service, second)["audit_closed"] is not None
    assert record_of(published_service, second)["detected_at"] is None


def test_closed_record_accepts_one_trace_and_the_first_counts(published_service: InstructionService) -> None:
    token = token_of(published_service)
    submit(published_service, token, used_chunks=["x"])
    published_service.clock.advance(2 * DAY_SECONDS)
    assert submit(published_service, token, trace=[]) == (204, None)
    assert submit(published_service, token, used_chunks=["z"], trace=USES_IT) == (204, None)
    record = record_of(published_service, token)
    assert (record["used_chunks"], record["detected"], record["detected_used"]) == (["x"], [], [])
    assert record["detected_at"] == "2027-01-17T08:00:00Z"


def test_trace_is_accepted_from_the_owner_of_a_recent_or_closed_record(published_service: InstructionService) -> None:
    token, peer = token_of(published_service), published_service.client.key("agent:other")
    assert submit(published_service, token, key=peer, trace=USES_IT) == (400, "audit_token_invalid")
    assert submit(published_service, "audi_none", trace=USES_IT) == (400, "audit_token_invalid")
    assert submit(published_service, token, key=published_service.client.key("read"), trace=USES_IT) == (
        403,
        "instruction_scope_denied",
    )
    published_service.clock.advance(DAY_SECONDS + 1)
    assert submit(published_service, token, trace=USES_IT) == (400, "audit_token_expired")
    assert record_of(published_service, token)["detected_at"] is None


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
def test_invalid_trace_changes_nothing(published_service: InstructionService, trace: object, code: str) -> None:
    token = token_of(published_service)
    assert submit(published_service, token, used_chunks=["x"], trace=trace) == (400, code)
    record = record_of(published_service, token)
    assert (record["audit_closed"], record["detected_at"]) == (None, None)


def test_steps_before_the_recall_and_its_own_result_are_no_evidence(
    published_service: InstructionService,
) -> None:
    token, text = token_of(published_service), UNITS["checkout-procedure"][2]
    agent_text = {"type": "text", "text": "Per code-review/v1."}
    tool_result = {"type": "tool_result", "text": f"{text} {token}", "tool": "bash"}
    phrase = {"type": "text", "text": "Set the issue to in progress, then create a branch. Good."}
    assert submit(published_service, token, trace=[agent_text, tool_result, phrase]) == (204, None)
    record = record_of(published_service, token)
    assert (record["detected_used"], record["detected_missed"]) == (["checkout-procedure"], [])
    assert record["detected"][0]["evidence"] == [{"kind": "phrase", "step": 1, "line": 1}]


def test_trace_is_compared_with_the_texts_of_its_recall(published_service: InstructionService) -> None:
    token = token_of(published_service)
    published_service.clock.advance(60)
    published_service.write("checkout-procedure", "v2", "PLAN-7: something else entirely, on gardens.")
    later = token_of(published_service, manifest_hint=["checkout-procedure"])
    trace = [{"type": "text", "text": "Done by PLAN-7, instruction:local/x/checkout-procedure/v2."}]
    for one in (token, later):
        assert submit(published_service, one, trace=trace) == (204, None)
    assert record_of(published_service, token)["detected"] == []
    kinds = [found["kind"] for found in record_of(published_service, later)["detected"][0]["evidence"]]
    assert kinds == ["rule"]


def test_units_loaded_by_another_recall_of_the_run_are_not_missed(published_service: InstructionService) -> None:
    token = token_of(published_service, heartbeat_id="run_9")
    token_of(published_service, "approve a purchase", heartbeat_id="run_9")
    assert submit(published_service, token, trace=USES_IT + NAMES_ANOTHER) == (204, None)
    assert record_of(published_service, token)["detected_missed"] == []


def test_every_unit_can_be_used_in_shadow_mode(published_service: InstructionService) -> None:
    token = token_of(published_service, shadow=True)
    trace = [{"type": "text", "text": "Purchases above 500 dollars need an approval by finance."}]
    assert submit(published_service, token, trace=trace) == (204, None)
    assert record_of(published_service, token)["detected_missed"] == ["budget-rules"]


def test_heartbeat_from_before_the_first_manifest_uses_the_one_it_recalled_from(
    published_service: InstructionService,
) -> None:
    token = token_of(published_service)
    records = published_service.library.records
    assert isinstance(records, InstructionStore)
    record = records.audit(token)
    assert record is not None
    early = {**record.detail, "as_of": 5}
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    records.add_audit(type(record)(**fields | {"id": "audevent_2", "audit_token": "audi_2", "detail": early}))
    records.add_audit(
        type(record)(**fields | {"id": "audevent_3", "audit_token": "audi_3", "detail": early, "created_at": 6})
    )
    published_service.library.records.close_audit("audi_3", used=(), missed=(), at=7)
    assert submit(published_service, "audi_2", trace=USES_IT) == (204, None)
    assert submit(published_service, "audi_3", trace=USES_IT) == (204, None)
    assert record_of(published_service, "audi_2")["detected_used"] == ["checkout-procedure"]
    record_after = records.audit("audi_3")
    assert record_after is not None
    assert record_after.detected == ()


def test_metrics_cover_reported_and_detected_usage_and_untraced_recalls_count_once(
    published_service: InstructionService,
) -> None:
    submit(published_service, token_of(published_service), trace=USES_IT + NAMES_ANOTHER)
    submit(published_service, token_of(published_service), trace=[])
    submit(published_service, token_of(published_service), used_chunks=["checkout-procedure"])
    submit(published_service, token_of(published_service))
    metrics = published_service.agent_request("GET", "/instruction-measures").json
    assert (metrics["recalls"], metrics["closed"], metrics["miss_rate"], metrics["hit_at_k"]) == (4, 2, 0.0, 1.0)
    assert metrics["detected"] == {"traced": 2, "recall_at_k": 1.0, "hit_at_k": 1.0, "miss_rate": 0.5}
    days = published_service.request("GET", f"/api/instructions/{AGENT}/days").json
    assert days["days"][-1]["detected"] == days["total"]["detected"] == metrics["detected"]
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
def test_no_store_allows_changing_a_record_twice(published_service: InstructionService, change: str) -> None:
    token = token_of(published_service)
    submit(published_service, token, used_chunks=["x"], trace=USES_IT)
    assert_refused(published_service, token, change)


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
def test_no_store_allows_a_partial_change_of_an_open_record(published_service: InstructionService, change: str) -> None:
    assert_refused(published_service, token_of(published_service), change)


def assert_refused(service: InstructionService, token: str, change: str) -> None:
    records = service.library.records
    assert isinstance(records, InstructionStore)
    before = records.audit(token)
    statement = f"UPDATE {AUDIT.name} SET {change} WHERE audit_token = ?"
    with suppress(StoreError):
        records._changes.run_statement(statement, (token,))
    assert records.audit(token) == before


def test_client_heartbeat_submits_the_steps_after_each_recall(published_service: InstructionService) -> None:
    client = InstructionClient(published_service.client.url, key=published_service.agent_key, agent=AGENT)
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
    first, second = published_service.records("recall")
    assert first["heartbeat_id"] == second["heartbeat_id"]
    assert (first["detected_used"], first["used_chunks"]) == (["checkout-procedure"], [])
    assert (second["detected"], second["used_chunks"]) == (None, ["budget-rules"])
    assert json.dumps(first["detected"][0]["evidence"]) == '[{"kind": "name", "step": 3, "line": null}]'


def test_index_text_of_a_unit_is_no_evidence_that_it_was_loaded(service: InstructionService) -> None:
    text = UNITS["code-review"][2]
    service.publish_all([{**entry("code-review"), "description": f"About this: {text}"}, entry("checkout-procedure")])
    trace = [{"type": "text", "text": text}]
    lazy, shadow = (token_of(service, "review a pull request", shadow=is_shadow) for is_shadow in (False, True))
    for token in (lazy, shadow):
        assert submit(service, token, trace=trace) == (204, None)
    assert record_of(service, lazy)["detected"] == []
    assert record_of(service, shadow)["detected_used"] == ["code-review"]
