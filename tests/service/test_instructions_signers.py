"""Signing keys: whose signatures count, until when, and what becomes of what nobody known had signed."""

import hashlib

import pytest

from holdfast.instructions.signatures import DeploymentKey, approval_message, unit_message
from holdfast.instructions.values import Approval
from instruction_places import AGENT, ANN, BEN, UNITS, Place, entry, uri

BENS = DeploymentKey(b"b" * 32)
SIGNER = "/v1/instruction/signer"


def register(at: Place, key: str, signer: DeploymentKey = BENS) -> None:
    assert at.ask("PUT", SIGNER, {"public_key": signer.public_key}, key=key).status == 200


def cosigned(at: Place) -> str:
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


def revoke(at: Place, key: str) -> None:
    assert at.client.service.records.revoke_key(key.split("_")[1], at=at.clock())


@pytest.mark.parametrize("fate", ["revoked", "expired", "kept", "revoked, and another holds"])
def test_a_signing_key_counts_as_long_as_its_holder_is_an_admin(at: Place, fate: str) -> None:
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
    (line,) = at.ask("GET", SIGNER).json["signers"]
    assert (line["entity"], line["public_key"], line["counts"]) == (BEN, BENS.public_key, counts)


def test_an_admin_withdraws_a_signing_key(at: Place) -> None:
    register(at, at.ben)
    assert at.write("release-notes", signature=sign("release-notes")).json["status"] == "active"
    gone = at.ask("DELETE", f"{SIGNER}/{BENS.public_key}", key=at.ann)
    assert (gone.status, gone.body) == (204, b"")
    assert at.ask("GET", SIGNER).json["signers"] == []
    assert cosigned(at) == "skip_gate_cosign_required"
    # What it has vouched for while it counted stays as it is.
    assert at.write("release-notes", signature=sign("release-notes")).json["status"] == "active"
    again = at.ask("DELETE", f"{SIGNER}/{BENS.public_key}")
    assert (again.status, again.code) == (404, "signer_not_found")


def test_a_key_is_withdrawn_for_all_who_registered_it_however_they_spelled_it(at: Place) -> None:
    register(at, at.ann)
    assert at.ask("PUT", SIGNER, {"public_key": f"{BENS.public_key}="}, key=at.ben).json["entity"] == BEN
    assert {one["entity"] for one in at.ask("GET", SIGNER).json["signers"]} == {ANN, BEN}
    assert at.ask("DELETE", f"{SIGNER}/{BENS.public_key}").status == 204
    assert at.ask("GET", SIGNER).json["signers"] == []
