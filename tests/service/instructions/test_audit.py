"""Records of recalls: closed once and by their owner, measured, asked again."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.support.instruction_service import AGENT, UNITS, InstructionService, entry

from holdfast.instructions.models import AuditRecord

CLAIM = "claim a ticket"
DAY_SECONDS = 86_400


def close(at: InstructionService, token: object, *, key: str | None = None, **more: object) -> tuple[int, str | None]:
    answered = at.request("POST", "/v1/instruction/audit", {"audit_token": token, **more}, key=key or at.agent_key)
    return answered.status, None if answered.status == 204 else answered.code


def token_of(at: InstructionService, intent: str = CLAIM, **more: Any) -> str:
    return str(at.recall(intent, **more).json["audit_token"])


@pytest.mark.parametrize("body", [{}, {"audit_token": 1}, {"audit_token": ""}, {"audit_token": "audi_none"}])
def test_malformed_audit_token_is_invalid(furnished: InstructionService, body: object) -> None:
    answered = furnished.request("POST", "/v1/instruction/audit", body, key=furnished.agent_key)
    assert (answered.status, answered.code) == (400, "audit_token_invalid")


def test_record_is_closed_once_and_the_first_submission_counts(furnished: InstructionService) -> None:
    token = token_of(furnished)
    assert close(furnished, token, used_chunks=["checkout-procedure"], missed_chunks=["x"]) == (204, None)
    assert close(furnished, token, used_chunks=["code-review"]) == (204, None)
    furnished.clock.advance(2 * DAY_SECONDS)
    assert close(furnished, token) == (204, None)
    (record,) = furnished.records("recall")
    assert (record["used_chunks"], record["missed_chunks"]) == (["checkout-procedure"], ["x"])
    assert record["audit_closed"] == "2027-01-15T08:00:00Z"


def test_token_older_than_a_day_has_expired(furnished: InstructionService) -> None:
    token = token_of(furnished)
    furnished.clock.advance(DAY_SECONDS)
    assert close(furnished, token) == (204, None)
    token = token_of(furnished)
    furnished.clock.advance(DAY_SECONDS + 1)
    assert close(furnished, token) == (400, "audit_token_expired")


def test_token_of_another_agent_is_reported_like_an_unknown_one(furnished: InstructionService) -> None:
    token = token_of(furnished)
    peer = furnished.client.key("agent:other")
    assert close(furnished, token, key=peer) == close(furnished, "audi_none", key=peer) == (400, "audit_token_invalid")
    furnished.clock.advance(2 * DAY_SECONDS)
    assert close(furnished, token, key=peer) == (400, "audit_token_invalid")
    assert furnished.records("recall")[0]["audit_closed"] is None


def test_supervisor_can_close_the_record_it_requested_and_is_named_in_it(furnished: InstructionService) -> None:
    furnished.agent_request("PUT", "", {"supervisors": ["boss"]})
    boss = furnished.client.key("agent:boss")
    token = token_of(furnished, key=boss)
    assert close(furnished, token, key=boss) == (204, None)
    assert furnished.records("recall")[0]["detail"]["principal"] == "agent:boss"


@pytest.mark.parametrize(("asking", "closing"), [("boss-uuid", "chief"), ("chief", "boss-uuid")])
def test_caller_can_close_a_record_under_its_other_name(
    furnished: InstructionService, asking: str, closing: str
) -> None:
    furnished.agent_request("PUT", "", {"supervisors": ["boss-uuid"]})
    assert furnished.request("PUT", "/v1/agents/boss-uuid", {"shortname": "chief"}).status == 200
    assert furnished.request("PUT", "/v1/agents/peer", {"shortname": "other"}).status == 200
    token = token_of(furnished, key=furnished.client.key(f"agent:{asking}"))
    for stranger in ("peer", "other", "chie", "boss-uuid2"):
        key = furnished.client.key(f"agent:{stranger}")
        assert close(furnished, token, key=key) == (400, "audit_token_invalid")
    assert close(furnished, token, key=furnished.client.key(f"agent:{closing}")) == (204, None)


def test_record_of_an_admin_cannot_be_closed_by_another_agent(furnished: InstructionService) -> None:
    assert furnished.request("PUT", "/v1/agents/peer", {}).status == 200
    token = token_of(furnished, key=furnished.ann)
    peer = furnished.client.key("agent:peer")
    assert close(furnished, token, key=peer) == (400, "audit_token_invalid")


def test_record_has_the_fields_of_the_contract(furnished: InstructionService) -> None:
    told = furnished.recall(CLAIM, heartbeat_id="run_7", floor=False).json
    (record,) = furnished.records("recall")
    assert record["id"].startswith("audevent_")
    assert (record["agent_id"], record["heartbeat_id"], record["intent"]) == (AGENT, "run_7", CLAIM)
    assert record["loaded_chunks"] == [chunk["name"] for chunk in told["chunks"]]
    assert [one["rank"] for one in record["loaded"]] == [1, 2, 3]
    assert {one["source"] for one in record["loaded"]} == {"stigmem"}
    assert record["audit_token"] == told["audit_token"]
    assert record["detail"]["snapshot_id"] == told["snapshot_id"]
    furnished.recall(CLAIM)
    assert furnished.records("recall")[1]["heartbeat_id"].startswith("run_")


def test_metrics_cover_closed_records_of_the_window(furnished: InstructionService) -> None:
    measures = "/instruction-measures"
    assert furnished.agent_request("GET", measures).json["miss_rate"] is None
    close(furnished, token_of(furnished), used_chunks=["checkout-procedure"], missed_chunks=[])
    close(
        furnished,
        token_of(furnished),
        used_chunks=["budget-rules", "checkout-procedure"],
        missed_chunks=["budget-rules"],
    )
    close(furnished, token_of(furnished), used_chunks=[], missed_chunks=[])
    token_of(furnished)
    told = furnished.agent_request("GET", f"{measures}?k=1").json
    assert (told["recalls"], told["closed"]) == (4, 3)
    assert told["recall_at_k"] == pytest.approx(0.75)
    assert told["hit_at_k"] == 1.0
    assert told["miss_rate"] == pytest.approx(0.25)
    assert not told["alert"]
    furnished.clock.advance(8 * DAY_SECONDS)
    assert furnished.agent_request("GET", measures).json["recalls"] == 0
    assert furnished.agent_request("GET", f"{measures}?days=30").json["recalls"] == 4


@pytest.mark.parametrize(
    ("closed_count", "missed_count", "alerts"), [(99, 99, False), (100, 15, False), (100, 18, True)]
)
def test_many_misses_raise_an_alert_once_there_are_enough_records(
    furnished: InstructionService, closed_count: int, missed_count: int, alerts: bool
) -> None:
    used = ("checkout-procedure",)
    for number in range(closed_count):
        missed = ("budget-rules",) if number < missed_count else ()
        furnished.library.records.add_audit(
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
                audit_closed=furnished.library.now(),
                created_at=furnished.library.now(),
            )
        )
    told = furnished.agent_request("GET", "/instruction-measures").json
    assert told["miss_rate"] == pytest.approx(missed_count / (closed_count + missed_count))
    assert told["alert"] is alerts


def test_rarely_used_guaranteed_unit_raises_a_warning(at: InstructionService) -> None:
    approvals = [{"kind": "guarantee_load", "unit": "budget-rules"}]
    at.furnish([entry(name, guarantee_load=name == "budget-rules") for name in UNITS], approvals=approvals)
    close(at, token_of(at), used_chunks=["checkout-procedure"])
    close(at, token_of(at), used_chunks=["budget-rules"])
    told = at.agent_request("GET", "/instruction-measures").json
    assert told["guaranteed_relevance"] == {"budget-rules": 0.5}
    assert "budget-rules" in told["warnings"][0]


def test_replay_uses_the_versions_of_the_original_recall(furnished: InstructionService) -> None:
    token = token_of(furnished, "review a pull request")
    furnished.clock.advance(60)
    furnished.write("code-review", "v2", "Something else entirely, on gardens.")
    furnished.publish([entry("release-notes"), entry("budget-rules")], "v2")
    assert "code-review" not in furnished.recalled("review a pull request")
    again = furnished.agent_request("POST", "/instruction-replay", {"audit_token": token}).json
    assert again["loaded_now"] == again["loaded_then"]
    assert again["loaded_then"][0] == "code-review"
    assert again["same_order"]
    assert again["same_snapshot"]
    assert (
        furnished.agent_request("POST", "/instruction-replay", {"audit_token": "audi_none"}).code == "audit_not_found"
    )


def test_concurrent_recalls_all_have_their_records(furnished: InstructionService) -> None:
    with ThreadPoolExecutor(8) as workers:
        answers = list(workers.map(lambda number: furnished.recall(f"claim ticket {number}"), range(40)))
    tokens = {one.json["audit_token"] for one in answers}
    assert len(tokens) == 40
    assert {one["audit_token"] for one in furnished.records("recall")} == tokens


@pytest.mark.parametrize("name", [AGENT[:-1], f"{AGENT}x", f"x:{AGENT}", "ct", "ctor", "x:cto"])
def test_similar_agent_name_closes_no_records(furnished: InstructionService, name: str) -> None:
    assert furnished.agent_request("PUT", "", {"shortname": "cto"}).status == 200
    token = token_of(furnished)
    assert close(furnished, token, key=furnished.client.key(f"agent:{name}")) == (400, "audit_token_invalid")
    assert furnished.records("recall")[0]["audit_closed"] is None


@pytest.mark.parametrize("name", ["bos", "bossy", "x:boss"])
def test_similar_caller_name_closes_no_record(furnished: InstructionService, name: str) -> None:
    assert furnished.agent_request("PUT", "", {"supervisors": ["boss"]}).status == 200
    token = token_of(furnished, key=furnished.client.key("agent:boss"))
    assert close(furnished, token, key=furnished.client.key(f"agent:{name}")) == (400, "audit_token_invalid")
    assert furnished.records("recall")[0]["audit_closed"] is None
