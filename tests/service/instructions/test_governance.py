"""Who may say what: settings of agents, approvals by version, authors, and the form of versions."""

import hashlib
import itertools

import pytest
from tests.support.instruction_service import ANN, BEN, UNITS, InstructionService, entry, uri
from tests.support.library_projects import LibraryProject

from holdfast.instructions.units.signatures import DeploymentKey, unit_message
from holdfast.instructions.uri import is_newer

THREE_REASONS = ["manual", "routine_fired", "issue_assigned"]
RULES = ["Never deploy on Fridays."]


def test_put_of_an_agent_changes_only_what_is_sent(service: InstructionService) -> None:
    sent = {"role": "CTO", "always_rules": RULES, "supervisors": ["boss"], "sensitive": True}
    assert service.agent_request("PUT", "", sent).status == 200
    assert service.agent_request("PUT", "", {"role": "Head of engineering"}).status == 200
    read = service.agent_request("GET", "")
    assert (read.json["role"], read.json["always_rules"]) == ("Head of engineering", RULES)
    assert (read.json["supervisors"], read.json["sensitive"]) == (["boss"], True)
    assert service.agent_request("PUT", "", {"always_rules": [], "shortname": None}).json["always_rules"] == []


def test_settings_of_an_agent_are_read_by_itself_and_admins_only(service: InstructionService) -> None:
    assert service.agent_request("GET", "").code == "agent_not_found"
    service.agent_request("PUT", "", {"role": "CTO"})
    assert service.agent_request("GET", "", key=service.agent_key).json["role"] == "CTO"
    other = service.client.key("agent:other")
    assert service.agent_request("GET", "", key=other).code == "instruction_scope_denied"


def test_recorded_approval_names_the_version_it_approves(service: InstructionService) -> None:
    service.write("code-review")
    service.clock.advance(1)
    service.write("code-review", "v2", "Newer words on a pull request.")
    recorded = service.agent_request("POST", "/approvals", {"kind": "guarantee_load", "unit": "code-review"})
    assert recorded.json["approval"]["version"] == "v2"
    service.clock.advance(1)
    service.write("code-review", "v3", "Third words on a pull request.")
    refused = service.publish([entry("code-review", guarantee_load=True)])
    assert refused.code == "guarantee_approval_required"
    assert "version v3" in refused.json["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "code", "kind"),
    [
        ({"guarantee_load": True}, "guarantee_approval_required", "guarantee_load"),
        ({"required_by_task_types": THREE_REASONS}, "task_types_approval_required", "task_types"),
    ],
)
def test_missing_approval_is_shown_as_the_json_to_send(
    service: InstructionService, fields: dict[str, object], code: str, kind: str
) -> None:
    service.write_all()
    listed = [entry(name, **(fields if name == "code-review" else {})) for name in UNITS]
    refused = service.publish(listed)
    assert refused.code == code
    approval = refused.json["error"]["details"]["approval"]
    assert approval == {"kind": kind, "unit": "code-review", "version": "v1"}
    assert f'"kind":"{kind}"' in refused.json["error"]["message"]
    assert "manifest.json" in refused.json["error"]["message"]
    assert service.publish(listed, approvals=[approval]).status == 200


def test_text_in_the_name_of_another_needs_that_persons_signature(service: InstructionService) -> None:
    refused = service.write("code-review", authored_by=BEN)
    assert (refused.status, refused.code) == (400, "author_signature_required")
    bens, text = DeploymentKey(b"b" * 32), UNITS["code-review"][2]
    body = {"public_key": bens.public_key}
    assert service.request("PUT", "/v1/instruction/signer", body, key=service.ben).status == 200
    signature = bens.sign(unit_message(uri("code-review"), hashlib.sha256(text.encode()).hexdigest()))
    assert service.write("code-review", authored_by="acme:user/cid", signature=signature).code == (
        "author_signature_required"
    )
    assert service.write("code-review", authored_by=BEN, signature=signature).json["status"] == "active"
    assert service.write("budget-rules", authored_by=ANN).json["status"] == "active"


@pytest.mark.parametrize("version", ["v1.2", "1", "final", "2024-05-01", "v01", "1.2.3.4", "version1", "1.02.0"])
def test_version_of_another_form_is_refused(service: InstructionService, version: str) -> None:
    assert service.write("code-review", version).code == "uri_invalid"
    service.write_all()
    assert service.publish(version=version).code == "manifest_version_conflict"


@pytest.mark.parametrize("version", ["v1", "v12", "1.4.0", "v1.4.0", "1.4.0-rc.1", "1.4.0+build.5"])
def test_number_or_semantic_version_is_accepted(service: InstructionService, version: str) -> None:
    assert service.write("code-review", version).status == 201
    listed = [entry("code-review", fact_uri=uri("code-review", version))]
    assert service.publish(listed, version).status == 200
    assert service.recalled("review a pull request") == ["code-review"]


def test_pre_release_comes_before_its_release() -> None:
    order = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "v2"]
    assert all(is_newer(later, than=earlier) for earlier, later in itertools.pairwise(order))
    assert not any(is_newer(earlier, than=later) for earlier, later in itertools.pairwise(order))


def test_every_approval_can_be_recorded_by_command(tmp_path_factory: pytest.TempPathFactory) -> None:
    shop = LibraryProject(tmp_path_factory.mktemp("shop"))
    with shop.library:
        shop.write(mode="stigmem")
        manifest = shop.manifest()
        manifest["entries"][2] |= {"guarantee_load": True, "force_position": "prepend"}
        name = manifest["entries"][2]["name"]
        shop.write_manifest(manifest)
        for words in (
            (name, "--kind", "guarantee_load", "--version", "v1", "--entity", ANN),
            (name, "--kind", "force_prepend", "--version", "v1", "--entity", ANN, "--reason", "read it"),
            ("--skip-gate", "v1", "--entity", BEN),
        ):
            result = shop.run("approve", *words)
            assert result.exit_code == 0, (result.output, result.exception)
        result = shop.run("publish", str(shop.folder), "--entity", ANN, "--skip-gate")
        assert (result.exit_code, result.exception) == (0, None)
        refused = shop.run("approve", name, "--kind", "force_prepend", "--entity", ANN)
        assert "content review" in str(refused.exception)


def test_second_person_learns_how_to_co_sign(service: InstructionService) -> None:
    service.write_all()
    listed = [entry(name, guarantee_load=name == "code-review") for name in UNITS]
    approvals = [{"kind": "guarantee_load", "unit": "code-review", "version": "v1"}]
    refused = service.publish(listed, skip_coverage_gate=True, approvals=approvals)
    assert refused.code == "skip_gate_cosign_required"
    approval = refused.json["error"]["details"]["approval"]
    assert approval == {"kind": "skip_gate", "version": "v1"}
    assert service.agent_request("POST", "/approvals", approval, key=service.ben).status == 200
    assert service.publish(listed, skip_coverage_gate=True, approvals=approvals).status == 200
    assert service.agent_request("GET", "/instruction-manifest").json["manifest_version"] == "v1"
