"""Shadow mode over HTTP, on each store: turns are recorded next to recalls, closed like them, and reported."""

from typing import Any

import msgspec
from tests.support.instruction_service import AGENT, UNITS, InstructionService

from holdfast.instructions.coverage.schedule import calibrate_due_agents
from holdfast.instructions.models import AuditRecord
from holdfast.instructions.usage.shadow import ShadowReport, make_shadow_report
from holdfast.runtime.instructions.client import InstructionClient


def report_of(service: InstructionService) -> ShadowReport:
    records, manifest = service.library.records, service.library.records.manifest(AGENT)
    assert manifest is not None
    return make_shadow_report(records.audits(AGENT, since=0), manifest)


def turn(service: InstructionService, intent: str, *used: str, **more: Any) -> None:
    token = service.recall(intent, shadow=True, **more).json["audit_token"]
    body = {"audit_token": token, "used_chunks": list(used)}
    assert service.request("POST", "/v1/instruction/audit", body, key=service.agent_key).status == 204


def test_shadow_turn_is_recorded_as_such_and_is_no_recall(published_service: InstructionService) -> None:
    for _ in range(10):
        turn(published_service, "claim a ticket", "checkout-procedure", max_chunks=1)
    turn(published_service, "approve a purchase", "code-review", max_chunks=1)
    report = report_of(published_service)
    assert (report.manifest_version, report.turns, report.reported_turns) == ("v1", 11, 11)
    assert report.coverage is not None
    assert round(report.coverage, 3) == 0.909
    assert [regression.missing_units for regression in report.regressions] == [("code-review",)]
    assert report.eager_tokens == sum(
        unit.token_count
        for unit in published_service.library.records.units_at([AGENT], published_service.library.now())
    )
    assert published_service.records("recall") == []
    assert len(published_service.records("shadow")) == 11
    assert published_service.agent_request("GET", "/instruction-measures").json["recalls"] == 0


def test_always_rules_count_as_eager_tokens(published_service: InstructionService) -> None:
    turn(published_service, "claim a ticket")
    before = report_of(published_service).eager_tokens
    rules = {"role": "CTO", "always_rules": ["Never push to the main branch."]}
    assert published_service.agent_request("PUT", "", rules).status == 200
    published_service.clock.advance(1)
    turn(published_service, "claim a ticket")
    assert published_service.records("shadow")[-1]["detail"]["eager_tokens"] > before


def test_turns_of_an_older_manifest_are_not_judged(published_service: InstructionService) -> None:
    turn(published_service, "claim a ticket", "checkout-procedure")
    published_service.clock.advance(1)
    assert published_service.publish(version="v2").status == 200
    assert (report_of(published_service).manifest_version, report_of(published_service).turns) == ("v2", 0)


def test_shadow_turn_can_be_replayed_and_becomes_no_probe(published_service: InstructionService) -> None:
    for _ in range(5):
        turn(published_service, "claim a ticket", "checkout-procedure")
    (token, *_) = (record["audit_token"] for record in published_service.records("shadow"))
    replayed = published_service.agent_request("POST", "/instruction-replay", {"audit_token": token})
    assert replayed.json["same_order"], replayed.body
    assert calibrate_due_agents(published_service.library) == ()


def test_client_records_the_turns_of_a_run(published_service: InstructionService) -> None:
    client = InstructionClient(published_service.client.url, key=published_service.agent_key, agent=AGENT)
    given = client.recall("claim a ticket", max_chunks=1, heartbeat_id="run_7", shadow=True)
    client.submit_usage(given.audit_token, used=given.names)
    later = client.recall("announce a new version", max_chunks=1, heartbeat_id="run_7", shadow=True)
    client.submit_usage(later.audit_token, used=given.names)
    assert given.names != later.names
    report = report_of(published_service)
    assert (report.turns, report.coverage) == (2, 1.0)
    assert set(given.names) <= set(UNITS)


def test_report_over_http_equals_that_of_the_store(published_service: InstructionService) -> None:
    for _ in range(2):
        turn(published_service, "claim a ticket", "checkout-procedure", max_chunks=1)
    report = published_service.agent_request("GET", "/instruction-shadow").json
    assert report["passed"] is False
    assert msgspec.convert(report["report"], ShadowReport) == report_of(published_service)
    assert report["report"]["turns"] == 2
    published_service.clock.advance(3 * 86_400)
    assert published_service.agent_request("GET", "/instruction-shadow?days=2").json["report"]["turns"] == 0
    assert published_service.agent_request("GET", "/instruction-shadow?days=0").code == "invalid_body"


def test_shadow_report_requires_a_manifest(service: InstructionService) -> None:
    assert service.agent_request("GET", "/instruction-shadow").code == "manifest_not_found"
    assert service.agent_request("PUT", "", {"role": "CTO"}).status == 200
    response = service.agent_request("GET", "/instruction-shadow")
    assert (response.status, response.code) == (404, "manifest_not_found")


def test_damaged_record_is_reported_without_a_framework_error(published_service: InstructionService) -> None:
    published_service.library.records.add_audit(
        AuditRecord(
            id="audevent_x",
            agent_id=AGENT,
            heartbeat_id="run_x",
            session_start=0,
            intent="claim a ticket",
            loaded_chunks=(),
            audit_token="audi_x",
            created_at=published_service.library.now(),
            event_type="shadow",
            detail={"manifest_version": "v1"},
        )
    )
    response = published_service.agent_request("GET", "/instruction-shadow")
    assert (response.status, response.code) == (503, "store_unavailable")
