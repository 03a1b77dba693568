"""What the dashboard gets about instructions: the same as agents and admins, without leaving audit records."""

from pathlib import Path

import pytest
from tests.support.instruction_service import AGENT, UNITS, InstructionService, entry, serve_instructions
from tests.support.served_service import serve_store

from holdfast.clock import CountingIds
from holdfast.service.sample import AGENT as SAMPLE
from holdfast.service.sample import GUARANTEED, add_sample_instructions
from holdfast.stores.memory import MemoryStore

PATHS = ("", f"/{AGENT}", f"/{AGENT}/recall?intent=x", f"/{AGENT}/days")


def test_agents_are_listed_by_page_with_failures_and_pending_approvals(published_service: InstructionService) -> None:
    for name in ("a", "b"):
        assert published_service.request("PUT", f"/v1/agents/{name}", {"role": "tester"}).status == 200
    agents_page = published_service.request("GET", "/api/instructions?limit=2").json
    assert (agents_page["enabled"], agents_page["more"]) == (True, True)
    first = agents_page["agents"][0]
    assert (first["agent_id"], first["manifest_version"], first["units"]) == (AGENT, "v1", len(UNITS))
    assert (first["failing"], first["pending"], first["role"]) == (0, 0, "")
    rest = published_service.request("GET", "/api/instructions?limit=2&skip=2").json
    assert [one["agent_id"] for one in (*agents_page["agents"], *rest["agents"])] == [AGENT, "a", "b"]
    assert (rest["more"], rest["agents"][0]["manifest_version"]) == (False, None)


def test_units_are_listed_with_their_coverage_and_the_units_found_instead(
    published_service: InstructionService,
) -> None:
    agent_page = published_service.request("GET", f"/api/instructions/{AGENT}").json
    run = published_service.library.records.coverage(AGENT)
    assert run is not None
    assert [(unit["name"], unit["coverage_pct"], unit["failures"]) for unit in agent_page["units"]] == [
        (
            unit.unit,
            unit.coverage_pct,
            [{"query": failure.query, "found_instead": failure.found_instead} for failure in unit.failures],
        )
        for unit in run.units
    ]
    assert {unit["version"] for unit in agent_page["units"]} == {"v1"}
    assert (agent_page["coverage"]["kind"], agent_page["coverage"]["skipped"]) == ("gate", False)


def test_manifest_versions_are_listed_newest_first(published_service: InstructionService) -> None:
    published_service.clock.advance(60)
    assert published_service.publish([entry("code-review"), entry("budget-rules")], "v2").status == 200
    versions = published_service.request("GET", f"/api/instructions/{AGENT}").json["versions"]
    assert [(version["version"], version["units"]) for version in versions] == [("v2", 2), ("v1", len(UNITS))]
    assert versions[0]["superseded_at"] is None
    assert versions[1]["superseded_at"] == versions[0]["published_at"]


def test_version_is_pending_until_all_its_approvals_exist(service: InstructionService) -> None:
    approval = {"kind": "guarantee_load", "unit": "security-posture", "reason": "always"}
    entries = [entry(name, guarantee_load=name == "security-posture") for name in UNITS]
    service.publish_all(entries, approvals=[approval])
    assert service.write("security-posture", "v2", "Never print keys.").json["status"] == "pending"
    (line,) = service.request("GET", f"/api/instructions/{AGENT}").json["pending"]
    assert (line["unit"], line["version"], line["needs"]) == ("security-posture", "v2", ["guarantee_load"])
    assert line["content"] == "Never print keys."
    assert service.request("GET", "/api/instructions").json["agents"][0]["pending"] == 1
    assert service.agent_request("POST", "/approvals", {**approval, "version": "v2"}).json["activated"]
    assert service.request("GET", f"/api/instructions/{AGENT}").json["pending"] == []


def test_version_with_an_unknown_signer_is_pending_a_signature(published_service: InstructionService) -> None:
    assert published_service.write("code-review", "v2", "Other.", signature="AAAA").json["status"] == "quarantined"
    (line,) = published_service.request("GET", f"/api/instructions/{AGENT}").json["pending"]
    assert (line["status"], line["needs"]) == ("quarantined", [])


def test_explorer_shows_what_a_recall_loads_and_records_nothing(published_service: InstructionService) -> None:
    explored = published_service.request("GET", f"/api/instructions/{AGENT}/recall?intent=claim+a+ticket").json
    assert published_service.records() == []
    loaded = sorted((unit for unit in explored["units"] if unit["rank"]), key=lambda one: one["rank"])
    recalled = published_service.recall("claim a ticket", explain=True).json
    assert [one["name"] for one in loaded] == [chunk["name"] for chunk in recalled["chunks"]]
    assert [one["stages"] for one in loaded] == [chunk["why"]["stages"] for chunk in recalled["chunks"]]
    assert explored["total_tokens"] == recalled["total_tokens"]
    left_out = {unit["name"]: unit["outcome"] for unit in explored["units"] if not unit["rank"]}
    assert left_out == {one["name"]: one["reason"] for one in recalled["dropped"]}
    assert {unit["name"] for unit in explored["units"]} == UNITS.keys()
    below = {unit["name"] for unit in explored["units"] if unit["relevance"] < explored["floor"]}
    assert below == {name for name, reason in left_out.items() if reason == "below_floor"} != set()


def test_daily_metrics_add_up_to_the_totals(published_service: InstructionService) -> None:
    for used, missed in ((["code-review"], []), ([], ["budget-rules"]), (["code-review"], ["budget-rules"])):
        token = published_service.recall("review a pull request").json["audit_token"]
        closed = {"audit_token": token, "used_chunks": used, "missed_chunks": missed}
        assert published_service.request("POST", "/v1/instruction/audit", closed).status == 204
        published_service.clock.advance(86_400)
    days = published_service.request("GET", f"/api/instructions/{AGENT}/days?days=5").json
    whole = published_service.agent_request("GET", "/instruction-measures?days=5").json
    assert days["total"] == whole
    assert len(days["days"]) == 5
    assert [(day["used"], day["missed"]) for day in days["days"]] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 0)]
    assert [day["miss_rate"] for day in days["days"]] == [None, 0.0, 1.0, 0.5, None]
    assert sum(day["recalls"] for day in days["days"]) == whole["recalls"] == 3


@pytest.mark.parametrize("path", PATHS)
def test_only_admins_see_instruction_pages(tmp_path: Path, path: str) -> None:
    with serve_instructions("sqlite", tmp_path) as service:
        for key in (service.client.key("read"), service.agent_key):
            response = service.request("GET", f"/api/instructions{path}", key=key)
            assert (response.status, response.code) == (403, "instruction_scope_denied")
        assert service.client.request("GET", f"/api/instructions{path}").code == "key_required"


@pytest.mark.parametrize("path", PATHS)
def test_instruction_pages_require_a_key_even_before_one_exists(tmp_path: Path, path: str) -> None:
    """A command may have published them without a key; only a sample is public."""
    with serve_instructions("sqlite", tmp_path) as kept, serve_store(MemoryStore(), library=kept.library) as client:
        assert client.request("GET", "/api/visitor").status == 200, "other routes need none here"
        refused = client.request("GET", f"/api/instructions{path}")
        assert (refused.status, refused.code) == (401, "key_required")
        client.service.has_sample_only = True
        assert client.request("GET", f"/api/instructions{path}").status in (200, 404)


def test_error_of_an_instruction_page_says_what_to_do(published_service: InstructionService) -> None:
    assert published_service.request("GET", "/api/instructions/none").code == "agent_not_found"
    assert published_service.request("GET", f"/api/instructions/{AGENT}/recall?intent=+").code == "intent_required"
    assert published_service.request("PUT", "/v1/agents/bare", {}).status == 200
    assert published_service.request("GET", "/api/instructions/bare").json["units"] == []
    assert published_service.request("GET", "/api/instructions/bare/recall?intent=x").code == "manifest_not_found"
    with serve_store(MemoryStore()) as client:
        assert client.get("/api/instructions") == {"enabled": False, "agents": [], "more": False}
        assert client.request("GET", "/api/instructions/a").code == "instructions_disabled"


def test_sample_is_written_once_and_covers_every_view(tmp_path: Path) -> None:
    with serve_instructions("sqlite", tmp_path, encoder=None) as service:
        for _ in range(2):
            add_sample_instructions(service.library, clock=service.clock, new_id=CountingIds("sample"))
        agent_page = service.request("GET", f"/api/instructions/{SAMPLE}").json
        assert [version["version"] for version in agent_page["versions"]] == ["v2", "v1"]
        assert agent_page["versions"][0]["cosigned_by"] == ["sample:user/ann", "sample:user/ben"]
        assert [(one["unit"], one["needs"]) for one in agent_page["pending"]] == [(GUARANTEED, ["guarantee_load"])]
        assert agent_page["agent"]["failing"] == 1
        assert any(failure["found_instead"] for unit in agent_page["units"] for failure in unit["failures"])
        days = service.request("GET", f"/api/instructions/{SAMPLE}/days").json
        assert sum(day["recalls"] > 0 for day in days["days"]) >= 7
        assert sum(day["missed"] for day in days["days"]) > 0
