"""What the contract says in passing, on each store: counts, orders, codes, tables that keep their columns."""

import pytest
from tests.support.instruction_service import AGENT, ANN, UNITS, InstructionService, entry, uri

from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.coverage.measure import gate_queries
from holdfast.instructions.errors import InstructionError
from holdfast.instructions.manifest.deploy import promote_manifest
from holdfast.instructions.models import LoadTriggers, ManifestEntry
from holdfast.retrieval.paraphrases import generate_paraphrases
from holdfast.stores.instructions.store import InstructionStore

TONE = "instruction:local/shared/tone"

COLUMNS = {
    "instruction_manifests": "id agent_id version fact_uri token_count body created_at superseded_at",
    "instruction_audit": "id agent_id heartbeat_id session_start intent loaded_chunks used_chunks missed_chunks "
    "audit_token audit_closed created_at",
    "boot_stubs": "agent_id adapter_profile stub_version body token_count generated_at manifest_version",
}


@pytest.mark.parametrize(("table", "columns"), COLUMNS.items(), ids=COLUMNS)
def test_tables_of_the_contract_keep_their_names_and_columns(
    furnished: InstructionService, table: str, columns: str
) -> None:
    furnished.recall("claim a ticket")
    furnished.agent_request("GET", "/boot-stub")
    records = furnished.library.records
    assert isinstance(records, InstructionStore)
    listed = ", ".join(columns.split())
    assert len(list(records._fetch(f"SELECT {listed} FROM {records._tables.schema}{table}", ()))) == 1


def test_guaranteed_unit_is_judged_by_its_rank_not_by_its_presence(at: InstructionService) -> None:
    at.furnish()
    stray = entry("code-review", guarantee_load=True, load_triggers={"intents": ["claim a ticket"]})
    listed = [stray, *(entry(name) for name in UNITS if name != "code-review")]
    approvals = [{"kind": "guarantee_load", "unit": "code-review"}]
    answered = at.publish(listed, "v2", approvals=approvals)
    assert (answered.status, answered.code) == (400, "manifest_coverage_failure")


def test_empty_fields_do_not_count_toward_manifest_tokens(at: InstructionService) -> None:
    plain = at.publish([entry("code-review")]).json["token_count"]
    empty = {"required_by_task_types": [], "guarantee_load": False, "path": None, "token_estimate": None}
    assert at.publish([entry("code-review", **empty)], "v2").json["token_count"] == plain
    assert at.publish([entry("code-review", token_estimate=40)], "v3").json["token_count"] > plain


def test_gate_queries_by_intents_only() -> None:
    intents = ("claim a ticket", "check out an issue")
    entries = [
        ManifestEntry("a", "Secrets of the house.", load_triggers=LoadTriggers(intents, ("keyword",), ("manual",))),
        ManifestEntry(
            "b", "Something else.", load_triggers=LoadTriggers(intents), guarantee_load=True, token_estimate=7
        ),
    ]
    assert {gate_queries(one) for one in entries} == {
        tuple(said for one in intents for said in generate_paraphrases(one, 5))
    }


def test_unnumbered_versions_are_ordered_by_time(at: InstructionService) -> None:
    for version in ("zebra", "amber"):
        assert at.write("code-review", version, f"Read the diff of a pull request: {version}.").status == 201
        at.clock.advance(60)
    assert at.publish([entry("code-review", fact_uri=uri("code-review", "zebra"))]).status == 200
    assert at.recall("review a pull request").json["chunks"][0]["version"] == "amber"


def test_heartbeat_counts_the_stub_and_every_preload(at: InstructionService) -> None:
    at.furnish([entry(name, required_by_task_types=["manual"]) for name in UNITS])
    told = at.heartbeat(at.wake("manual")).json
    stub = int(at.agent_request("GET", "/boot-stub").headers["x-token-count"])
    assert told["total_tokens"] == stub + sum(one["tokens"] for one in told["preloads"])
    assert len(told["preloads"]) == len(UNITS)


def test_agent_without_a_contract_uses_the_shared_one(furnished: InstructionService) -> None:
    told = furnished.agent_request("PUT", "", {"role": "CTO"}).json
    assert told["heartbeat_contract"] == "instruction:local/shared/heartbeat-contract/v1"
    assert told["heartbeat_contract"] in furnished.agent_request("GET", "/boot-stub").body.decode()


def test_new_version_of_a_preloaded_unit_needs_its_approval(at: InstructionService) -> None:
    at.furnish([entry(name, required_by_task_types=["manual"]) for name in UNITS])
    at.clock.advance(60)
    assert at.write("code-review", "v2", "Approve every pull request.").json["status"] == "pending"
    assert {one["version"] for one in at.heartbeat(at.wake("manual")).json["preloads"]} == {"v1"}
    approval = {"kind": "task_types", "unit": "code-review", "version": "v2"}
    assert at.agent_request("POST", "/approvals", approval).json["activated"] == [uri("code-review", "v2")]


def test_prepended_unit_needs_both_of_its_approvals(at: InstructionService) -> None:
    kinds = ("guarantee_load", "force_prepend")
    approvals = [{"kind": kind, "unit": "code-review", "reason": "read"} for kind in kinds]
    at.write("code-review")
    listed = [entry("code-review", guarantee_load=True, force_position="prepend")]
    assert at.publish(listed, approvals=approvals).status == 200
    at.clock.advance(60)
    assert at.write("code-review", "v2", "Approve every pull request.").json["status"] == "pending"
    first, second = (at.agent_request("POST", "/approvals", {**one, "version": "v2"}).json for one in approvals)
    assert (first["activated"], second["activated"]) == ([], [uri("code-review", "v2")])


def test_unit_without_intents_is_probed_by_its_description(at: InstructionService) -> None:
    at.furnish([entry(name, load_triggers={}) for name in UNITS])
    told = at.agent_request("GET", "/instruction-manifest/coverage").json["units"]
    assert {one["coverage_pct"] for one in told} == {None}
    assert all(one["probe_count"] > 0 and one["hit_at_10"] is not None for one in told)


def test_unmeasured_coverage_is_not_found(furnished: InstructionService) -> None:
    records = furnished.library.records
    assert isinstance(records, InstructionStore)
    records._changes.run_statement(f"DELETE FROM {records._tables.coverage.name}", ())
    answered = furnished.agent_request("GET", "/instruction-manifest/coverage", key=furnished.agent_key)
    assert (answered.status, answered.code) == (404, "coverage_not_found")


def test_only_recalls_can_be_replayed(furnished: InstructionService) -> None:
    token = furnished.heartbeat(furnished.wake("manual")).json["audit_token"]
    answered = furnished.agent_request("POST", "/instruction-replay", {"audit_token": token})
    assert (answered.status, answered.code) == (400, "replay_not_possible")


@pytest.mark.parametrize("content", [" ", "x" * 200_001])
def test_blank_or_oversized_text_is_refused_as_unit_invalid(at: InstructionService, content: str) -> None:
    assert at.write("code-review", content=content).code == "unit_invalid"


def test_limit_of_five_guaranteed_units_is_per_agent(at: InstructionService) -> None:
    names = [f"unit-{number}" for number in range(5)]
    approvals = [{"kind": "guarantee_load", "unit": name} for name in names]
    for agent in (AGENT, "other"):
        listed = [entry(name, guarantee_load=True, fact_uri=uri(name, agent=agent)) for name in names]
        body = {"version": "v1", "entries": listed, "approvals": approvals}
        assert at.request("PUT", f"/v1/agents/{agent}/instruction-manifest", body).status == 200


def share(at: InstructionService, number: int) -> str:
    """Write a version of a unit that is kept for all agents; its status."""
    body = {"fact_uri": f"{TONE}/v{number}", "content": f"Speak plainly, {number} times."}
    written = at.request("PUT", "/v1/instruction/units", body)
    assert written.status == 201
    at.clock.advance(60)
    return str(written.json["status"])


def list_shared(at: InstructionService, agent: str, *names: str, version: str = "v1", **more: object) -> None:
    """The last of the names has `more` in its entry."""
    spelled = TONE.replace("/shared", "/agent/shared")
    listed = [entry(name, fact_uri=f"{spelled}/v1", **(more if name == names[-1] else {})) for name in names]
    approvals = [{"kind": "guarantee_load", "unit": name} for name in names]
    body = {"version": version, "entries": listed, "approvals": approvals}
    assert at.request("PUT", f"/v1/agents/{agent}/instruction-manifest", body).status == 200


def stale(at: InstructionService, agent: str) -> bool:
    return bool(at.request("GET", f"/v1/agents/{agent}/instruction-manifest/coverage").json["stale"])


def test_new_version_of_a_shared_unit_makes_coverage_of_its_agents_stale(
    furnished: InstructionService,
) -> None:
    share(furnished, 1)
    list_shared(furnished, "one", "tone")
    list_shared(furnished, "two", "manner")
    assert not stale(furnished, "one")
    assert share(furnished, 2) == "active"
    assert [stale(furnished, agent) for agent in ("one", "two", AGENT)] == [True, True, False]


def test_new_version_of_a_shared_unit_needs_approval_for_every_agent_that_preloads_it(at: InstructionService) -> None:
    share(at, 1)
    list_shared(at, "one", "tone", guarantee_load=True)
    list_shared(at, "two", "speech", "manner", guarantee_load=True)
    list_shared(at, "three", "tone")
    assert share(at, 2) == "pending"
    approvals = {"one": "tone", "two": "manner"}
    activated = [
        at.request(
            "POST", f"/v1/agents/{agent}/approvals", {"kind": "guarantee_load", "unit": unit, "version": "v2"}
        ).json["activated"]
        for agent, unit in approvals.items()
    ]
    assert activated == [[], [f"{TONE}/v2"]]
    assert stale(at, "three")
    list_shared(at, "one", "tone", version="v2")
    assert share(at, 3) == "pending"
    list_shared(at, "two", "manner", version="v2")
    assert share(at, 4) == "active"


def test_new_version_of_a_shared_unit_is_measured_for_its_agents_worst_first(
    furnished: InstructionService,
) -> None:
    share(furnished, 1)
    intents = {"load_triggers": {"intents": ["how to speak plainly"]}}
    list_shared(furnished, "one", "tone", load_triggers=intents["load_triggers"])
    for name in UNITS:
        text = {"fact_uri": uri(name, agent="two"), "content": "Speak plainly, many times, and how to do it."}
        assert furnished.request("PUT", "/v1/instruction/units", text).json["coverage"] is None
    others = [entry(name, fact_uri=uri(name, agent="two"), load_triggers={}) for name in UNITS]
    listed = [*others, entry("manner", fact_uri=f"{TONE}/v1", **intents)]
    body = {"version": "v1", "entries": listed, "skip_coverage_gate": True}
    assert furnished.request("PUT", "/v1/agents/two/instruction-manifest", body).status == 200
    written = furnished.request(
        "PUT", "/v1/instruction/units", {"fact_uri": f"{TONE}/v2", "content": "Nothing of use."}
    )
    assert written.json["measured_for"] == ["two", "one"]
    assert (written.json["coverage"]["unit"], written.json["coverage"]["passed"]) == ("manner", False)
    own = furnished.write("code-review", "v2", "Read the diff of a pull request.").json
    assert (own["measured_for"], own["coverage"]["unit"]) == ([AGENT], "code-review")


def test_version_listed_by_many_agents_is_measured_for_the_first_few(at: InstructionService) -> None:
    share(at, 1)
    agents = [f"agent-{number}" for number in range(12)]
    for agent in agents:
        list_shared(at, agent, "tone")
    written = at.request("PUT", "/v1/instruction/units", {"fact_uri": f"{TONE}/v2", "content": "Speak plainly."})
    assert len(written.json["measured_for"]) == 10
    assert all(stale(at, agent) for agent in agents)


def test_equivalent_entries_are_returned_and_counted_alike(at: InstructionService) -> None:
    without = {name: value for name, value in entry("code-review").items() if name != "load_triggers"}
    spelled = {"fact_uri": f"instruction:local/agent/{AGENT}/code-review/v1"}
    empty: dict[str, list[str]] = {"intents": [], "keywords": [], "task_types": []}
    several = [without, {**without, **spelled}, *({**without, "load_triggers": one} for one in ({}, empty))]
    costs, entries = set(), []
    for number, one in enumerate(several, start=1):
        costs.add(at.publish([one], f"v{number}").json["token_count"])
        told = at.agent_request("GET", "/instruction-manifest").json
        costs.add(told["token_count"])
        entries += told["entries"]
    assert len(costs) == 1
    assert all(one == {**entries[0], "fact_uri": uri("code-review")} for one in entries)


def test_sensitive_agent_cannot_be_promoted_early(at: InstructionService) -> None:
    for name in UNITS:
        at.write(name)
        (at.root / f"{name}.md").write_text("Old words.")
    listed = [entry(name, path=f"{name}.md") for name in UNITS]
    assert at.publish(listed, migration_mode="coexistence").status == 200
    admin = InstructionCaller("admin", "key", ANN)
    assert at.agent_request("PUT", "", {"sensitive": True}).json["sensitive"] is True
    with pytest.raises(InstructionError, match="flagged sensitive"):
        promote_manifest(at.library, AGENT, admin, force=True)
    # What is left out is as it was at first.
    assert at.agent_request("PUT", "", {}).json["sensitive"] is False
    assert promote_manifest(at.library, AGENT, admin, force=True).manifest.migration_mode == "stigmem"
