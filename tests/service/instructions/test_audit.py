"""Audit records of recalls: closed once and by their owner, counted in metrics, replayed."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.instruction_service import AGENT, UNITS, InstructionService, entry

from holdfast.instructions.models import AuditRecord

CLAIM = "claim a ticket"
DAY_SECONDS = 86_400


def close(
    service: InstructionService, token: object, *, key: str | None = None, **more: object
) -> tuple[int, str | None]:
    response = service.request(
        "POST", "/v1/instruction/audit", {"audit_token": token, **more}, key=key or service.agent_key
    )
    return response.status, None if response.status == 204 else response.code


def token_of(service: InstructionService, intent: str = CLAIM, **more: Any) -> str:
    return str(service.recall(intent, **more).json["audit_token"])


@pytest.mark.parametrize("body", [{}, {"audit_token": 1}, {"audit_token": ""}, {"audit_token": "audi_none"}])
def test_malformed_audit_token_is_invalid(published_service: InstructionService, body: object) -> None:
    response = published_service.request("POST", "/v1/instruction/audit", body, key=published_service.agent_key)
    assert (response.status, response.code) == (400, "audit_token_invalid")


def test_record_is_closed_once_and_the_first_submission_counts(published_service: InstructionService) -> None:
    token = token_of(published_service)
    assert close(published_service, token, used_chunks=["checkout-procedure"], missed_chunks=["x"]) == (204, None)
    assert close(published_service, token, used_chunks=["code-review"]) == (204, None)
    published_service.clock.advance(2 * DAY_SECONDS)
    assert close(published_service, token) == (204, None)
    (record,) = published_service.records("recall")
    assert (record["used_chunks"], record["missed_chunks"]) == (["checkout-procedure"], ["x"])
    assert record["audit_closed"] == "2027-01-15T08:00:00Z"


def test_token_older_than_a_day_has_expired(published_service: InstructionService) -> None:
    token = token_of(published_service)
    published_service.clock.advance(DAY_SECONDS)
    assert close(published_service, token) == (204, None)
    token = token_of(published_service)
    published_service.clock.advance(DAY_SECONDS + 1)
    assert close(published_service, token) == (400, "audit_token_expired")


def test_token_of_another_agent_is_reported_like_an_unknown_one(published_service: InstructionService) -> None:
    token = token_of(published_service)
    peer = published_service.client.key("agent:other")
    assert (
        close(published_service, token, key=peer)
        == close(published_service, "audi_none", key=peer)
        == (400, "audit_token_invalid")
    )
    published_service.clock.advance(2 * DAY_SECONDS)
    assert close(published_service, token, key=peer) == (400, "audit_token_invalid")
    assert published_service.records("recall")[0]["audit_closed"] is None


def test_supervisor_can_close_the_record_it_requested_and_is_named_in_it(published_service: InstructionService) -> None:
    published_service.agent_request("PUT", "", {"supervisors": ["boss"]})
    boss = published_service.client.key("agent:boss")
    token = token_of(published_service, key=boss)
    assert close(published_service, token, key=boss) == (204, None)
    assert published_service.records("recall")[0]["detail"]["principal"] == "agent:boss"


@pytest.mark.parametrize(("asking", "closing"), [("boss-uuid", "chief"), ("chief", "boss-uuid")])
def test_caller_can_close_a_record_under_its_other_name(
    published_service: InstructionService, asking: str, closing: str
) -> None:
    published_service.agent_request("PUT", "", {"supervisors": ["boss-uuid"]})
    assert published_service.request("PUT", "/v1/agents/boss-uuid", {"shortname": "chief"}).status == 200
    assert published_service.request("PUT", "/v1/agents/peer", {"shortname": "other"}).status == 200
    token = token_of(published_service, key=published_service.client.key(f"agent:{asking}"))
    for stranger in ("peer", "other", "chie", "boss-uuid2"):
        key = published_service.client.key(f"agent:{stranger}")
        assert close(published_service, token, key=key) == (400, "audit_token_invalid")
    assert close(published_service, token, key=published_service.client.key(f"agent:{closing}")) == (204, None)


def test_record_of_an_admin_cannot_be_closed_by_another_agent(published_service: InstructionService) -> None:
    assert published_service.request("PUT", "/v1/agents/peer", {}).status == 200
    token = token_of(published_service, key=published_service.ann)
    peer = published_service.client.key("agent:peer")
    assert close(published_service, token, key=peer) == (400, "audit_token_invalid")


def test_record_has_the_fields_of_the_contract(published_service: InstructionService) -> None:
    result = published_service.recall(CLAIM, heartbeat_id="run_7", floor=False).json
    (record,) = published_service.records("recall")
    assert record["id"].startswith("audevent_")
    assert (record["agent_id"], record["heartbeat_id"], record["intent"]) == (AGENT, "run_7", CLAIM)
    assert record["loaded_chunks"] == [chunk["name"] for chunk in result["chunks"]]
    assert [one["rank"] for one in record["loaded"]] == [1, 2, 3]
    assert {one["source"] for one in record["loaded"]} == {"stigmem"}
    assert record["audit_token"] == result["audit_token"]
    assert record["detail"]["snapshot_id"] == result["snapshot_id"]
    published_service.recall(CLAIM)
    assert published_service.records("recall")[1]["heartbeat_id"].startswith("run_")


def test_metrics_cover_closed_records_of_the_window(published_service: InstructionService) -> None:
    measures = "/instruction-measures"
    assert published_service.agent_request("GET", measures).json["miss_rate"] is None
    close(published_service, token_of(published_service), used_chunks=["checkout-procedure"], missed_chunks=[])
    close(
        published_service,
        token_of(published_service),
        used_chunks=["budget-rules", "checkout-procedure"],
        missed_chunks=["budget-rules"],
    )
    close(published_service, token_of(published_service), used_chunks=[], missed_chunks=[])
    token_of(published_service)
    response = published_service.agent_request("GET", f"{measures}?k=1").json
    assert (response["recalls"], response["closed"]) == (4, 3)
    assert response["recall_at_k"] == pytest.approx(0.75)
    assert response["hit_at_k"] == 1.0
    assert response["miss_rate"] == pytest.approx(0.25)
    assert not response["alert"]
    published_service.clock.advance(8 * DAY_SECONDS)
    assert published_service.agent_request("GET", measures).json["recalls"] == 0
    assert published_service.agent_request("GET", f"{measures}?days=30").json["recalls"] == 4


@pytest.mark.parametrize(
    ("closed_count", "missed_count", "alerts"), [(99, 99, False), (100, 15, False), (100, 18, True)]
)
def test_many_misses_raise_an_alert_once_there_are_enough_records(
    published_service: InstructionService, closed_count: int, missed_count: int, alerts: bool
) -> None:
    used = ("checkout-procedure",)
    for number in range(closed_count):
        missed = ("budget-rules",) if number < missed_count else ()
        published_service.library.records.add_audit(
            AuditRecord(
                id=f"audevent_{number}",
                agent_id=AGENT,
                heartbeat_id="run_1",
                session_start=0,
                intent="claim",
                loaded_chunks=(),
                used_chunks=used,
                missed_chunks=missed,
                audit_token=f"audi_{number}",
                audit_closed=published_service.library.now(),
                created_at=published_service.library.now(),
            )
        )
    metrics = published_service.agent_request("GET", "/instruction-measures").json
    assert metrics["miss_rate"] == pytest.approx(missed_count / (closed_count + missed_count))
    assert metrics["alert"] is alerts


def test_rarely_used_guaranteed_unit_raises_a_warning(service: InstructionService) -> None:
    approvals = [{"kind": "guarantee_load", "unit": "budget-rules"}]
    service.publish_all([entry(name, guarantee_load=name == "budget-rules") for name in UNITS], approvals=approvals)
    close(service, token_of(service), used_chunks=["checkout-procedure"])
    close(service, token_of(service), used_chunks=["budget-rules"])
    metrics = service.agent_request("GET", "/instruction-measures").json
    assert metrics["guaranteed_relevance"] == {"budget-rules": 0.5}
    assert "budget-rules" in metrics["warnings"][0]


def test_replay_uses_the_versions_of_the_original_recall(published_service: InstructionService) -> None:
    token = token_of(published_service, "review a pull request")
    published_service.clock.advance(60)
    published_service.write("code-review", "v2", "Something else entirely, on gardens.")
    published_service.publish([entry("release-notes"), entry("budget-rules")], "v2")
    assert "code-review" not in published_service.recalled("review a pull request")
    again = published_service.agent_request("POST", "/instruction-replay", {"audit_token": token}).json
    assert again["loaded_now"] == again["loaded_then"]
    assert again["loaded_then"][0] == "code-review"
    assert again["same_order"]
    assert again["same_snapshot"]
    assert (
        published_service.agent_request("POST", "/instruction-replay", {"audit_token": "audi_none"}).code
        == "audit_not_found"
    )


def test_concurrent_recalls_all_have_their_records(published_service: InstructionService) -> None:
    with ThreadPoolExecutor(8) as workers:
        responses = list(workers.map(lambda number: published_service.recall(f"claim ticket {number}"), range(40)))
    tokens = {response.json["audit_token"] for response in responses}
    assert len(tokens) == 40
    assert {record["audit_token"] for record in published_service.records("recall")} == tokens


@pytest.mark.parametrize("name", [AGENT[:-1], f"{AGENT}x", f"x:{AGENT}", "ct", "ctor", "x:cto"])
def test_similar_agent_name_closes_no_records(published_service: InstructionService, name: str) -> None:
    assert published_service.agent_request("PUT", "", {"shortname": "cto"}).status == 200
    token = token_of(published_service)
    assert close(published_service, token, key=published_service.client.key(f"agent:{name}")) == (
        400,
        "audit_token_invalid",
    )
    assert published_service.records("recall")[0]["audit_closed"] is None


@pytest.mark.parametrize("name", ["bos", "bossy", "x:boss"])
def test_similar_caller_name_closes_no_record(published_service: InstructionService, name: str) -> None:
    assert published_service.agent_request("PUT", "", {"supervisors": ["boss"]}).status == 200
    token = token_of(published_service, key=published_service.client.key("agent:boss"))
    assert close(published_service, token, key=published_service.client.key(f"agent:{name}")) == (
        400,
        "audit_token_invalid",
    )
    assert published_service.records("recall")[0]["audit_closed"] is None
