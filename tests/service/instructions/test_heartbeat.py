"""Heartbeats: started only by a signed wake token, with the stub and the units that the wake reason requires."""

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


def publish_required(service: InstructionService, **more: Any) -> None:
    required = ("security-posture", "checkout-procedure")
    service.publish_all(
        [entry(name, required_by_task_types=[REASON] if name in required else []) for name in UNITS], **more
    )


def test_heartbeat_has_the_stub_and_units_required_by_its_reason(service: InstructionService) -> None:
    publish_required(service)
    response = service.heartbeat(service.wake(REASON))
    assert response.status == 200
    heartbeat = response.json
    assert (heartbeat["heartbeat_id"], heartbeat["session_start"]) == ("run_1", "2027-01-15T08:00:00Z")
    assert heartbeat["stub"] == service.agent_request("GET", "/boot-stub").body.decode()
    assert [preload["name"] for preload in heartbeat["preloads"]] == ["security-posture", "checkout-procedure"]
    assert [preload["source"] for preload in heartbeat["preloads"]] == ["task_type_preload"] * 2
    assert heartbeat["preloads"][0]["content"] == UNITS["security-posture"][2]
    assert heartbeat["warnings"] == []
    (record,) = service.records("preload")
    assert (record["intent"], record["heartbeat_id"]) == (f"preload:{REASON}", "run_1")
    assert record["audit_token"] == heartbeat["audit_token"]
    assert {one["source"] for one in record["loaded"]} == {"task_type_preload"}
    # Another reason requires nothing.
    assert service.heartbeat(service.wake("manual")).json["preloads"] == []


def test_wake_token_can_be_signed_with_eddsa(service: InstructionService) -> None:
    publish_required(service)
    parts = service.wake(REASON).split(".")
    head = b64(json.dumps({"alg": "EdDSA"}).encode())
    token = f"{head}.{parts[1]}.{DEPLOYMENT_KEY.sign(f'{head}.{parts[1]}')}"
    assert service.heartbeat(token).status == 200
    forged = f"{head}.{parts[1]}.{DeploymentKey(b'x' * 32).sign(f'{head}.{parts[1]}')}"
    assert service.heartbeat(forged).code == "wake_token_invalid"


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
def test_wake_reason_supplied_by_the_caller_is_refused(service: InstructionService, body: object) -> None:
    publish_required(service)
    response = service.agent_request("POST", "/heartbeat", body, key=service.agent_key)
    assert (response.status, response.code) == (400, "wake_token_required")


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
def test_token_with_wrong_claims_is_refused(service: InstructionService, claims: dict[str, Any]) -> None:
    publish_required(service)
    response = service.heartbeat(service.wake(REASON, **claims))
    assert (response.status, response.code) == (403, "wake_token_invalid")


def test_token_with_a_wrong_signature_is_refused(service: InstructionService) -> None:
    publish_required(service)
    good = service.wake(REASON)
    head, claims, signature = good.split(".")
    unsigned = b64(json.dumps({"alg": "none"}).encode())
    for token in (
        service.wake(REASON, secret=f"{SECRET}!"),
        f"{unsigned}.{claims}.",
        f"{head}.{claims}.",
        f"{head}.{b64(json.dumps({'sub': AGENT}).encode())}.{signature}",
        jwt({"sub": AGENT}, SECRET, alg="HS512"),
        jwt({"sub": AGENT}, SECRET),
        "x" * 9_000,
        "ünïcode.a.b",
    ):
        assert service.heartbeat(token).code == "wake_token_invalid"
    assert service.heartbeat(good).status == 200


def test_wake_token_is_used_once(service: InstructionService) -> None:
    publish_required(service)
    token = service.wake(REASON)
    assert service.heartbeat(token).status == 200
    again = service.heartbeat(token)
    assert (again.status, again.code) == (409, "wake_token_used")


def test_unknown_wake_reason_is_refused_even_if_signed(service: InstructionService) -> None:
    publish_required(service)
    assert service.heartbeat(service.wake("tea_time")).code == "task_type_unknown"


def test_missing_guaranteed_unit_fails_the_heartbeat_and_others_warn(service: InstructionService) -> None:
    approvals = [{"kind": "guarantee_load", "unit": "gone"}]
    service.write("code-review")
    listed = [entry("code-review", required_by_task_types=[REASON]), entry("lost", required_by_task_types=[REASON])]
    assert service.publish(listed).status == 200
    heartbeat = service.heartbeat(service.wake(REASON)).json
    assert [(warning["code"], warning["unit"]) for warning in heartbeat["warnings"]] == [
        ("preload_unit_unavailable", "lost")
    ]
    assert [preload["name"] for preload in heartbeat["preloads"]] == ["code-review"]
    assert service.records("preload")[0]["detail"]["warnings"][0]["unit"] == "lost"

    listed.append(entry("gone", guarantee_load=True, required_by_task_types=[REASON]))
    assert service.publish(listed, "v2", approvals=approvals).status == 200
    response = service.heartbeat(service.wake(REASON, jti="second"))
    assert (response.status, response.code) == (503, "preload_unit_unavailable")
    # Its token is used up: the same request again would be refused.
    assert "retryable" not in response.json["error"]["details"]
    assert response.json["error"]["details"]["unit"] == "gone"
    (record,) = service.records("preload_error")
    assert {warning["unit"] for warning in record["detail"]["warnings"]} == {"gone", "lost"}


def test_file_replaces_a_missing_unit(service: InstructionService) -> None:
    (service.root / "review.md").write_text("From the file.")
    listed = [entry("code-review", path="review.md", required_by_task_types=[REASON])]
    assert service.publish(listed, migration_mode="coexistence").status == 200
    (one,) = service.heartbeat(service.wake(REASON)).json["preloads"]
    assert (one["source"], one["content"]) == ("fallback_path", "From the file.")
    assert service.records("preload")[0]["loaded"][0]["source"] == "fallback_path"


def test_many_preloads_raise_a_warning_and_none_is_dropped(service: InstructionService) -> None:
    service.write("code-review", content="many words " * 1500)
    assert service.publish([entry("code-review", required_by_task_types=[REASON])]).status == 200
    heartbeat = service.heartbeat(service.wake(REASON)).json
    assert [warning["code"] for warning in heartbeat["warnings"]] == ["preload_budget_warning"]
    assert [preload["name"] for preload in heartbeat["preloads"]] == ["code-review"]
    assert heartbeat["total_tokens"] > 2000


def test_heartbeat_sees_a_new_version_at_once(service: InstructionService) -> None:
    publish_required(service)
    service.heartbeat(service.wake("manual"))
    service.clock.advance(60)
    assert service.write("code-review", "v2", "Newer words on a pull request.").json["status"] == "active"
    during = service.recall("review a pull request", heartbeat_id="run_1").json["chunks"][0]
    after = service.recall("review a pull request").json["chunks"][0]
    assert (during["version"], after["version"]) == ("v2", "v2")


def test_stubs_differ_by_profile_and_an_unknown_profile_is_generic(service: InstructionService) -> None:
    publish_required(service)
    stubs = {
        profile: service.agent_request("GET", f"/boot-stub?profile={profile}").body.decode()
        for profile in ("generic", "paperclip-claude-code", "openai-assistants", "none-such")
    }
    assert stubs["none-such"] == stubs["generic"] == service.agent_request("GET", "/boot-stub").body.decode()
    assert "Paperclip" in stubs["paperclip-claude-code"]
    assert 'adapter_profile: "openai-assistants"' in stubs["openai-assistants"]
    assert len({*stubs.values()}) == 3


def test_stub_bytes_are_stable_until_its_content_changes(service: InstructionService) -> None:
    publish_required(service)
    first = service.agent_request("GET", "/boot-stub")
    service.clock.advance(3600)
    assert service.agent_request("GET", "/boot-stub").body == first.body
    rules = {"role": "CTO", "always_rules": ["Never deploy on Fridays."], "heartbeat_contract": "https://acme.test/h"}
    assert service.agent_request("PUT", "", rules).json["warnings"] == []
    changed = service.agent_request("GET", "/boot-stub")
    assert b"Never deploy on Fridays." in changed.body
    assert b'agent_role: "CTO"' in changed.body
    assert b"https://acme.test/h" in changed.body
    assert b"2027-01-15T09:00:00Z" in changed.body
    assert int(changed.headers["x-body-token-count"]) < int(changed.headers["x-token-count"])
    published_service_again = [entry(name) for name in UNITS]
    assert service.publish(published_service_again, "v2").status == 200
    assert service.agent_request("GET", "/boot-stub").headers["x-manifest-version"] == "v2"


def test_stub_over_500_tokens_is_refused_and_near_it_warned_about(service: InstructionService) -> None:
    assert service.agent_request("PUT", "", {"always_rules": ["word " * 420]}).code == "boot_stub_too_large"
    warned = service.agent_request("PUT", "", {"always_rules": ["word " * 365]})
    assert warned.status == 200
    assert "more than 450" in warned.json["warnings"][0]


def test_agent_without_a_manifest_has_no_stub(service: InstructionService) -> None:
    response = service.agent_request("GET", "/boot-stub", key=service.agent_key)
    assert (response.status, response.code) == (404, "boot_stub_not_found")
    assert service.heartbeat(service.wake(REASON)).code == "manifest_not_found"


@pytest.mark.parametrize("profile", ["generic", "openai-assistants", "paperclip-claude-code"])
def test_heartbeat_has_the_stub_of_the_profile_it_names(service: InstructionService, profile: str) -> None:
    publish_required(service)
    heartbeat = service.heartbeat(service.wake(REASON), profile=profile).json
    assert f'adapter_profile: "{profile}"' in heartbeat["stub"]
    assert heartbeat["stub"] == service.agent_request("GET", f"/boot-stub?profile={profile}").body.decode()


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        ("openai-assistants", ("function `recall_instruction`", '{"intent": ')),
        ("paperclip-claude-code", ("heartbeat", "tools of Paperclip")),
    ],
)
def test_profile_appends_to_the_stub_what_its_runtime_needs(
    service: InstructionService, profile: str, says: tuple[str, str]
) -> None:
    publish_required(service)
    generic, other = (
        service.agent_request("GET", f"/boot-stub?profile={name}").body.decode().split("\n---\n")[1]
        for name in ("generic", profile)
    )
    assert other.startswith(generic)
    assert all(text in other.removeprefix(generic) for text in says)


def test_no_token_is_accepted_without_a_configured_issuer(tmp_path: Path) -> None:
    with serve_instructions("sqlite", tmp_path, wake=None) as service:
        publish_required(service)
        for token in (service.wake(REASON), service.wake(REASON, secret="")):
            response = service.heartbeat(token)
            assert (response.status, response.code) == (403, "wake_token_invalid")
        assert service.records() == []


def test_no_shared_secret_is_accepted_with_only_a_public_key_configured(tmp_path: Path) -> None:
    trust = WakeIssuer("control-plane", "holdfast", public_key=DEPLOYMENT_KEY.public_key)
    with serve_instructions("sqlite", tmp_path, wake=trust) as service:
        publish_required(service)
        for secret in ("", SECRET, DEPLOYMENT_KEY.public_key):
            assert service.heartbeat(service.wake(REASON, secret=secret)).code == "wake_token_invalid"


@pytest.mark.parametrize(
    "pointer", [{}, {"fact_uri": None, "path": "how-we-work/with-others/on-their-changes/a.md"}], ids=["unit", "file"]
)
def test_manifest_that_makes_the_stub_too_large_is_refused(
    service: InstructionService, pointer: dict[str, object]
) -> None:
    service.write_all()
    file = service.root / "how-we-work/with-others/on-their-changes/a.md"
    file.parent.mkdir(parents=True)
    file.write_text(UNITS["code-review"][2])
    listed = [entry("code-review", **pointer)]
    assert service.agent_request("PUT", "", {"always_rules": ["word " * 365]}).status == 200
    response = service.publish(listed)
    assert (response.status, response.code) == (400, "boot_stub_too_large")
    details = response.json["error"]["details"]
    assert details["token_count"] > details["token_max"] == 500
    assert service.agent_request("GET", "/instruction-manifest").code == "manifest_not_found"
    assert service.agent_request("PUT", "", {"always_rules": ["word " * 240]}).status == 200
    assert service.publish(listed).status == 200


def test_recall_prefers_units_whose_task_types_name_the_wake_reason(service: InstructionService) -> None:
    for number, name in enumerate(("plants-a", "plants-b"), start=1):
        assert service.write(name, content=f"Water the plants of the office, page {number}.").status == 201
    triggers = {"intents": ["water the plants of the office"]}
    hinted = {**triggers, "task_types": ["routine_fired", "manual"]}
    plain, fits = entry("plants-a", load_triggers=triggers), entry("plants-b", load_triggers=hinted)
    others = [entry(name) for name in UNITS]
    service.publish_all([plain, fits, *others])

    def first(**more: Any) -> dict[str, Any]:
        found: dict[str, Any] = service.recall("water the plants of the office", max_chunks=1, **more).json
        return found

    assert first()["chunks"][0]["name"] == "plants-a"
    for reason, name in (("routine_fired", "plants-b"), ("issue_assigned", "plants-a"), ("manual", "plants-b")):
        heartbeat = service.heartbeat(service.wake(reason, heartbeat_id=f"run_{reason}")).json
        # A hint loads nothing by itself.
        assert heartbeat["preloads"] == []
        recalled = first(heartbeat_id=f"run_{reason}", explain=True)
        assert recalled["chunks"][0]["name"] == name
        assert recalled["chunks"][0]["why"].get("fits_task_type", False) is (name == "plants-b")
        again = service.agent_request("POST", "/instruction-replay", {"audit_token": recalled["audit_token"]}).json
        assert (again["same_order"], again["same_snapshot"]) == (True, True)
    # A unit unrelated to the intent is not loaded, whatever the task type.
    assert "plants-b" not in service.recalled("approve a purchase", heartbeat_id="run_manual")
    assert first(heartbeat_id="run_of_nobody")["chunks"][0]["name"] == "plants-a"
