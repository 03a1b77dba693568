"""Turns in shadow over HTTP, on each store: recorded beside recalls, closed like them, judged from the store."""

from typing import Any

import msgspec
from tests.support.instruction_service import AGENT, UNITS, InstructionService

from holdfast.instructions.coverage.schedule import calibrate_due_agents
from holdfast.instructions.models import AuditRecord
from holdfast.instructions.usage.shadow import ShadowReport, make_shadow_report
from holdfast.runtime.instructions.client import InstructionClient


def report_of(at: InstructionService) -> ShadowReport:
    records, manifest = at.library.records, at.library.records.manifest(AGENT)
    assert manifest is not None
    return make_shadow_report(records.audits(AGENT, since=0), manifest)


def turn(at: InstructionService, intent: str, *used: str, **more: Any) -> None:
    token = at.recall(intent, shadow=True, **more).json["audit_token"]
    body = {"audit_token": token, "used_chunks": list(used)}
    assert at.request("POST", "/v1/instruction/audit", body, key=at.agent_key).status == 204


def test_shadow_turn_is_recorded_as_such_and_is_no_recall(furnished: InstructionService) -> None:
    for _ in range(10):
        turn(furnished, "claim a ticket", "checkout-procedure", max_chunks=1)
    turn(furnished, "approve a purchase", "code-review", max_chunks=1)
    report = report_of(furnished)
    assert (report.manifest_version, report.turns, report.reported_turns) == ("v1", 11, 11)
    assert report.coverage is not None
    assert round(report.coverage, 3) == 0.909
    assert [one.missing_units for one in report.regressions] == [("code-review",)]
    assert report.eager_tokens == sum(
        unit.token_count for unit in furnished.library.records.units_at([AGENT], furnished.library.now())
    )
    assert furnished.records("recall") == []
    assert len(furnished.records("shadow")) == 11
    assert furnished.agent_request("GET", "/instruction-measures").json["recalls"] == 0


def test_always_rules_count_as_eager_tokens(furnished: InstructionService) -> None:
    turn(furnished, "claim a ticket")
    before = report_of(furnished).eager_tokens
    rules = {"role": "CTO", "always_rules": ["Never push to the main branch."]}
    assert furnished.agent_request("PUT", "", rules).status == 200
    furnished.clock.advance(1)
    turn(furnished, "claim a ticket")
    assert furnished.records("shadow")[-1]["detail"]["eager_tokens"] > before


def test_turns_of_an_older_manifest_are_not_judged(furnished: InstructionService) -> None:
    turn(furnished, "claim a ticket", "checkout-procedure")
    furnished.clock.advance(1)
    assert furnished.publish(version="v2").status == 200
    assert (report_of(furnished).manifest_version, report_of(furnished).turns) == ("v2", 0)


def test_shadow_turn_can_be_replayed_and_becomes_no_probe(furnished: InstructionService) -> None:
    for _ in range(5):
        turn(furnished, "claim a ticket", "checkout-procedure")
    (token, *_) = (one["audit_token"] for one in furnished.records("shadow"))
    replayed = furnished.agent_request("POST", "/instruction-replay", {"audit_token": token})
    assert replayed.json["same_order"], replayed.body
    assert calibrate_due_agents(furnished.library) == ()


def test_client_records_the_turns_of_a_run(furnished: InstructionService) -> None:
    client = InstructionClient(furnished.client.url, key=furnished.agent_key, agent=AGENT)
    given = client.recall("claim a ticket", max_chunks=1, heartbeat_id="run_7", shadow=True)
    client.submit_usage(given.audit_token, used=given.names)
    later = client.recall("announce a new version", max_chunks=1, heartbeat_id="run_7", shadow=True)
    client.submit_usage(later.audit_token, used=given.names)
    assert given.names != later.names
    report = report_of(furnished)
    assert (report.turns, report.coverage) == (2, 1.0)
    assert set(given.names) <= set(UNITS)


def test_report_over_http_equals_that_of_the_store(furnished: InstructionService) -> None:
    for _ in range(2):
        turn(furnished, "claim a ticket", "checkout-procedure", max_chunks=1)
    told = furnished.agent_request("GET", "/instruction-shadow").json
    assert told["passed"] is False
    assert msgspec.convert(told["report"], ShadowReport) == report_of(furnished)
    assert told["report"]["turns"] == 2
    furnished.clock.advance(3 * 86_400)
    assert furnished.agent_request("GET", "/instruction-shadow?days=2").json["report"]["turns"] == 0
    assert furnished.agent_request("GET", "/instruction-shadow?days=0").code == "invalid_body"


def test_shadow_report_requires_a_manifest(at: InstructionService) -> None:
    assert at.agent_request("GET", "/instruction-shadow").code == "manifest_not_found"
    assert at.agent_request("PUT", "", {"role": "CTO"}).status == 200
    answered = at.agent_request("GET", "/instruction-shadow")
    assert (answered.status, answered.code) == (404, "manifest_not_found")


def test_damaged_record_is_reported_without_a_framework_error(furnished: InstructionService) -> None:
    furnished.library.records.add_audit(
        AuditRecord(
            id="audevent_x",
            agent_id=AGENT,
            heartbeat_id="run_x",
            session_start=0,
            intent="claim a ticket",
            loaded_chunks=(),
            audit_token="audi_x",
            created_at=furnished.library.now(),
            event_type="shadow",
            detail={"manifest_version": "v1"},
        )
    )
    answered = furnished.agent_request("GET", "/instruction-shadow")
    assert (answered.status, answered.code) == (503, "store_unavailable")
