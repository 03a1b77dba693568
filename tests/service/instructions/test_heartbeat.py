"""Heartbeats: begun by a signed trigger only, with the stub and what the wake reason requires."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.instruction_service import (
    AGENT,
    DEPLOYMENT_KEY,
    SECRET,
    UNITS,
    InstructionService,
    b64,
    entry,
    jwt,
    serve_instructions,
)

from holdfast.instructions.recall.wake_token import WakeIssuer
from holdfast.instructions.units.signatures import DeploymentKey

REASON = "issue_assigned"


def furnish(at: InstructionService, **more: Any) -> None:
    required = ("security-posture", "checkout-procedure")
    at.furnish([entry(name, required_by_task_types=[REASON] if name in required else []) for name in UNITS], **more)


def test_heartbeat_has_the_stub_and_units_required_by_its_reason(at: InstructionService) -> None:
    furnish(at)
    answered = at.heartbeat(at.wake(REASON))
    assert answered.status == 200
    told = answered.json
    assert (told["heartbeat_id"], told["session_start"]) == ("run_1", "2027-01-15T08:00:00Z")
    assert told["stub"] == at.agent_request("GET", "/boot-stub").body.decode()
    assert [one["name"] for one in told["preloads"]] == ["security-posture", "checkout-procedure"]
    assert [one["source"] for one in told["preloads"]] == ["task_type_preload"] * 2
    assert told["preloads"][0]["content"] == UNITS["security-posture"][2]
    assert told["warnings"] == []
    (record,) = at.records("preload")
    assert (record["intent"], record["heartbeat_id"]) == (f"preload:{REASON}", "run_1")
    assert record["audit_token"] == told["audit_token"]
    assert {one["source"] for one in record["loaded"]} == {"task_type_preload"}
    # Another reason requires nothing.
    assert at.heartbeat(at.wake("manual")).json["preloads"] == []


def test_wake_token_can_be_signed_with_eddsa(at: InstructionService) -> None:
    furnish(at)
    parts = at.wake(REASON).split(".")
    head = b64(json.dumps({"alg": "EdDSA"}).encode())
    token = f"{head}.{parts[1]}.{DEPLOYMENT_KEY.sign(f'{head}.{parts[1]}')}"
    assert at.heartbeat(token).status == 200
    forged = f"{head}.{parts[1]}.{DeploymentKey(b'x' * 32).sign(f'{head}.{parts[1]}')}"
    assert at.heartbeat(forged).code == "wake_token_invalid"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"wake_token": ""},
        {"wake_token": 1},
        {"wake_reason": REASON},
        {"wake_token": "a.b.c", "wake_reason": REASON},
    ],
)
def test_wake_reason_supplied_by_the_caller_is_refused(at: InstructionService, body: object) -> None:
    furnish(at)
    answered = at.agent_request("POST", "/heartbeat", body, key=at.agent_key)
    assert (answered.status, answered.code) == (400, "wake_token_required")


BAD_CLAIMS: tuple[dict[str, object], ...] = (
    {"iss": "somebody"},
    {"aud": "elsewhere"},
    {"sub": "other"},
    {"exp": 1_800_000_000.0 - 31},
    {"iat": 1_800_000_000.0 + 31},
    {"nbf": 1_800_000_000.0 + 31},
    {"exp": 1_800_000_000.0 + 3_601},
    {"jti": ""},
    {"jti": None},
    {"heartbeat_id": ""},
    {"wake_reason": 7},
)


@pytest.mark.parametrize("claims", BAD_CLAIMS, ids=str)
def test_token_with_wrong_claims_is_refused(at: InstructionService, claims: dict[str, Any]) -> None:
    furnish(at)
    answered = at.heartbeat(at.wake(REASON, **claims))
    assert (answered.status, answered.code) == (403, "wake_token_invalid")


def test_token_with_a_wrong_signature_is_refused(at: InstructionService) -> None:
    furnish(at)
    good = at.wake(REASON)
    head, claims, signature = good.split(".")
    unsigned = b64(json.dumps({"alg": "none"}).encode())
    for token in (
        at.wake(REASON, secret=f"{SECRET}!"),
        f"{unsigned}.{claims}.",
        f"{head}.{claims}.",
        f"{head}.{b64(json.dumps({'sub': AGENT}).encode())}.{signature}",
        jwt({"sub": AGENT}, SECRET, alg="HS512"),
        jwt({"sub": AGENT}, SECRET),
        "x" * 9_000,
        "ünïcode.a.b",
    ):
        assert at.heartbeat(token).code == "wake_token_invalid"
    assert at.heartbeat(good).status == 200


def test_wake_token_is_used_once(at: InstructionService) -> None:
    furnish(at)
    token = at.wake(REASON)
    assert at.heartbeat(token).status == 200
    again = at.heartbeat(token)
    assert (again.status, again.code) == (409, "wake_token_used")


def test_unknown_wake_reason_is_refused_even_if_signed(at: InstructionService) -> None:
    furnish(at)
    assert at.heartbeat(at.wake("tea_time")).code == "task_type_unknown"


def test_missing_guaranteed_unit_fails_the_heartbeat_and_others_warn(at: InstructionService) -> None:
    approvals = [{"kind": "guarantee_load", "unit": "gone"}]
    at.write("code-review")
    listed = [entry("code-review", required_by_task_types=[REASON]), entry("lost", required_by_task_types=[REASON])]
    assert at.publish(listed).status == 200
    told = at.heartbeat(at.wake(REASON)).json
    assert [(one["code"], one["unit"]) for one in told["warnings"]] == [("preload_unit_unavailable", "lost")]
    assert [one["name"] for one in told["preloads"]] == ["code-review"]
    assert at.records("preload")[0]["detail"]["warnings"][0]["unit"] == "lost"

    listed.append(entry("gone", guarantee_load=True, required_by_task_types=[REASON]))
    assert at.publish(listed, "v2", approvals=approvals).status == 200
    answered = at.heartbeat(at.wake(REASON, jti="second"))
    assert (answered.status, answered.code) == (503, "preload_unit_unavailable")
    # Its token is used up: the same request again would be refused.
    assert "retryable" not in answered.json["error"]["details"]
    assert answered.json["error"]["details"]["unit"] == "gone"
    (record,) = at.records("preload_error")
    assert {one["unit"] for one in record["detail"]["warnings"]} == {"gone", "lost"}


def test_file_replaces_a_missing_unit(at: InstructionService) -> None:
    (at.root / "review.md").write_text("From the file.")
    listed = [entry("code-review", path="review.md", required_by_task_types=[REASON])]
    assert at.publish(listed, migration_mode="coexistence").status == 200
    (one,) = at.heartbeat(at.wake(REASON)).json["preloads"]
    assert (one["source"], one["content"]) == ("fallback_path", "From the file.")
    assert at.records("preload")[0]["loaded"][0]["source"] == "fallback_path"


def test_many_preloads_raise_a_warning_and_none_is_dropped(at: InstructionService) -> None:
    at.write("code-review", content="many words " * 1500)
    assert at.publish([entry("code-review", required_by_task_types=[REASON])]).status == 200
    told = at.heartbeat(at.wake(REASON)).json
    assert [one["code"] for one in told["warnings"]] == ["preload_budget_warning"]
    assert [one["name"] for one in told["preloads"]] == ["code-review"]
    assert told["total_tokens"] > 2000


def test_heartbeat_sees_the_versions_of_its_start(at: InstructionService) -> None:
    furnish(at)
    at.heartbeat(at.wake("manual"))
    at.clock.advance(60)
    assert at.write("code-review", "v2", "Newer words on a pull request.").json["status"] == "active"
    during = at.recall("review a pull request", heartbeat_id="run_1").json["chunks"][0]
    after = at.recall("review a pull request").json["chunks"][0]
    assert (during["version"], after["version"]) == ("v1", "v2")


def test_stubs_differ_by_profile_and_an_unknown_profile_is_generic(at: InstructionService) -> None:
    furnish(at)
    stubs = {
        profile: at.agent_request("GET", f"/boot-stub?profile={profile}").body.decode()
        for profile in ("generic", "paperclip-claude-code", "openai-assistants", "none-such")
    }
    assert stubs["none-such"] == stubs["generic"] == at.agent_request("GET", "/boot-stub").body.decode()
    assert "Paperclip" in stubs["paperclip-claude-code"]
    assert 'adapter_profile: "openai-assistants"' in stubs["openai-assistants"]
    assert len({*stubs.values()}) == 3


def test_stub_bytes_are_stable_until_its_content_changes(at: InstructionService) -> None:
    furnish(at)
    first = at.agent_request("GET", "/boot-stub")
    at.clock.advance(3600)
    assert at.agent_request("GET", "/boot-stub").body == first.body
    rules = {"role": "CTO", "always_rules": ["Never deploy on Fridays."], "heartbeat_contract": "https://acme.test/h"}
    assert at.agent_request("PUT", "", rules).json["warnings"] == []
    changed = at.agent_request("GET", "/boot-stub")
    assert b"Never deploy on Fridays." in changed.body
    assert b'agent_role: "CTO"' in changed.body
    assert b"https://acme.test/h" in changed.body
    assert b"2027-01-15T09:00:00Z" in changed.body
    assert int(changed.headers["x-body-token-count"]) < int(changed.headers["x-token-count"])
    furnished_again = [entry(name) for name in UNITS]
    assert at.publish(furnished_again, "v2").status == 200
    assert at.agent_request("GET", "/boot-stub").headers["x-manifest-version"] == "v2"


def test_stub_over_500_tokens_is_refused_and_near_it_warned_about(at: InstructionService) -> None:
    assert at.agent_request("PUT", "", {"always_rules": ["word " * 420]}).code == "boot_stub_too_large"
    warned = at.agent_request("PUT", "", {"always_rules": ["word " * 340]})
    assert warned.status == 200
    assert "more than 450" in warned.json["warnings"][0]


def test_agent_without_a_manifest_has_no_stub(at: InstructionService) -> None:
    answered = at.agent_request("GET", "/boot-stub", key=at.agent_key)
    assert (answered.status, answered.code) == (404, "boot_stub_not_found")
    assert at.heartbeat(at.wake(REASON)).code == "manifest_not_found"


@pytest.mark.parametrize("profile", ["generic", "openai-assistants", "paperclip-claude-code"])
def test_heartbeat_has_the_stub_of_the_profile_it_names(at: InstructionService, profile: str) -> None:
    furnish(at)
    told = at.heartbeat(at.wake(REASON), profile=profile).json
    assert f'adapter_profile: "{profile}"' in told["stub"]
    assert told["stub"] == at.agent_request("GET", f"/boot-stub?profile={profile}").body.decode()


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ("openai-assistants", ("function `recall_instruction`", '{"intent": ')),
        ("paperclip-claude-code", ("heartbeat", "tools of Paperclip")),
    ],
)
def test_profile_appends_to_the_stub_what_its_runtime_needs(
    at: InstructionService, profile: str, says: tuple[str, str]
) -> None:
    furnish(at)
    generic, other = (
        at.agent_request("GET", f"/boot-stub?profile={name}").body.decode().split("\n---\n")[1]
        for name in ("generic", profile)
    )
    assert other.startswith(generic)
    assert all(text in other.removeprefix(generic) for text in says)


def test_no_token_is_accepted_without_a_configured_issuer(tmp_path: Path) -> None:
    with serve_instructions("sqlite", tmp_path, wake=None) as at:
        furnish(at)
        for token in (at.wake(REASON), at.wake(REASON, secret="")):
            answered = at.heartbeat(token)
            assert (answered.status, answered.code) == (403, "wake_token_invalid")
        assert at.records() == []


def test_no_shared_secret_is_accepted_with_only_a_public_key_configured(tmp_path: Path) -> None:
    trust = WakeIssuer("control-plane", "holdfast", public_key=DEPLOYMENT_KEY.public_key)
    with serve_instructions("sqlite", tmp_path, wake=trust) as at:
        furnish(at)
        for secret in ("", SECRET, DEPLOYMENT_KEY.public_key):
            assert at.heartbeat(at.wake(REASON, secret=secret)).code == "wake_token_invalid"


@pytest.mark.parametrize(
    "pointer", [{}, {"fact_uri": None, "path": "how-we-work/with-others/on-their-changes/a.md"}], ids=["unit", "file"]
)
def test_manifest_that_makes_the_stub_too_large_is_refused(at: InstructionService, pointer: dict[str, object]) -> None:
    listed = [entry("code-review", **pointer)]
    assert at.agent_request("PUT", "", {"always_rules": ["word " * 340]}).status == 200
    answered = at.publish(listed)
    assert (answered.status, answered.code) == (400, "boot_stub_too_large")
    details = answered.json["error"]["details"]
    assert details["token_count"] > details["token_max"] == 500
    assert at.agent_request("GET", "/instruction-manifest").code == "manifest_not_found"
    assert at.agent_request("PUT", "", {"always_rules": ["word " * 240]}).status == 200
    assert at.publish(listed).status == 200


def test_recall_prefers_units_whose_task_types_name_the_wake_reason(at: InstructionService) -> None:
    for number, name in enumerate(("plants-a", "plants-b"), start=1):
        assert at.write(name, content=f"Water the plants of the office, page {number}.").status == 201
    triggers = {"intents": ["water the plants of the office"]}
    hinted = {**triggers, "task_types": ["routine_fired", "manual"]}
    plain, fits = entry("plants-a", load_triggers=triggers), entry("plants-b", load_triggers=hinted)
    others = [entry(name) for name in UNITS]
    at.furnish([plain, fits, *others])

    def first(**more: Any) -> dict[str, Any]:
        found: dict[str, Any] = at.recall("water the plants of the office", max_chunks=1, **more).json
        return found

    assert first()["chunks"][0]["name"] == "plants-a"
    for reason, name in (("routine_fired", "plants-b"), ("issue_assigned", "plants-a"), ("manual", "plants-b")):
        told = at.heartbeat(at.wake(reason, heartbeat_id=f"run_{reason}")).json
        # A hint loads nothing by itself.
        assert told["preloads"] == []
        recalled = first(heartbeat_id=f"run_{reason}", explain=True)
        assert recalled["chunks"][0]["name"] == name
        assert recalled["chunks"][0]["why"].get("fits_task_type", False) is (name == "plants-b")
        again = at.agent_request("POST", "/instruction-replay", {"audit_token": recalled["audit_token"]}).json
        assert (again["same_order"], again["same_snapshot"]) == (True, True)
    # What has nothing to do with the intent stays away, whatever the task.
    assert "plants-b" not in at.recalled("approve a purchase", heartbeat_id="run_manual")
    assert first(heartbeat_id="run_of_nobody")["chunks"][0]["name"] == "plants-a"
