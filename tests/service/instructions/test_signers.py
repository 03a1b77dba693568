"""Signing keys: whose signatures count, until when, and how versions of unknown signers leave quarantine."""

import hashlib

import pytest
from tests.support.instruction_service import AGENT, ANN, BEN, UNITS, InstructionService, entry, uri

from holdfast.instructions.models import Approval
from holdfast.instructions.units.signatures import DeploymentKey, approval_message, unit_message

BENS = DeploymentKey(b"b" * 32)
SIGNER = "/v1/instruction/signer"


def register(service: InstructionService, key: str, signer: DeploymentKey = BENS) -> None:
    assert service.request("PUT", SIGNER, {"public_key": signer.public_key}, key=key).status == 200


def publish_cosigned(service: InstructionService) -> str:
    """`published` or an error code, for a manifest whose gate Ann skips with her key and Ben with his signature."""
    approval = Approval(id="", agent_id=AGENT, kind="skip_gate", version="v1", authored_by=BEN, authored_at=0)
    signature = BENS.sign(approval_message(approval))
    approvals = [
        {"kind": "guarantee_load", "unit": "code-review"},
        {"kind": "skip_gate", "version": "v1", "authored_by": BEN, "signature": signature},
    ]
    listed = [entry("code-review", guarantee_load=True)]
    response = service.publish(listed, approvals=approvals, skip_coverage_gate=True)
    return "published" if response.status == 200 else response.code


def sign(name: str, version: str = "v1", *, signer: DeploymentKey = BENS, signed_uri: str | None = None) -> str:
    digest = hashlib.sha256(UNITS[name][2].encode()).hexdigest()
    return signer.sign(unit_message(signed_uri or uri(name, version), digest))


def revoke(service: InstructionService, key: str) -> None:
    assert service.client.service.records.revoke_key(key.split("_")[1], at=service.clock())


@pytest.mark.parametrize("fate", ["revoked", "expired", "kept", "revoked, and another holds"])
def test_signing_key_counts_while_its_holder_is_an_admin(service: InstructionService, fate: str) -> None:
    ben = service.client.key("admin", entity=BEN, expires_at=service.clock() + 60)
    revoke(service, service.ben)
    register(service, ben)
    if fate == "expired":
        service.clock.advance(60)
    elif fate != "kept":
        revoke(service, ben)
    if fate.endswith("holds"):
        service.client.key("admin", entity=BEN, expires_at=service.clock() + 90)
    counts = fate in ("kept", "revoked, and another holds")
    assert publish_cosigned(service) == ("published" if counts else "skip_gate_cosign_required")
    written = service.write("release-notes", signature=sign("release-notes"))
    assert written.json["status"] == ("active" if counts else "quarantined")
    (line,) = service.request("GET", SIGNER).json["signers"]
    assert (line["entity"], line["public_key"], line["is_accepted"]) == (BEN, BENS.public_key, counts)


def test_admin_withdraws_a_signing_key(service: InstructionService) -> None:
    register(service, service.ben)
    assert service.write("release-notes", signature=sign("release-notes")).json["status"] == "active"
    gone = service.request("DELETE", f"{SIGNER}/{BENS.public_key}", key=service.ann)
    assert (gone.status, gone.body) == (204, b"")
    assert service.request("GET", SIGNER).json["signers"] == []
    assert publish_cosigned(service) == "skip_gate_cosign_required"
    # What it signed while it was valid stays signed.
    assert service.write("release-notes", signature=sign("release-notes")).json["status"] == "active"
    again = service.request("DELETE", f"{SIGNER}/{BENS.public_key}")
    assert (again.status, again.code) == (404, "signer_not_found")


def test_key_is_withdrawn_for_all_who_registered_it_in_any_encoding(service: InstructionService) -> None:
    register(service, service.ann)
    assert service.request("PUT", SIGNER, {"public_key": f"{BENS.public_key}="}, key=service.ben).json["entity"] == BEN
    assert {signer["entity"] for signer in service.request("GET", SIGNER).json["signers"]} == {ANN, BEN}
    assert service.request("DELETE", f"{SIGNER}/{BENS.public_key}").status == 204
    assert service.request("GET", SIGNER).json["signers"] == []


@pytest.mark.parametrize("given_again", [False, True])
def test_quarantined_version_is_served_once_its_signer_is_registered_and_it_is_rewritten(
    service: InstructionService, given_again: bool
) -> None:
    service.publish_all()
    service.clock.advance(60)
    text = "Read the whole diff of a pull request twice."
    signature = BENS.sign(unit_message(uri("code-review", "v2"), hashlib.sha256(text.encode()).hexdigest()))
    fields = {"signature": signature} if given_again else {}
    assert service.write("code-review", "v2", text, signature=signature).json["status"] == "quarantined"
    assert service.write("code-review", "v2", text, **fields).json["status"] == "quarantined"
    register(service, service.ben)
    service.clock.advance(60)
    again = service.write("code-review", "v2", text, **fields)
    assert (again.status, again.json["status"]) == (200, "active")
    assert again.json["coverage"]["unit"] == "code-review"
    (chunk, *_) = service.recall("review a pull request").json["chunks"]
    assert (chunk["version"], chunk["content"]) == ("v2", text)
    old, new = service.library.records.list_unit_versions(AGENT, "code-review")
    assert (old.valid_until, new.created_at) == (service.library.now(), service.library.now())
    assert (new.signed_by, new.authored_by, new.source_trust) == (BEN, ANN, 0.9)


def test_trusted_signature_releases_a_version_from_quarantine(service: InstructionService) -> None:
    register(service, service.ann)
    assert service.write("code-review", signature="A" * 86).json["status"] == "quarantined"
    assert service.write("code-review", signature=sign("code-review")).json["status"] == "active"
    unit = service.library.records.unit(uri("code-review"))
    assert unit is not None
    assert (unit.signed_by, unit.source_trust) == (ANN, 1.0)


def test_version_released_from_quarantine_needs_approval_like_a_new_one(service: InstructionService) -> None:
    approval = {"kind": "guarantee_load", "unit": "code-review"}
    service.publish_all([entry(name, guarantee_load=name == "code-review") for name in UNITS], approvals=[approval])
    text = UNITS["code-review"][2]
    signature = sign("code-review", "v2")
    assert service.write("code-review", "v2", text, signature=signature).json["status"] == "quarantined"
    register(service, service.ben)
    assert service.write("code-review", "v2", text).json["status"] == "pending"
    assert service.recall("anything").json["chunks"][-1]["version"] == "v1"
    approved = service.agent_request("POST", "/approvals", {**approval, "version": "v2"})
    assert approved.json["activated"] == [uri("code-review", "v2")]


def test_superseded_version_stays_in_quarantine(service: InstructionService) -> None:
    service.publish_all()
    text = UNITS["code-review"][2]
    assert service.write("code-review", "v2", text, signature=sign("code-review", "v2")).status == 201
    assert service.write("code-review", "v3", "Newer words on a pull request.").json["status"] == "active"
    register(service, service.ben)
    again = service.write("code-review", "v2", text)
    assert (again.status, again.json["status"]) == (200, "quarantined")
    assert service.recall("review a pull request").json["chunks"][0]["version"] == "v3"
