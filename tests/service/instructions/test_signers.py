"""Signing keys: whose signatures count, until when, and what becomes of what nobody known had signed."""

import hashlib

import pytest
from tests.support.instruction_service import AGENT, ANN, BEN, UNITS, InstructionService, entry, uri

from holdfast.instructions.models import Approval
from holdfast.instructions.units.signatures import DeploymentKey, approval_message, unit_message

BENS = DeploymentKey(b"b" * 32)
SIGNER = "/v1/instruction/signer"


def register(at: InstructionService, key: str, signer: DeploymentKey = BENS) -> None:
    assert at.request("PUT", SIGNER, {"public_key": signer.public_key}, key=key).status == 200


def cosigned(at: InstructionService) -> str:
    """What becomes of a manifest whose gate Ann skips, and Ben by his signature; `published`, or a code."""
    meant = Approval(id="", agent_id=AGENT, kind="skip_gate", version="v1", authored_by=BEN, authored_at=0)
    signature = BENS.sign(approval_message(meant))
    approvals = [
        {"kind": "guarantee_load", "unit": "code-review"},
        {"kind": "skip_gate", "version": "v1", "authored_by": BEN, "signature": signature},
    ]
    listed = [entry("code-review", guarantee_load=True)]
    answered = at.publish(listed, approvals=approvals, skip_coverage_gate=True)
    return "published" if answered.status == 200 else answered.code


def sign(name: str, version: str = "v1", *, signer: DeploymentKey = BENS, spelled: str | None = None) -> str:
    digest = hashlib.sha256(UNITS[name][2].encode()).hexdigest()
    return signer.sign(unit_message(spelled or uri(name, version), digest))


def revoke(at: InstructionService, key: str) -> None:
    assert at.client.service.records.revoke_key(key.split("_")[1], at=at.clock())


@pytest.mark.parametrize("fate", ["revoked", "expired", "kept", "revoked, and another holds"])
def test_signing_key_counts_while_its_holder_is_an_admin(at: InstructionService, fate: str) -> None:
    ben = at.client.key("admin", entity=BEN, expires_at=at.clock() + 60)
    revoke(at, at.ben)
    register(at, ben)
    if fate == "expired":
        at.clock.advance(60)
    elif fate != "kept":
        revoke(at, ben)
    if fate.endswith("holds"):
        at.client.key("admin", entity=BEN, expires_at=at.clock() + 90)
    counts = fate in ("kept", "revoked, and another holds")
    assert cosigned(at) == ("published" if counts else "skip_gate_cosign_required")
    written = at.write("release-notes", signature=sign("release-notes"))
    assert written.json["status"] == ("active" if counts else "quarantined")
    (line,) = at.request("GET", SIGNER).json["signers"]
    assert (line["entity"], line["public_key"], line["is_accepted"]) == (BEN, BENS.public_key, counts)


def test_admin_withdraws_a_signing_key(at: InstructionService) -> None:
    register(at, at.ben)
    assert at.write("release-notes", signature=sign("release-notes")).json["status"] == "active"
    gone = at.request("DELETE", f"{SIGNER}/{BENS.public_key}", key=at.ann)
    assert (gone.status, gone.body) == (204, b"")
    assert at.request("GET", SIGNER).json["signers"] == []
    assert cosigned(at) == "skip_gate_cosign_required"
    # What it has vouched for while it counted stays as it is.
    assert at.write("release-notes", signature=sign("release-notes")).json["status"] == "active"
    again = at.request("DELETE", f"{SIGNER}/{BENS.public_key}")
    assert (again.status, again.code) == (404, "signer_not_found")


def test_key_is_withdrawn_for_all_who_registered_it_in_any_encoding(at: InstructionService) -> None:
    register(at, at.ann)
    assert at.request("PUT", SIGNER, {"public_key": f"{BENS.public_key}="}, key=at.ben).json["entity"] == BEN
    assert {one["entity"] for one in at.request("GET", SIGNER).json["signers"]} == {ANN, BEN}
    assert at.request("DELETE", f"{SIGNER}/{BENS.public_key}").status == 204
    assert at.request("GET", SIGNER).json["signers"] == []


@pytest.mark.parametrize("given_again", [False, True])
def test_quarantined_version_is_served_once_its_signer_is_registered_and_it_is_rewritten(
    at: InstructionService, given_again: bool
) -> None:
    at.furnish()
    at.clock.advance(60)
    text = "Read the whole diff of a pull request twice."
    signature = BENS.sign(unit_message(uri("code-review", "v2"), hashlib.sha256(text.encode()).hexdigest()))
    said = {"signature": signature} if given_again else {}
    assert at.write("code-review", "v2", text, signature=signature).json["status"] == "quarantined"
    assert at.write("code-review", "v2", text, **said).json["status"] == "quarantined"
    register(at, at.ben)
    at.clock.advance(60)
    again = at.write("code-review", "v2", text, **said)
    assert (again.status, again.json["status"]) == (200, "active")
    assert again.json["coverage"]["unit"] == "code-review"
    (chunk, *_) = at.recall("review a pull request").json["chunks"]
    assert (chunk["version"], chunk["content"]) == ("v2", text)
    old, new = at.library.records.list_unit_versions(AGENT, "code-review")
    assert (old.valid_until, new.created_at) == (at.library.now(), at.library.now())
    assert (new.signed_by, new.authored_by, new.source_trust) == (BEN, ANN, 0.9)


def test_trusted_signature_releases_a_version_from_quarantine(at: InstructionService) -> None:
    register(at, at.ann)
    assert at.write("code-review", signature="A" * 86).json["status"] == "quarantined"
    assert at.write("code-review", signature=sign("code-review")).json["status"] == "active"
    unit = at.library.records.unit(uri("code-review"))
    assert unit is not None
    assert (unit.signed_by, unit.source_trust) == (ANN, 1.0)


def test_version_released_from_quarantine_needs_approval_like_a_new_one(at: InstructionService) -> None:
    approval = {"kind": "guarantee_load", "unit": "code-review"}
    at.furnish([entry(name, guarantee_load=name == "code-review") for name in UNITS], approvals=[approval])
    text = UNITS["code-review"][2]
    signature = sign("code-review", "v2")
    assert at.write("code-review", "v2", text, signature=signature).json["status"] == "quarantined"
    register(at, at.ben)
    assert at.write("code-review", "v2", text).json["status"] == "pending"
    assert at.recall("anything").json["chunks"][-1]["version"] == "v1"
    approved = at.agent_request("POST", "/approvals", {**approval, "version": "v2"})
    assert approved.json["activated"] == [uri("code-review", "v2")]


def test_superseded_version_stays_in_quarantine(at: InstructionService) -> None:
    at.furnish()
    text = UNITS["code-review"][2]
    assert at.write("code-review", "v2", text, signature=sign("code-review", "v2")).status == 201
    assert at.write("code-review", "v3", "Newer words on a pull request.").json["status"] == "active"
    register(at, at.ben)
    again = at.write("code-review", "v2", text)
    assert (again.status, again.json["status"]) == (200, "quarantined")
    assert at.recall("review a pull request").json["chunks"][0]["version"] == "v3"
