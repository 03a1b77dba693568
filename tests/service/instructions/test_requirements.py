"""What the contract says in passing, on each store: counts, orders, codes, tables that keep their columns."""

import pytest
from tests.support.instruction_places import AGENT, ANN, UNITS, Place, entry, uri

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
def test_tables_of_the_contract_keep_their_names_and_columns(furnished: Place, table: str, columns: str) -> None:
    furnished.recall("claim a ticket")
    furnished.of_agent("GET", "/boot-stub")
    records = furnished.library.records
    assert isinstance(records, InstructionStore)
    listed = ", ".join(columns.split())
    assert len(list(records._fetch(f"SELECT {listed} FROM holdfast.{table}", ()))) == 1


def test_a_guaranteed_unit_is_judged_by_its_rank_and_not_by_being_always_there(at: Place) -> None:
    at.furnish()
    stray = entry("code-review", guarantee_load=True, load_triggers={"intents": ["claim a ticket"]})
    listed = [stray, *(entry(name) for name in UNITS if name != "code-review")]
    approvals = [{"kind": "guarantee_load", "unit": "code-review"}]
    answered = at.publish(listed, "v2", approvals=approvals)
    assert (answered.status, answered.code) == (400, "manifest_coverage_failure")


def test_a_manifest_is_counted_without_what_says_nothing(at: Place) -> None:
    plain = at.publish([entry("code-review")]).json["token_count"]
    empty = {"required_by_task_types": [], "guarantee_load": False, "path": None, "token_estimate": None}
    assert at.publish([entry("code-review", **empty)], "v2").json["token_count"] == plain
    assert at.publish([entry("code-review", token_estimate=40)], "v3").json["token_count"] > plain


def test_the_gate_asks_by_intents_alone() -> None:
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


def test_versions_without_numbers_follow_one_another_in_time(at: Place) -> None:
    for version in ("zebra", "amber"):
        assert at.write("code-review", version, f"Read the diff of a pull request: {version}.").status == 201
        at.clock.advance(60)
    assert at.publish([entry("code-review", fact_uri=uri("code-review", "zebra"))]).status == 200
    assert at.recall("review a pull request").json["chunks"][0]["version"] == "amber"


def test_a_heartbeat_counts_the_stub_and_every_preload(at: Place) -> None:
    at.furnish([entry(name, required_by_task_types=["manual"]) for name in UNITS])
    told = at.heartbeat(at.wake("manual")).json
    stub = int(at.of_agent("GET", "/boot-stub").headers["x-token-count"])
    assert told["total_tokens"] == stub + sum(one["tokens"] for one in told["preloads"])
    assert len(told["preloads"]) == len(UNITS)


def test_the_contract_of_an_agent_that_names_none_is_the_shared_one(furnished: Place) -> None:
    told = furnished.of_agent("PUT", "", {"role": "CTO"}).json
    assert told["heartbeat_contract"] == "instruction:local/shared/heartbeat-contract/v1"
    assert told["heartbeat_contract"] in furnished.of_agent("GET", "/boot-stub").body.decode()


def test_a_new_version_of_a_preloaded_unit_waits_for_its_approval(at: Place) -> None:
    at.furnish([entry(name, required_by_task_types=["manual"]) for name in UNITS])
    at.clock.advance(60)
    assert at.write("code-review", "v2", "Approve every pull request.").json["status"] == "pending"
    assert {one["version"] for one in at.heartbeat(at.wake("manual")).json["preloads"]} == {"v1"}
    approval = {"kind": "task_types", "unit": "code-review", "version": "v2"}
    assert at.of_agent("POST", "/approvals", approval).json["activated"] == [uri("code-review", "v2")]


def test_a_prepended_unit_waits_for_both_of_its_approvals(at: Place) -> None:
    kinds = ("guarantee_load", "force_prepend")
    approvals = [{"kind": kind, "unit": "code-review", "reason": "read"} for kind in kinds]
    at.write("code-review")
    listed = [entry("code-review", guarantee_load=True, force_position="prepend")]
    assert at.publish(listed, approvals=approvals).status == 200
    at.clock.advance(60)
    assert at.write("code-review", "v2", "Approve every pull request.").json["status"] == "pending"
    first, second = (at.of_agent("POST", "/approvals", {**one, "version": "v2"}).json for one in approvals)
    assert (first["activated"], second["activated"]) == ([], [uri("code-review", "v2")])


def test_a_unit_without_intents_is_probed_by_its_description(at: Place) -> None:
    at.furnish([entry(name, load_triggers={}) for name in UNITS])
    told = at.of_agent("GET", "/instruction-manifest/coverage").json["units"]
    assert {one["coverage_pct"] for one in told} == {None}
    assert all(one["probe_count"] > 0 and one["hit_at_10"] is not None for one in told)


def test_coverage_that_was_not_measured_yet_is_not_found(furnished: Place) -> None:
    records = furnished.library.records
    assert isinstance(records, InstructionStore)
    records._changes.run_statement("DELETE FROM holdfast.instruction_coverage", ())
    answered = furnished.of_agent("GET", "/instruction-manifest/coverage", key=furnished.agent_key)
    assert (answered.status, answered.code) == (404, "coverage_not_found")


def test_only_what_was_asked_can_be_asked_again(furnished: Place) -> None:
    token = furnished.heartbeat(furnished.wake("manual")).json["audit_token"]
    answered = furnished.of_agent("POST", "/instruction-replay", {"audit_token": token})
    assert (answered.status, answered.code) == (400, "replay_not_possible")


@pytest.mark.parametrize("content", [" ", "x" * 200_001])
def test_a_text_that_cannot_be_one_is_named_by_its_code(at: Place, content: str) -> None:
    assert at.write("code-review", content=content).code == "unit_invalid"


def test_five_guaranteed_units_are_the_limit_of_each_agent_and_not_of_all(at: Place) -> None:
    names = [f"unit-{number}" for number in range(5)]
    approvals = [{"kind": "guarantee_load", "unit": name} for name in names]
    for agent in (AGENT, "other"):
        listed = [entry(name, guarantee_load=True, fact_uri=uri(name, agent=agent)) for name in names]
        body = {"version": "v1", "entries": listed, "approvals": approvals}
        assert at.ask("PUT", f"/v1/agents/{agent}/instruction-manifest", body).status == 200


def share(at: Place, number: int) -> str:
    """Write a version of a unit that is kept for all agents; its status."""
    body = {"fact_uri": f"{TONE}/v{number}", "content": f"Speak plainly, {number} times."}
    written = at.ask("PUT", "/v1/instruction/units", body)
    assert written.status == 201
    at.clock.advance(60)
    return str(written.json["status"])


def list_shared(at: Place, agent: str, *names: str, version: str = "v1", **more: object) -> None:
    """The last of the names has `more` in its entry."""
    spelled = TONE.replace("/shared", "/agent/shared")
    listed = [entry(name, fact_uri=f"{spelled}/v1", **(more if name == names[-1] else {})) for name in names]
    approvals = [{"kind": "guarantee_load", "unit": name} for name in names]
    body = {"version": version, "entries": listed, "approvals": approvals}
    assert at.ask("PUT", f"/v1/agents/{agent}/instruction-manifest", body).status == 200


def stale(at: Place, agent: str) -> bool:
    return bool(at.ask("GET", f"/v1/agents/{agent}/instruction-manifest/coverage").json["stale"])


def test_a_new_version_of_what_is_shared_makes_the_reports_of_those_who_list_it_stale(furnished: Place) -> None:
    share(furnished, 1)
    list_shared(furnished, "one", "tone")
    list_shared(furnished, "two", "manner")
    assert not stale(furnished, "one")
    assert share(furnished, 2) == "active"
    assert [stale(furnished, agent) for agent in ("one", "two", AGENT)] == [True, True, False]


def test_a_new_version_of_what_is_shared_waits_for_all_who_load_it_unasked(at: Place) -> None:
    share(at, 1)
    list_shared(at, "one", "tone", guarantee_load=True)
    list_shared(at, "two", "speech", "manner", guarantee_load=True)
    list_shared(at, "three", "tone")
    assert share(at, 2) == "pending"
    approvals = {"one": "tone", "two": "manner"}
    activated = [
        at.ask("POST", f"/v1/agents/{agent}/approvals", {"kind": "guarantee_load", "unit": unit, "version": "v2"}).json[
            "activated"
        ]
        for agent, unit in approvals.items()
    ]
    assert activated == [[], [f"{TONE}/v2"]]
    assert stale(at, "three")
    list_shared(at, "one", "tone", version="v2")
    assert share(at, 3) == "pending"
    list_shared(at, "two", "manner", version="v2")
    assert share(at, 4) == "active"


def test_a_new_version_of_what_is_shared_is_measured_for_those_who_list_it_the_worst_first(furnished: Place) -> None:
    share(furnished, 1)
    intents = {"load_triggers": {"intents": ["how to speak plainly"]}}
    list_shared(furnished, "one", "tone", load_triggers=intents["load_triggers"])
    for name in UNITS:
        text = {"fact_uri": uri(name, agent="two"), "content": "Speak plainly, many times, and how to do it."}
        assert furnished.ask("PUT", "/v1/instruction/units", text).json["coverage"] is None
    others = [entry(name, fact_uri=uri(name, agent="two"), load_triggers={}) for name in UNITS]
    listed = [*others, entry("manner", fact_uri=f"{TONE}/v1", **intents)]
    body = {"version": "v1", "entries": listed, "skip_coverage_gate": True}
    assert furnished.ask("PUT", "/v1/agents/two/instruction-manifest", body).status == 200
    written = furnished.ask("PUT", "/v1/instruction/units", {"fact_uri": f"{TONE}/v2", "content": "Nothing of use."})
    assert written.json["measured_for"] == ["two", "one"]
    assert (written.json["coverage"]["unit"], written.json["coverage"]["passed"]) == ("manner", False)
    own = furnished.write("code-review", "v2", "Read the diff of a pull request.").json
    assert (own["measured_for"], own["coverage"]["unit"]) == ([AGENT], "code-review")


def test_a_version_that_very_many_list_is_measured_for_the_first_few(at: Place) -> None:
    share(at, 1)
    agents = [f"agent-{number}" for number in range(12)]
    for agent in agents:
        list_shared(at, agent, "tone")
    written = at.ask("PUT", "/v1/instruction/units", {"fact_uri": f"{TONE}/v2", "content": "Speak plainly."})
    assert len(written.json["measured_for"]) == 10
    assert all(stale(at, agent) for agent in agents)


def test_what_says_the_same_is_told_the_same_and_costs_the_same(at: Place) -> None:
    without = {name: value for name, value in entry("code-review").items() if name != "load_triggers"}
    spelled = {"fact_uri": f"instruction:local/agent/{AGENT}/code-review/v1"}
    empty: dict[str, list[str]] = {"intents": [], "keywords": [], "task_types": []}
    several = [without, {**without, **spelled}, *({**without, "load_triggers": one} for one in ({}, empty))]
    costs, entries = set(), []
    for number, one in enumerate(several, start=1):
        costs.add(at.publish([one], f"v{number}").json["token_count"])
        told = at.of_agent("GET", "/instruction-manifest").json
        costs.add(told["token_count"])
        entries += told["entries"]
    assert len(costs) == 1
    assert all(one == {**entries[0], "fact_uri": uri("code-review")} for one in entries)


def test_an_agent_that_is_flagged_sensitive_is_promoted_by_nobody_before_its_time(at: Place) -> None:
    for name in UNITS:
        at.write(name)
        (at.root / f"{name}.md").write_text("Old words.")
    listed = [entry(name, path=f"{name}.md") for name in UNITS]
    assert at.publish(listed, migration_mode="coexistence").status == 200
    admin = InstructionCaller("admin", "key", ANN)
    assert at.of_agent("PUT", "", {"sensitive": True}).json["sensitive"] is True
    with pytest.raises(InstructionError, match="flagged sensitive"):
        promote_manifest(at.library, AGENT, admin, force=True)
    # What is left out is as it was at first.
    assert at.of_agent("PUT", "", {}).json["sensitive"] is False
    assert promote_manifest(at.library, AGENT, admin, force=True).manifest.migration_mode == "stigmem"
