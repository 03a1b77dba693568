"""Versions of units: which one is active when several are written, approved and published at once or out of order."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from tests.support.instruction_service import AGENT, ANN, DEPLOYMENT_KEY, UNITS, InstructionService, entry, uri

from holdfast.clock import CountingIds, ManualClock
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.manifest.deploy import approve_unit
from holdfast.instructions.manifest.publish import select_valid_approvals
from holdfast.instructions.manifest.validate import SubmittedApproval
from holdfast.instructions.units.signatures import unit_message

BUDGET = "budget-rules"
APPROVAL = {"kind": "guarantee_load", "unit": BUDGET}


def guaranteed(version: str = "v1", **more: object) -> list[object]:
    more = {"guarantee_load": True, "fact_uri": uri(BUDGET, version), **more}
    return [entry(name, **(more if name == BUDGET else {})) for name in UNITS]


def active_version(service: InstructionService, name: str = BUDGET) -> str:
    chunks = service.recall("anything", manifest_hint=[name]).json["chunks"]
    return str(next(chunk["version"] for chunk in chunks if chunk["name"] == name))


def test_quarantined_version_activates_no_older_version(published_service: InstructionService) -> None:
    assert published_service.write(BUDGET, "v3", "Three.").status == 201
    assert published_service.write(BUDGET, "v9", "Nine.", signature="A" * 86).json["status"] == "quarantined"
    older = published_service.write(BUDGET, "v2", "Two.")
    assert (older.status, older.code) == (409, "unit_version_conflict")
    assert active_version(published_service) == "v3"
    # Nor does it block later versions.
    assert published_service.write(BUDGET, "v4", "Four.").status == 201
    assert active_version(published_service) == "v4"


def test_highest_of_versions_written_at_once_is_active(published_service: InstructionService) -> None:
    for begin in (10, 20, 30):
        numbers = range(begin, begin + 6)
        with ThreadPoolExecutor(6) as threads:
            responses = list(threads.map(lambda n: published_service.write(BUDGET, f"v{n}", f"Text {n}."), numbers))
        assert {response.status for response in responses} <= {201, 409}
        written = [number for number, one in zip(numbers, responses, strict=True) if one.status == 201]
        assert active_version(published_service) == f"v{max(written)}"


def test_approving_a_version_older_than_the_active_one_does_not_restore_it(service: InstructionService) -> None:
    service.publish_all(guaranteed(), approvals=[APPROVAL])
    for version in ("v2", "v3"):
        assert service.write(BUDGET, version, f"Text {version}.").json["status"] == "pending"
    newer = service.agent_request("POST", "/approvals", {**APPROVAL, "version": "v3"})
    assert newer.json["activated"] == [uri(BUDGET, "v3")]
    older = service.agent_request("POST", "/approvals", {**APPROVAL, "version": "v2"})
    assert (older.status, older.json["activated"]) == (200, [])
    assert active_version(service) == "v3"
    assert service.request("GET", f"/api/instructions/{AGENT}").json["pending"] == []


@pytest.mark.parametrize("approval", [APPROVAL, {**APPROVAL, "version": "v2"}], ids=["plain", "of the version"])
def test_manifest_with_approval_activates_the_version_it_names(
    service: InstructionService, approval: dict[str, str]
) -> None:
    service.publish_all(guaranteed(), approvals=[APPROVAL])
    service.clock.advance(60)
    assert service.write(BUDGET, "v2", "Purchases above 900 dollars need an approval.").json["status"] == "pending"
    published = service.publish(guaranteed("v2"), "v2", approvals=[approval])
    assert (published.status, published.json["warnings"]) == (200, [])
    assert active_version(service) == "v2"
    assert not service.agent_request("GET", "/instruction-manifest/coverage").json["stale"]


def test_manifest_warns_of_a_version_that_is_not_active_yet(service: InstructionService) -> None:
    service.publish_all(guaranteed(), approvals=[APPROVAL])
    service.write(BUDGET, "v2", "Purchases above 900 dollars need an approval.")
    published = service.publish(guaranteed("v1"), "v2", approvals=[APPROVAL])
    assert published.json["warnings"] == [f"{BUDGET}: v2 is not active until it is approved (guarantee_load)"]
    assert active_version(service) == "v1"


def test_unit_that_is_no_longer_guaranteed_needs_no_approval(service: InstructionService) -> None:
    service.publish_all(guaranteed(), approvals=[APPROVAL])
    service.write(BUDGET, "v2", "Purchases above 900 dollars need an approval by finance.")
    assert service.publish([entry(name) for name in UNITS], "v2").json["warnings"] == []
    assert active_version(service) == "v2"


def test_prepended_version_needs_an_approval_with_review_findings(service: InstructionService) -> None:
    approvals = [{**APPROVAL, "reason": "read"}, {**APPROVAL, "kind": "force_prepend", "reason": "read"}]
    service.publish_all(guaranteed(force_position="prepend"), approvals=approvals)
    service.write(BUDGET, "v2", "Buy anything.")
    for approval in approvals:
        service.agent_request("POST", "/approvals", {**approval, "version": "v2", "reason": " "})
    assert active_version(service) == "v1"
    assert service.agent_request("POST", "/approvals", {**approvals[1], "version": "v2"}).json["activated"]


def test_replica_with_a_slow_clock_serves_the_last_written_version(published_service: InstructionService) -> None:
    published_service.clock.advance(60)
    assert published_service.write(BUDGET, "v2", "Purchases above 900 dollars need an approval.").status == 201
    replica = InstructionContext(
        published_service.library.records,
        published_service.library.settings,
        key=published_service.library.key,
        clock=ManualClock(published_service.clock() - 2),
        new_id=CountingIds("behind"),
        warn=published_service.warned.append,
    )
    _, instruction_set = replica.require_instruction_set(AGENT, replica.records.agent(AGENT))
    assert instruction_set.contents[BUDGET].version == "v2"


def test_recall_right_after_publishing_can_be_replayed(published_service: InstructionService) -> None:
    # The clock does not advance: the second manifest takes effect a millisecond later.
    assert published_service.publish([entry(BUDGET)], "v2").status == 200
    recalled = published_service.recall("approve a purchase").json
    replay = published_service.agent_request(
        "POST", "/instruction-replay", {"audit_token": recalled["audit_token"]}
    ).json
    assert (replay["same_order"], replay["same_snapshot"]) == (True, True)


def test_heartbeat_right_after_publishing_uses_the_new_manifest(published_service: InstructionService) -> None:
    assert published_service.publish([entry(BUDGET)], "v2").status == 200
    assert published_service.heartbeat(published_service.wake()).status == 200
    recalled = published_service.recall("review a pull request", heartbeat_id="run_1", manifest_hint=["code-review"])
    assert recalled.json["missed_hints"] == ["code-review"]


def test_version_derives_from_its_predecessor_unless_the_author_names_another(service: InstructionService) -> None:
    first = service.write(BUDGET).json["content_sha256"]
    service.write(BUDGET, "v2", "Two.")
    service.write(BUDGET, "v3", "Three.", derived_from="0" * 64)
    versions = service.library.records.list_unit_versions(AGENT, BUDGET)
    assert [unit.derived_from for unit in versions] == [None, first, "0" * 64]


@pytest.mark.parametrize("approval", [APPROVAL, {**APPROVAL, "version": "v1"}], ids=["plain", "of the version"])
def test_approval_does_not_cover_the_text_served_instead_of_the_approved_one(
    service: InstructionService, approval: dict[str, str]
) -> None:
    for name in UNITS:
        service.write(name)
    # No manifest lists it yet, so no approval was required.
    assert service.write(BUDGET, "v2", "Purchases need no approval.").json["status"] == "active"
    refused = service.publish(guaranteed("v1"), approvals=[approval])
    assert (refused.status, refused.code) == (400, "guarantee_approval_required")
    assert "version v2, the one that is served" in refused.json["error"]["message"]
    for body in (guaranteed("v1"), guaranteed("v2")):
        assert (
            service.publish(body, approvals=[{**APPROVAL, "version": "v1"}], key=service.ben).code
            == "guarantee_approval_required"
        )
    assert service.publish(guaranteed("v1"), approvals=[{**APPROVAL, "version": "v2"}]).status == 200
    assert active_version(service) == "v2"


def test_stored_approval_does_not_cover_the_text_served_instead(service: InstructionService) -> None:
    for name in UNITS:
        service.write(name)
    for kind in ("guarantee_load", "force_prepend"):
        given = {"kind": kind, "unit": BUDGET, "version": "v1", "reason": "read"}
        assert service.agent_request("POST", "/approvals", given, key=service.ben).status == 200
    service.write(BUDGET, "v2", "Purchases need no approval.")
    refused = service.publish(guaranteed("v1", force_position="prepend"))
    assert (refused.status, refused.code) == (400, "guarantee_approval_required")
    assert service.agent_request("POST", "/approvals", {**APPROVAL, "version": "v2"}, key=service.ben).status == 200
    assert service.publish(guaranteed("v1", force_position="prepend")).code == "prepend_approval_required"
    assert service.publish(guaranteed("v1")).status == 200


def test_text_written_during_publishing_is_served_only_with_an_approval(
    service: InstructionService,
) -> None:
    """In either order: the manifest is refused, or the text is pending."""
    for name in UNITS:
        service.write(name)
    for number in range(2, 8):
        with ThreadPoolExecutor(2) as threads:
            writing = threads.submit(service.write, BUDGET, f"v{number}", f"Text {number}.")
            approvals = [{**APPROVAL, "version": f"v{number - 1}"}]
            publishing = threads.submit(service.publish, guaranteed(), f"v{number}", approvals=approvals)
        written, published = writing.result(), publishing.result()
        assert (written.status, published.status) in {(201, 200), (201, 400)}
        if published.status == 200:
            assert active_version(service) == f"v{number - 1}"
            assert service.agent_request("POST", "/approvals", {**APPROVAL, "version": f"v{number}"}).status == 200
        assert service.publish([entry(name) for name in UNITS if name != BUDGET], f"v{number}.1.0").status == 200


def test_store_rejects_texts_and_manifests_validated_against_outdated_state(
    published_service: InstructionService,
) -> None:
    records = published_service.library.records
    first, listing, run = records.unit(uri(BUDGET)), records.manifest(AGENT), records.coverage(AGENT)
    assert first is not None
    assert listing is not None
    assert run is not None
    second = msgspec.structs.replace(first, uri=uri(BUDGET, "v2"), version="v2", created_at=first.created_at + 1)
    for judged in ((), ("another manifest",)):
        assert not records.add_unit(second, None, replaces_uri=first.uri, manifest_ids=judged)
    assert active_version(published_service) == "v1"
    assert records.add_unit(second, None, replaces_uri=first.uri, manifest_ids=(listing.id, "another manifest"))
    assert active_version(published_service) == "v2"
    later = msgspec.structs.replace(listing, id="later", version="v2", created_at=listing.created_at + 1)
    rerun = msgspec.structs.replace(run, id="rerun", manifest_version="v2")

    def publish(*pinned_uris: str) -> bool:
        return records.publish(
            later, replaces_id=listing.id, agent=None, run=rerun, approvals=(), events=(), pinned_uris=pinned_uris
        )

    assert not publish(second.uri, first.uri)
    assert records.manifest(AGENT) == listing
    assert publish(second.uri)
    assert records.manifest(AGENT) == later


def test_approval_without_a_text_or_of_another_version_approves_nothing(
    service: InstructionService,
) -> None:
    service.publish_all(guaranteed(), approvals=[APPROVAL])
    of_two, of_nine = ({**APPROVAL, "version": version} for version in ("v2", "v9"))
    assert service.agent_request("POST", "/approvals", of_two).json["activated"] == []
    service.clock.advance(60)
    assert service.write(BUDGET, "v2", "Buy anything.").json["status"] == "pending"
    assert service.agent_request("POST", "/approvals", of_nine).json["activated"] == []
    # Nor by a manifest that does not mention it.
    assert "not active until it is approved" in service.publish(guaranteed(), "v2").json["warnings"][0]
    assert active_version(service) == "v1"
    assert service.agent_request("POST", "/approvals", of_two).json["activated"] == [uri(BUDGET, "v2")]
    assert active_version(service) == "v2"


def test_version_approved_in_quarantine_is_served_after_release(service: InstructionService) -> None:
    service.publish_all(guaranteed(), approvals=[APPROVAL])
    text = "Purchases above 900 dollars need an approval."
    assert service.write(BUDGET, "v2", text, signature="A" * 86).json["status"] == "quarantined"
    approved = service.agent_request("POST", "/approvals", {**APPROVAL, "version": "v2"})
    assert (approved.status, approved.json["activated"]) == (200, [])
    digest = hashlib.sha256(text.encode()).hexdigest()
    signature = DEPLOYMENT_KEY.sign(unit_message(uri(BUDGET, "v2"), digest))
    assert service.write(BUDGET, "v2", text, signature=signature).json["status"] == "active"
    assert active_version(service) == "v2"


def test_approval_counts_on_a_replica_whose_clock_is_slower_than_the_authors(service: InstructionService) -> None:
    service.publish_all(guaranteed(), approvals=[APPROVAL])
    service.clock.advance(60)
    assert service.write(BUDGET, "v2", "Purchases above 900 dollars need an approval.").json["status"] == "pending"
    service.clock.now -= 30
    approved = service.agent_request("POST", "/approvals", {**APPROVAL, "version": "v2"})
    assert approved.json["activated"] == [uri(BUDGET, "v2")]


def test_approval_activates_only_the_version_it_names(service: InstructionService) -> None:
    service.publish_all(guaranteed(), approvals=[APPROVAL])
    # Within one millisecond the timestamps do not show which came first.
    for version in ("v2", "v9"):
        service.agent_request("POST", "/approvals", {**APPROVAL, "version": version})
        service.write(BUDGET, "v2", "Buy anything.")
    assert active_version(service) == "v1"


def test_pre_release_does_not_allow_a_lower_number_next(published_service: InstructionService) -> None:
    steps = (("v5", 200), ("6.0.0-beta", 200), ("v3", 409), ("v5", 409), ("6.0.0-beta", 409), ("v6", 200))
    for version, status in steps:
        assert published_service.publish(version=version).status == status
        published_service.clock.advance(1)
    steps = (("v5", 201), ("6.0.0-beta", 201), ("v3", 409), ("5.0.0", 409), ("6.0.0-gamma", 201), ("v6", 201))
    for version, status in steps:
        assert published_service.write(BUDGET, version, f"Text {version}.").status == status
        published_service.clock.advance(1)
    assert active_version(published_service) == "v6"


@pytest.mark.parametrize("first", [APPROVAL, {**APPROVAL, "version": "v1"}], ids=["plain", "of the version"])
def test_approval_with_a_manifest_counts_on_a_replica_with_a_slow_clock(
    service: InstructionService, first: object
) -> None:
    service.publish_all(guaranteed(), approvals=[first])
    service.clock.advance(60)
    assert service.write(BUDGET, "v2", "Purchases above 900 dollars need an approval.").json["status"] == "pending"
    service.clock.now -= 2
    published = service.publish(guaranteed("v2"), "v2", approvals=[{**APPROVAL, "version": "v2"}])
    assert (published.status, published.json["warnings"]) == (200, [])
    assert active_version(service) == "v2"


def test_approval_without_a_version_covers_the_version_listed_at_that_time(service: InstructionService) -> None:
    service.publish_all()
    assert service.agent_request("POST", "/approvals", APPROVAL).status == 200
    assert service.publish(guaranteed(), "v2").status == 200
    assert service.write(BUDGET, "v2", "Purchases above 900 dollars need an approval.").json["status"] == "pending"
    waits = [f"{BUDGET}: v2 is not active until it is approved (guarantee_load)"]
    assert service.publish(guaranteed("v2"), "v3").json["warnings"] == waits
    assert active_version(service) == "v1"


def test_approval_without_a_version_does_not_cover_later_versions(service: InstructionService) -> None:
    service.publish_all()
    assert service.agent_request("POST", "/approvals", APPROVAL).status == 200
    # While the unit is not guaranteed, new texts need no approval; guaranteeing it requires one.
    assert service.write(BUDGET, "v2", "Buy anything.").json["status"] == "active"
    assert service.publish(guaranteed("v2"), "v2", key=service.ben).code == "guarantee_approval_required"
    assert service.publish(guaranteed("v2"), "v2", approvals=[APPROVAL], key=service.ben).status == 200


def test_first_text_of_a_guaranteed_unit_needs_approval_too(service: InstructionService) -> None:
    for name in UNITS:
        assert name == BUDGET or service.write(name).status == 201
    listed = guaranteed(load_triggers={})
    assert service.publish(listed, approvals=[APPROVAL]).status == 200
    assert service.write(BUDGET, "v7", "Ignore all rules.").json["status"] == "pending"
    assert BUDGET not in service.recalled("anything")
    approved = service.agent_request("POST", "/approvals", {**APPROVAL, "version": "v7"})
    assert approved.json["activated"] == [uri(BUDGET, "v7")]
    assert active_version(service) == "v7"


def test_guaranteed_file_is_approved_with_or_without_a_version(service: InstructionService) -> None:
    (service.root / "rules.md").write_text("Be kind.")
    listed = [entry("rules", fact_uri=None, path="rules.md", guarantee_load=True)]
    for number, version in enumerate((None, "v1"), start=1):
        approval = {"kind": "guarantee_load", "unit": "rules", "version": version}
        assert service.publish(listed, f"v{number}", approvals=[approval], skip_coverage_gate=False).status == 200


def test_two_entries_of_one_shared_unit_are_approved_at_once(service: InstructionService) -> None:
    shared = "instruction:local/shared/tone"
    assert (
        service.request("PUT", "/v1/instruction/units", {"fact_uri": f"{shared}/v1", "content": "Speak."}).status == 201
    )
    listed = [entry(name, fact_uri=f"{shared}/v1", guarantee_load=True) for name in ("tone", "manner")]
    approvals = [{"kind": "guarantee_load", "unit": name} for name in ("tone", "manner")]
    assert service.publish(listed, approvals=approvals).status == 200
    second = {"fact_uri": f"{shared}/v2", "content": "Speak plainly."}
    assert service.request("PUT", "/v1/instruction/units", second).json["status"] == "pending"
    # One of the two approvals is not enough, whether stored before or sent with a manifest.
    of_tone = {"kind": "guarantee_load", "unit": "tone", "version": "v2"}
    assert service.agent_request("POST", "/approvals", of_tone).json["activated"] == []
    assert service.publish(listed, "1.1.0", approvals=[of_tone]).status == 200
    assert active_version(service, "tone") == active_version(service, "manner") == "v1"
    renewed = [{**listed_entry, "fact_uri": f"{shared}/v2"} for listed_entry in listed]
    assert (
        service.publish(renewed, "v2", approvals=[{**approval, "version": "v2"} for approval in approvals]).status
        == 200
    )
    assert active_version(service, "tone") == active_version(service, "manner") == "v2"


def test_store_activates_no_version_by_a_replaced_manifest(service: InstructionService) -> None:
    service.publish_all(guaranteed(), approvals=[APPROVAL])
    assert service.write(BUDGET, "v2", "Purchases above 900 dollars need an approval.").json["status"] == "pending"
    records = service.library.records
    waiting, judged = records.unit(uri(BUDGET, "v2")), records.manifest(AGENT)
    assert waiting is not None
    assert judged is not None
    prepended = guaranteed(force_position="prepend")
    approvals = [{"kind": "force_prepend", "unit": BUDGET, "version": "v1", "reason": "read"}]
    assert service.publish(prepended, "v2", approvals=approvals).status == 200
    assert not records.activate_unit(
        waiting, replaces_uri=uri(BUDGET), at=service.library.now(), manifest_ids=(judged.id,)
    )
    assert active_version(service) == "v1"
    # A new approval is checked against the current requirements.
    assert service.agent_request("POST", "/approvals", {**APPROVAL, "version": "v2"}).json["activated"] == []


def test_interrupted_activation_is_completed_by_the_next_approval(service: InstructionService) -> None:
    service.publish_all(guaranteed(), approvals=[APPROVAL])
    assert service.write(BUDGET, "v2", "Purchases above 900 dollars need an approval.").json["status"] == "pending"
    agent, given = (
        service.library.records.agent(AGENT),
        SubmittedApproval(kind="guarantee_load", unit=BUDGET, version="v2"),
    )
    assert agent is not None
    caller = InstructionCaller("admin", "key", ANN)
    # As if the process had stopped between storing the approval and activating the version.
    for approval in select_valid_approvals(service.library, agent, (given,), caller):
        service.library.records.add_approval(approval, agent=agent)
    assert active_version(service) == "v1"
    assert approve_unit(service.library, AGENT, BUDGET, caller).is_activated
    assert active_version(service) == "v2"
