"""Details of the contract on each store: counts, orders, error codes, table columns."""

import pytest
from tests.support.instruction_service import AGENT, ANN, UNITS, InstructionService, entry, uri

from holdfast.errors import InstructionError
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.coverage.measure import gate_queries
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
    published_service: InstructionService, table: str, columns: str
) -> None:
    published_service.recall("claim a ticket")
    published_service.agent_request("GET", "/boot-stub")
    records = published_service.library.records
    assert isinstance(records, InstructionStore)
    listed = ", ".join(columns.split())
    assert len(list(records._fetch(f"SELECT {listed} FROM holdfast.{table}", ()))) == 1


def test_guaranteed_unit_is_judged_by_its_rank_not_by_its_presence(service: InstructionService) -> None:
    service.publish_all()
    stray = entry("code-review", guarantee_load=True, load_triggers={"intents": ["claim a ticket"]})
    listed = [stray, *(entry(name) for name in UNITS if name != "code-review")]
    approvals = [{"kind": "guarantee_load", "unit": "code-review"}]
    response = service.publish(listed, "v2", approvals=approvals)
    assert (response.status, response.code) == (400, "manifest_coverage_failure")


def test_empty_fields_do_not_count_toward_manifest_tokens(service: InstructionService) -> None:
    service.write_all()
    plain = service.publish([entry("code-review")]).json["token_count"]
    empty = {"required_by_task_types": [], "guarantee_load": False, "path": None, "token_estimate": None}
    assert service.publish([entry("code-review", **empty)], "v2").json["token_count"] == plain
    longer = entry("code-review", description="How to review a pull request, read all of it, and leave comments.")
    assert service.publish([longer], "v3").json["token_count"] > plain


def test_gate_queries_by_intents_only() -> None:
    intents = ("claim a ticket", "check out an issue")
    entries = [
        ManifestEntry("a", "Secrets of the house.", load_triggers=LoadTriggers(intents, ("keyword",), ("manual",))),
        ManifestEntry(
            "b", "Something else.", load_triggers=LoadTriggers(intents), guarantee_load=True, token_estimate=7
        ),
    ]
    assert {gate_queries(one) for one in entries} == {
        tuple(paraphrase for intent in intents for paraphrase in generate_paraphrases(intent, 5))
    }


def test_heartbeat_counts_the_stub_and_every_preload(service: InstructionService) -> None:
    service.publish_all([entry(name, required_by_task_types=["manual"]) for name in UNITS])
    heartbeat = service.heartbeat(service.wake("manual")).json
    stub = int(service.agent_request("GET", "/boot-stub").headers["x-token-count"])
    assert heartbeat["total_tokens"] == stub + sum(preload["tokens"] for preload in heartbeat["preloads"])
    assert len(heartbeat["preloads"]) == len(UNITS)


def test_stub_names_a_heartbeat_contract_only_if_one_was_published(published_service: InstructionService) -> None:
    def stub() -> str:
        return published_service.agent_request("GET", "/boot-stub").body.decode()

    assert "heartbeat_contract: null" in stub()
    assert "heartbeat procedure" not in stub()
    shared = {"fact_uri": "instruction:local/shared/heartbeat-contract/v1", "content": "Begin with the inbox."}
    assert published_service.request("PUT", "/v1/instruction/units", shared).status == 201
    assert "Your heartbeat procedure is at `instruction:local/shared/heartbeat-contract/v1`." in stub()
    missing = {"heartbeat_contract": f"instruction:local/{AGENT}/nowhere/v1"}
    assert published_service.agent_request("PUT", "", missing).status == 200
    assert "heartbeat procedure" not in stub()
    published_service.agent_request("PUT", "", {"heartbeat_contract": "https://acme.test/h"})
    assert "Your heartbeat procedure is at `https://acme.test/h`." in stub()


def test_new_version_of_a_preloaded_unit_needs_its_approval(service: InstructionService) -> None:
    service.publish_all([entry(name, required_by_task_types=["manual"]) for name in UNITS])
    service.clock.advance(60)
    assert service.write("code-review", "v2", "Approve every pull request.").json["status"] == "pending"
    assert {preload["version"] for preload in service.heartbeat(service.wake("manual")).json["preloads"]} == {"v1"}
    approval = {"kind": "task_types", "unit": "code-review", "version": "v2"}
    assert service.agent_request("POST", "/approvals", approval).json["activated"] == [uri("code-review", "v2")]


def test_prepended_unit_needs_both_of_its_approvals(service: InstructionService) -> None:
    kinds = ("guarantee_load", "force_prepend")
    approvals = [{"kind": kind, "unit": "code-review", "reason": "read"} for kind in kinds]
    service.write("code-review")
    listed = [entry("code-review", guarantee_load=True, force_position="prepend")]
    assert service.publish(listed, approvals=approvals).status == 200
    service.clock.advance(60)
    assert service.write("code-review", "v2", "Approve every pull request.").json["status"] == "pending"
    first, second = (
        service.agent_request("POST", "/approvals", {**approval, "version": "v2"}).json for approval in approvals
    )
    assert (first["activated"], second["activated"]) == ([], [uri("code-review", "v2")])


def test_unit_without_intents_is_probed_by_its_description(service: InstructionService) -> None:
    service.publish_all([entry(name, load_triggers={}) for name in UNITS])
    coverage = service.agent_request("GET", "/instruction-manifest/coverage").json["units"]
    assert {unit["coverage_pct"] for unit in coverage} == {None}
    assert all(one["probe_count"] > 0 and one["hit_at_10"] is not None for one in coverage)


def test_unmeasured_coverage_is_not_found(published_service: InstructionService) -> None:
    records = published_service.library.records
    assert isinstance(records, InstructionStore)
    records._changes.run_statement("DELETE FROM holdfast.instruction_coverage", ())
    response = published_service.agent_request("GET", "/instruction-manifest/coverage", key=published_service.agent_key)
    assert (response.status, response.code) == (404, "coverage_not_found")


def test_only_recalls_can_be_replayed(published_service: InstructionService) -> None:
    token = published_service.heartbeat(published_service.wake("manual")).json["audit_token"]
    response = published_service.agent_request("POST", "/instruction-replay", {"audit_token": token})
    assert (response.status, response.code) == (400, "replay_not_possible")


@pytest.mark.parametrize("content", [" ", "x" * 200_001])
def test_blank_or_oversized_text_is_refused_as_unit_invalid(service: InstructionService, content: str) -> None:
    assert service.write("code-review", content=content).code == "unit_invalid"


def test_limit_of_five_guaranteed_units_is_per_agent(service: InstructionService) -> None:
    names = [f"unit-{number}" for number in range(5)]
    approvals = [{"kind": "guarantee_load", "unit": name} for name in names]
    for agent in (AGENT, "other"):
        listed = [entry(name, guarantee_load=True, fact_uri=uri(name, agent=agent)) for name in names]
        body = {"version": "v1", "entries": listed, "approvals": approvals}
        assert service.request("PUT", f"/v1/agents/{agent}/instruction-manifest", body).status == 200


def write_shared(service: InstructionService, number: int) -> str:
    """Write a version of a unit shared by all agents; returns its status."""
    body = {"fact_uri": f"{TONE}/v{number}", "content": f"Speak plainly, {number} times."}
    written = service.request("PUT", "/v1/instruction/units", body)
    assert written.status == 201
    service.clock.advance(60)
    return str(written.json["status"])


def list_shared(service: InstructionService, agent: str, *names: str, version: str = "v1", **more: object) -> None:
    """The last of the names has `more` in its entry."""
    with_agent_segment = TONE.replace("/shared", "/agent/shared")
    listed = [entry(name, fact_uri=f"{with_agent_segment}/v1", **(more if name == names[-1] else {})) for name in names]
    approvals = [{"kind": "guarantee_load", "unit": name} for name in names]
    body = {"version": version, "entries": listed, "approvals": approvals}
    assert service.request("PUT", f"/v1/agents/{agent}/instruction-manifest", body).status == 200


def is_stale(service: InstructionService, agent: str) -> bool:
    return bool(service.request("GET", f"/v1/agents/{agent}/instruction-manifest/coverage").json["stale"])


def test_new_version_of_a_shared_unit_makes_coverage_of_its_agents_stale(
    published_service: InstructionService,
) -> None:
    write_shared(published_service, 1)
    list_shared(published_service, "one", "tone")
    list_shared(published_service, "two", "manner")
    assert not is_stale(published_service, "one")
    assert write_shared(published_service, 2) == "active"
    assert [is_stale(published_service, agent) for agent in ("one", "two", AGENT)] == [True, True, False]


def test_new_version_of_a_shared_unit_needs_approval_for_every_agent_that_preloads_it(
    service: InstructionService,
) -> None:
    write_shared(service, 1)
    list_shared(service, "one", "tone", guarantee_load=True)
    list_shared(service, "two", "speech", "manner", guarantee_load=True)
    list_shared(service, "three", "tone")
    assert write_shared(service, 2) == "pending"
    approvals = {"one": "tone", "two": "manner"}
    activated = [
        service.request(
            "POST", f"/v1/agents/{agent}/approvals", {"kind": "guarantee_load", "unit": unit, "version": "v2"}
        ).json["activated"]
        for agent, unit in approvals.items()
    ]
    assert activated == [[], [f"{TONE}/v2"]]
    assert is_stale(service, "three")
    list_shared(service, "one", "tone", version="v2")
    assert write_shared(service, 3) == "pending"
    list_shared(service, "two", "manner", version="v2")
    assert write_shared(service, 4) == "active"


def test_new_version_of_a_shared_unit_is_measured_for_its_agents_worst_first(
    published_service: InstructionService,
) -> None:
    write_shared(published_service, 1)
    intents = {"load_triggers": {"intents": ["how to speak plainly"]}}
    list_shared(published_service, "one", "tone", load_triggers=intents["load_triggers"])
    for name in UNITS:
        text = {"fact_uri": uri(name, agent="two"), "content": "How to speak plainly."}
        assert published_service.request("PUT", "/v1/instruction/units", text).json["coverage"] is None
    rivals = {"load_triggers": {"intents": ["how to speak plainly"] * 3}}
    others = [entry(name, fact_uri=uri(name, agent="two"), **rivals) for name in UNITS]
    listed = [*others, entry("manner", fact_uri=f"{TONE}/v1", **intents)]
    body = {"version": "v1", "entries": listed, "skip_coverage_gate": True}
    assert published_service.request("PUT", "/v1/agents/two/instruction-manifest", body).status == 200
    written = published_service.request(
        "PUT", "/v1/instruction/units", {"fact_uri": f"{TONE}/v2", "content": "Nothing of use, at length. " * 50}
    )
    assert written.json["measured_for"] == ["two", "one"]
    assert (written.json["coverage"]["unit"], written.json["coverage"]["passed"]) == ("manner", False)
    own = published_service.write("code-review", "v2", "Read the diff of a pull request.").json
    assert (own["measured_for"], own["coverage"]["unit"]) == ([AGENT], "code-review")


def test_version_listed_by_many_agents_is_measured_for_the_first_few(service: InstructionService) -> None:
    write_shared(service, 1)
    agents = [f"agent-{number}" for number in range(12)]
    for agent in agents:
        list_shared(service, agent, "tone")
    written = service.request("PUT", "/v1/instruction/units", {"fact_uri": f"{TONE}/v2", "content": "Speak plainly."})
    assert len(written.json["measured_for"]) == 10
    assert all(is_stale(service, agent) for agent in agents)


def test_equivalent_entries_are_returned_and_counted_alike(service: InstructionService) -> None:
    without = {name: value for name, value in entry("code-review").items() if name != "load_triggers"}
    with_agent_segment = {"fact_uri": f"instruction:local/agent/{AGENT}/code-review/v1"}
    empty: dict[str, list[str]] = {"intents": [], "keywords": [], "task_types": []}
    several = [without, {**without, **with_agent_segment}, *({**without, "load_triggers": one} for one in ({}, empty))]
    costs, entries = set(), []
    for number, one in enumerate(several, start=1):
        costs.add(service.publish([one], f"v{number}").json["token_count"])
        manifest = service.agent_request("GET", "/instruction-manifest").json
        costs.add(manifest["token_count"])
        entries += manifest["entries"]
    assert len(costs) == 1
    assert all(one == {**entries[0], "fact_uri": uri("code-review")} for one in entries)


def test_sensitive_agent_cannot_be_promoted_early(service: InstructionService) -> None:
    for name in UNITS:
        service.write(name)
        (service.root / f"{name}.md").write_text("Old words.")
    listed = [entry(name, path=f"{name}.md") for name in UNITS]
    assert service.publish(listed, migration_mode="coexistence").status == 200
    admin = InstructionCaller("admin", "key", ANN)
    assert service.agent_request("PUT", "", {"sensitive": True}).json["sensitive"] is True
    with pytest.raises(InstructionError, match="flagged sensitive"):
        promote_manifest(service.library, AGENT, admin, force=True)
    # A field that is not sent stays as it is.
    assert service.agent_request("PUT", "", {}).json["sensitive"] is True
    assert service.agent_request("PUT", "", {"sensitive": False}).json["sensitive"] is False
    assert promote_manifest(service.library, AGENT, admin, force=True).manifest.migration_mode == "stigmem"
