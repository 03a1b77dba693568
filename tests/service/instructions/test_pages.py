"""What the page is told about instructions: the same that agents get and admins decide on, and nothing on record."""

from pathlib import Path

import pytest
from tests.support.instruction_service import AGENT, UNITS, InstructionService, entry, serve_instructions
from tests.support.served_service import serve_store

from holdfast.clock import CountingIds
from holdfast.service.sample.instructions import AGENT as SAMPLE
from holdfast.service.sample.instructions import GUARANTEED, add_sample_instructions
from holdfast.stores.memory import MemoryStore

PATHS = ("", f"/{AGENT}", f"/{AGENT}/recall?intent=x", f"/{AGENT}/days")


def test_agents_are_listed_by_page_with_failures_and_pending_approvals(furnished: InstructionService) -> None:
    for name in ("a", "b"):
        assert furnished.request("PUT", f"/v1/agents/{name}", {"role": "tester"}).status == 200
    told = furnished.request("GET", "/api/instructions?limit=2").json
    assert (told["enabled"], told["more"]) == (True, True)
    first = told["agents"][0]
    assert (first["agent_id"], first["manifest_version"], first["units"]) == (AGENT, "v1", len(UNITS))
    assert (first["failing"], first["pending"], first["role"]) == (0, 0, "")
    rest = furnished.request("GET", "/api/instructions?limit=2&skip=2").json
    assert [one["agent_id"] for one in (*told["agents"], *rest["agents"])] == [AGENT, "a", "b"]
    assert (rest["more"], rest["agents"][0]["manifest_version"]) == (False, None)


def test_units_are_listed_with_their_coverage_and_the_units_found_instead(furnished: InstructionService) -> None:
    told = furnished.request("GET", f"/api/instructions/{AGENT}").json
    run = furnished.library.records.coverage(AGENT)
    assert run is not None
    assert [(one["name"], one["coverage_pct"], one["failures"]) for one in told["units"]] == [
        (one.unit, one.coverage_pct, [{"query": it.query, "found_instead": it.found_instead} for it in one.failures])
        for one in run.units
    ]
    assert {one["version"] for one in told["units"]} == {"v1"}
    assert (told["coverage"]["kind"], told["coverage"]["skipped"]) == ("gate", False)


def test_manifest_versions_are_listed_newest_first(furnished: InstructionService) -> None:
    furnished.clock.advance(60)
    assert furnished.publish([entry("code-review"), entry("budget-rules")], "v2").status == 200
    told = furnished.request("GET", f"/api/instructions/{AGENT}").json["versions"]
    assert [(one["version"], one["units"]) for one in told] == [("v2", 2), ("v1", len(UNITS))]
    assert told[0]["superseded_at"] is None
    assert told[1]["superseded_at"] == told[0]["published_at"]


def test_version_is_pending_until_all_its_approvals_exist(at: InstructionService) -> None:
    approval = {"kind": "guarantee_load", "unit": "security-posture", "reason": "always"}
    entries = [entry(name, guarantee_load=name == "security-posture") for name in UNITS]
    at.furnish(entries, approvals=[approval])
    assert at.write("security-posture", "v2", "Never print keys.").json["status"] == "pending"
    (line,) = at.request("GET", f"/api/instructions/{AGENT}").json["pending"]
    assert (line["unit"], line["version"], line["needs"]) == ("security-posture", "v2", ["guarantee_load"])
    assert line["content"] == "Never print keys."
    assert at.request("GET", "/api/instructions").json["agents"][0]["pending"] == 1
    assert at.agent_request("POST", "/approvals", {**approval, "version": "v2"}).json["activated"]
    assert at.request("GET", f"/api/instructions/{AGENT}").json["pending"] == []


def test_version_with_an_unknown_signer_is_pending_a_signature(furnished: InstructionService) -> None:
    assert furnished.write("code-review", "v2", "Other.", signature="AAAA").json["status"] == "quarantined"
    (line,) = furnished.request("GET", f"/api/instructions/{AGENT}").json["pending"]
    assert (line["status"], line["needs"]) == ("quarantined", [])


def test_explorer_shows_what_a_recall_loads_and_records_nothing(furnished: InstructionService) -> None:
    told = furnished.request("GET", f"/api/instructions/{AGENT}/recall?intent=claim+a+ticket").json
    assert furnished.records() == []
    loaded = sorted((one for one in told["units"] if one["rank"]), key=lambda one: one["rank"])
    recalled = furnished.recall("claim a ticket", explain=True).json
    assert [one["name"] for one in loaded] == [one["name"] for one in recalled["chunks"]]
    assert [one["stages"] for one in loaded] == [one["why"]["stages"] for one in recalled["chunks"]]
    assert told["total_tokens"] == recalled["total_tokens"]
    left_out = {one["name"]: one["outcome"] for one in told["units"] if not one["rank"]}
    assert left_out == {one["name"]: one["reason"] for one in recalled["dropped"]}
    assert {one["name"] for one in told["units"]} == UNITS.keys()
    below = {one["name"] for one in told["units"] if one["relevance"] < told["floor"]}
    assert below == {name for name, reason in left_out.items() if reason == "below_floor"} != set()


def test_daily_metrics_add_up_to_the_totals(furnished: InstructionService) -> None:
    for used, missed in ((["code-review"], []), ([], ["budget-rules"]), (["code-review"], ["budget-rules"])):
        token = furnished.recall("review a pull request").json["audit_token"]
        closed = {"audit_token": token, "used_chunks": used, "missed_chunks": missed}
        assert furnished.request("POST", "/v1/instruction/audit", closed).status == 204
        furnished.clock.advance(86_400)
    told = furnished.request("GET", f"/api/instructions/{AGENT}/days?days=5").json
    whole = furnished.agent_request("GET", "/instruction-measures?days=5").json
    assert told["total"] == whole
    assert len(told["days"]) == 5
    assert [(one["used"], one["missed"]) for one in told["days"]] == [(0, 0), (1, 0), (0, 1), (1, 1), (0, 0)]
    assert [one["miss_rate"] for one in told["days"]] == [None, 0.0, 1.0, 0.5, None]
    assert sum(one["recalls"] for one in told["days"]) == whole["recalls"] == 3


@pytest.mark.parametrize("path", PATHS)
def test_only_admins_see_instruction_pages(tmp_path: Path, path: str) -> None:
    with serve_instructions("sqlite", tmp_path) as at:
        for key in (at.client.key("read"), at.agent_key):
            answered = at.request("GET", f"/api/instructions{path}", key=key)
            assert (answered.status, answered.code) == (403, "instruction_scope_denied")
        assert at.client.request("GET", f"/api/instructions{path}").code == "key_required"


@pytest.mark.parametrize("path", PATHS)
def test_instruction_pages_require_a_key_even_before_one_exists(tmp_path: Path, path: str) -> None:
    """A command or a program can have written them without a key; a sample is nobody's."""
    with serve_instructions("sqlite", tmp_path) as kept, serve_store(MemoryStore(), library=kept.library) as client:
        assert client.request("GET", "/api/visitor").status == 200, "other routes need none here"
        refused = client.request("GET", f"/api/instructions{path}")
        assert (refused.status, refused.code) == (401, "key_required")
        client.service.has_sample_only = True
        assert client.request("GET", f"/api/instructions{path}").status in (200, 404)


def test_error_of_an_instruction_page_says_what_to_do(furnished: InstructionService) -> None:
    assert furnished.request("GET", "/api/instructions/none").code == "agent_not_found"
    assert furnished.request("GET", f"/api/instructions/{AGENT}/recall?intent=+").code == "intent_required"
    assert furnished.request("PUT", "/v1/agents/bare", {}).status == 200
    assert furnished.request("GET", "/api/instructions/bare").json["units"] == []
    assert furnished.request("GET", "/api/instructions/bare/recall?intent=x").code == "manifest_not_found"
    with serve_store(MemoryStore()) as client:
        assert client.get("/api/instructions") == {"enabled": False, "agents": [], "more": False}
        assert client.request("GET", "/api/instructions/a").code == "instructions_disabled"


def test_sample_is_written_once_and_covers_every_view(tmp_path: Path) -> None:
    with serve_instructions("sqlite", tmp_path, encoder=None) as at:
        for _ in range(2):
            add_sample_instructions(at.library, clock=at.clock, new_id=CountingIds("sample"))
        told = at.request("GET", f"/api/instructions/{SAMPLE}").json
        assert [one["version"] for one in told["versions"]] == ["v2", "v1"]
        assert told["versions"][0]["cosigned_by"] == ["sample:user/ann", "sample:user/ben"]
        assert [(one["unit"], one["needs"]) for one in told["pending"]] == [(GUARANTEED, ["guarantee_load"])]
        assert told["agent"]["failing"] == 1
        assert any(failure["found_instead"] for one in told["units"] for failure in one["failures"])
        days = at.request("GET", f"/api/instructions/{SAMPLE}/days").json
        assert sum(one["recalls"] > 0 for one in days["days"]) >= 7
        assert sum(one["missed"] for one in days["days"]) > 0
