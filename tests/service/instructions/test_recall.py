"""Recall: which units are found, in which order, within which budget, and why."""

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.support.instruction_service import AGENT, UNITS, InstructionService, entry, serve_instructions, uri

from holdfast.errors import UserError
from holdfast.retrieval.encoders import wordllama
from holdfast.retrieval.units import SearchUnit

CLAIM = "I need to claim a ticket and check out an issue"


@pytest.mark.parametrize("body", [None, {}, {"intent": ""}, {"intent": " \n"}, {"intent": 7}, {"intent": None}])
def test_intent_is_required(published_service: InstructionService, body: object) -> None:
    response = published_service.agent_request("POST", "/recall-instruction", body, key=published_service.agent_key)
    assert (response.status, response.code) == (400, "intent_required")


@pytest.mark.parametrize(
    "more",
    [
        {"max_chunks": 0},
        {"max_chunks": 21},
        {"token_budget": 0},
        {"token_budget": "x"},
        {"manifest_hint": "x"},
        {"x": 1},
    ],
)
def test_invalid_recall_is_400_in_our_error_shape(published_service: InstructionService, more: dict[str, Any]) -> None:
    response = published_service.recall(CLAIM, **more)
    assert (response.status, response.code) == (400, "invalid_body")


def test_agent_without_a_manifest_has_nothing_to_recall(service: InstructionService) -> None:
    response = service.recall(CLAIM)
    assert (response.status, response.code) == (404, "manifest_not_found")


def test_same_intent_gets_the_same_result(published_service: InstructionService) -> None:
    first, second = (published_service.recall(CLAIM, floor=False).json for _ in range(2))
    assert first["chunks"] == second["chunks"]
    assert first["snapshot_id"] == second["snapshot_id"]
    assert first["audit_token"] != second["audit_token"]
    scores = [chunk["score"] for chunk in first["chunks"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert len(scores) == 3


def test_poor_match_is_dropped_unless_the_floor_is_off_or_it_is_hinted(published_service: InstructionService) -> None:
    nonsense = "xylophone quartet zeppelin"
    assert published_service.recalled(nonsense) == []
    assert len(published_service.recalled(nonsense, floor=False)) == 3
    assert published_service.recalled(nonsense, manifest_hint=["code-review"]) == ["code-review"]


def test_hints_come_first_in_their_order_and_count_as_chunks(published_service: InstructionService) -> None:
    response = published_service.recall(
        CLAIM, manifest_hint=["release-notes", "none-such", "budget-rules", "release-notes"]
    )
    names = [chunk["name"] for chunk in response.json["chunks"]]
    assert names == ["release-notes", "budget-rules", "checkout-procedure"]
    assert response.json["missed_hints"] == ["none-such"]
    assert response.json["dropped_hints"] == []
    assert not response.json["truncated"]


def test_hint_over_budget_is_reported_as_dropped(published_service: InstructionService) -> None:
    response = published_service.recall(CLAIM, manifest_hint=["release-notes", "budget-rules"], max_chunks=1)
    assert [chunk["name"] for chunk in response.json["chunks"]] == ["release-notes"]
    assert (response.json["dropped_hints"], response.json["truncated"]) == (["budget-rules"], True)
    response = published_service.recall(CLAIM, manifest_hint=["release-notes"], token_budget=3)
    assert response.json["chunks"] == []
    assert (response.json["dropped_hints"], response.json["truncated"]) == (["release-notes"], True)
    assert response.json["missed_hints"] == []


def test_ranked_units_stay_within_the_budget(published_service: InstructionService) -> None:
    everything = published_service.recall(CLAIM, floor=False).json
    assert everything["total_tokens"] == sum(chunk["tokens"] for chunk in everything["chunks"])
    assert not everything["truncated"]
    tight = published_service.recall(CLAIM, floor=False, token_budget=everything["total_tokens"] - 1).json
    assert tight["total_tokens"] < everything["total_tokens"]
    assert tight["truncated"]


def test_guaranteed_units_are_always_present_and_displace_others(service: InstructionService) -> None:
    approvals = [
        {"kind": "guarantee_load", "unit": "security-posture"},
        {"kind": "guarantee_load", "unit": "budget-rules"},
        {"kind": "force_prepend", "unit": "budget-rules", "reason": "read"},
    ]
    listed = [
        entry("security-posture", guarantee_load=True),
        entry("budget-rules", guarantee_load=True, force_position="prepend"),
        *(entry(name) for name in UNITS if name not in ("security-posture", "budget-rules")),
    ]
    service.publish_all(listed, approvals=approvals)
    # They do not count as chunks; one comes first, and one after the ranked units.
    assert service.recalled(CLAIM, max_chunks=1) == ["budget-rules", "checkout-procedure", "security-posture"]
    whole = service.recall(CLAIM, max_chunks=1).json
    tokens = {chunk["name"]: chunk["tokens"] for chunk in whole["chunks"]}
    less = service.recall(CLAIM, max_chunks=1, token_budget=whole["total_tokens"] - 1).json
    assert [chunk["name"] for chunk in less["chunks"]] == ["budget-rules", "security-posture"]
    assert less["truncated"]
    tiny = service.recall(CLAIM, token_budget=1).json
    assert tiny["total_tokens"] == tokens["budget-rules"] + tokens["security-posture"]
    assert tiny["truncated"]


def test_explained_result_states_reasons_and_dropped_units(published_service: InstructionService) -> None:
    result = published_service.recall(CLAIM, max_chunks=1, explain=True).json
    why = result["chunks"][0]["why"]
    assert {stage["stage"] for stage in why["stages"]} == {"lexical", "semantic", "graph"}
    assert sum(stage["added"] for stage in why["stages"]) == pytest.approx(result["chunks"][0]["score"], abs=1e-5)
    assert "ticket" in why["matched_terms"]
    assert {one["reason"] for one in result["dropped"]} <= {"below_floor", "weak", "over_max_chunks"}
    assert len(result["dropped"]) == len(UNITS) - 1
    assert published_service.recall(CLAIM).json["dropped"] is None


def test_scope_recall_accepts_weights(published_service: InstructionService) -> None:
    scope = f"instruction:local/{AGENT}"
    body = {
        "scope": scope,
        "intent": CLAIM,
        "max_facts": 1,
        "weights": {"lexical": 0.35, "semantic": 0.50, "graph": 0.15},
        "require_garden_ids": [f"instruction:local:{AGENT}"],
    }
    result = published_service.request("POST", "/v1/recall", body, key=published_service.agent_key).json
    assert [chunk["name"] for chunk in result["chunks"]] == ["checkout-procedure"]
    words = {**body, "weights": {"lexical": 0.3, "vector": 0.5, "graph": 0.2}}
    assert published_service.request("POST", "/v1/recall", words, key=published_service.agent_key).status == 200
    query = {"scope": scope, "query": CLAIM}
    assert published_service.request("POST", "/v1/recall", query, key=published_service.agent_key).status == 200
    for fault, code in (
        ({"weights": {"lexical": 1, "semantic": 1, "graph": 0}}, "invalid_weights"),
        ({"weights": {"lexical": -1, "semantic": 2, "graph": 0}}, "invalid_weights"),
        ({"scope": "team"}, "invalid_scope"),
        ({"intent": ""}, "intent_required"),
        ({"require_garden_ids": ["instruction:local:other"]}, "instruction_scope_denied"),
        ({"scope": f"instruction:acme/{AGENT}"}, "instruction_scope_denied"),
        ({"scope": "instruction:local/other"}, "instruction_scope_denied"),
    ):
        assert (
            published_service.request("POST", "/v1/recall", {**body, **fault}, key=published_service.agent_key).code
            == code
        )


def test_recall_succeeds_when_its_record_cannot_be_written(published_service: InstructionService) -> None:
    published_service.drop_table("instruction_audit")
    response = published_service.recall(CLAIM).json
    assert (response["chunks"][0]["name"], response["audit_token"]) == ("checkout-procedure", "")
    assert published_service.warned == ["audit_write_failed: StoreError"]


@pytest.mark.parametrize("required", [False, True])
def test_recall_on_a_locked_store_answers_soon_without_a_token_or_fails_by_setting(
    tmp_path: Path, required: bool
) -> None:
    with serve_instructions("sqlite", tmp_path, audit_required=required) as service:
        service.publish_all()
        token = service.recall(CLAIM).json["audit_token"]
        with closing(sqlite3.connect(tmp_path / "log.db", isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            started = time.monotonic()
            response = service.recall(CLAIM)
            waited = time.monotonic() - started
            other.execute("ROLLBACK")
        assert waited < 5  # A second for the lock; the store's own limit is ten.
        if required:
            assert (response.status, response.code) == (503, "recall_backend_unavailable")
        else:
            assert response.json["chunks"][0]["name"] == "checkout-procedure"
            assert not response.json["audit_token"]
        assert service.warned[0] == "audit_write_failed: StoreError"
        # The store is usable again, and every token that was given out is accepted.
        for valid in (token, service.recall(CLAIM).json["audit_token"]):
            body = {"audit_token": valid, "used_chunks": []}
            assert service.request("POST", "/v1/instruction/audit", body, key=service.agent_key).status == 204


@pytest.mark.parametrize("table", ["instruction_agents", "instruction_units", "api_keys"])
def test_store_failure_is_a_retryable_503(published_service: InstructionService, table: str) -> None:
    published_service.drop_table(table)
    scope = {"scope": f"instruction:local/{AGENT}", "intent": CLAIM}
    for response in (
        published_service.recall(CLAIM),
        published_service.request("POST", "/v1/recall", scope, key=published_service.agent_key),
    ):
        assert (response.status, response.code) == (503, "recall_backend_unavailable")
        assert response.json["error"]["details"] == {"retryable": True}


def test_missing_unit_is_named_and_does_not_fail_the_recall(service: InstructionService) -> None:
    service.write("code-review")
    without_probes = entry("release-notes", load_triggers={})
    published = service.publish([entry("code-review"), without_probes])
    assert published.status == 200
    assert any("release-notes: unit_unavailable" in line for line in published.json["warnings"])
    result = service.recall("write release notes", manifest_hint=["release-notes"], floor=False).json
    assert result["missed_hints"] == result["unavailable"] == ["release-notes"]
    assert [chunk["name"] for chunk in result["chunks"]] == ["code-review"]


def test_chunk_of_a_file_names_its_path_and_of_a_unit_its_uri(service: InstructionService) -> None:
    service.write("code-review")
    (service.root / "notes.md").write_text("Release notes list what changed in the new version.")
    (service.root / "review.md").write_text("Old words.")
    listed = [entry("code-review", path="review.md"), entry("release-notes", path="notes.md")]
    assert service.publish(listed, migration_mode="coexistence").status == 200
    result = service.recall("x", manifest_hint=["code-review", "release-notes"]).json["chunks"]
    assert [(chunk["source"], chunk["fact_uri"]) for chunk in result] == [
        ("stigmem", uri("code-review")),
        ("fallback_path", None),
    ]
    (service.root / "notes.md").write_text("Changed.")
    assert service.recall("x", manifest_hint=["release-notes"]).json["chunks"][0]["content"] == "Changed."
    (service.root / "notes.md").unlink()
    assert service.recall("x", manifest_hint=["release-notes"]).json["missed_hints"] == ["release-notes"]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret.md", "a/../../secret.md", "link.md", "folder/secret.md", ""]
)
def test_no_path_escapes_the_root_of_the_agent(service: InstructionService, path: str) -> None:
    secret = service.root.parent / "secret.md"
    secret.write_text("a secret")
    (service.root / "link.md").symlink_to(secret)
    (service.root / "folder").symlink_to(service.root.parent)
    response = service.publish([entry("code-review", fact_uri=None, path=path)], migration_mode="file")
    assert (response.status, response.code) == (400, "manifest_entry_invalid")


def test_symlink_that_later_escapes_the_root_is_not_read(service: InstructionService) -> None:
    secret = service.root.parent / "secret.md"
    secret.write_text("a secret")
    (service.root / "a.md").write_text("harmless")
    assert service.publish([entry("code-review", fact_uri=None, path="a.md")]).status == 200
    (service.root / "a.md").unlink()
    (service.root / "a.md").symlink_to(secret)
    result = service.recall("x", manifest_hint=["code-review"])
    assert result.json["missed_hints"] == ["code-review"]
    assert b"a secret" not in result.body


@pytest.mark.parametrize(
    ("entries", "declared", "mode"),
    [
        ([{"fact_uri": None, "path": "a.md"}], None, "file"),
        ([{"fact_uri": None, "path": "a.md"}], "file", "file"),
        ([{"fact_uri": None, "path": "a.md"}], "stigmem", None),
        ([{"path": "a.md"}], "coexistence", "coexistence"),
        ([{"path": "a.md"}], None, None),
        ([{"path": "a.md"}], "stigmem", None),
        ([{}], "stigmem", "stigmem"),
        ([{}], "coexistence", None),
        ([{}], "file", None),
    ],
)
def test_migration_mode_follows_from_the_entries(
    service: InstructionService, entries: list[dict[str, object]], declared: str | None, mode: str | None
) -> None:
    service.write_all()
    (service.root / "a.md").write_text(UNITS["code-review"][2])
    listed = [entry("code-review", **one) for one in entries]
    published = service.publish(listed, **({"migration_mode": declared} if declared else {}))
    if mode is None:
        assert published.code == "manifest_entry_invalid"
        return
    stub = service.agent_request("GET", "/boot-stub").body.decode()
    assert f'migration_mode: "{mode}"' in stub
    assert ("manifest_uri: null" in stub) == (mode == "file")
    assert ("`a.md`" in stub) == (mode == "file")


@pytest.mark.parametrize("weight", ["lexical", "semantic", "vector"])
def test_stage_of_zero_weight_adds_nothing_and_of_full_weight_is_the_score(
    published_service: InstructionService, weight: str
) -> None:
    only = "semantic" if weight == "vector" else weight
    body = {
        "scope": f"instruction:local/{AGENT}",
        "intent": CLAIM,
        "max_facts": len(UNITS),
        "weights": {weight: 1.0},
        "explain": True,
        "floor": False,
    }
    chunks = published_service.request("POST", "/v1/recall", body, key=published_service.agent_key).json["chunks"]
    assert chunks[0]["score"] > 0
    for chunk in chunks:
        added = {stage["stage"]: stage["added"] for stage in chunk["why"]["stages"]}
        fits = {stage["stage"]: stage["fit"] for stage in chunk["why"]["stages"]}
        assert added == {**dict.fromkeys(added, 0.0), only: pytest.approx(fits[only])}
        assert chunk["score"] == pytest.approx(fits[only], abs=1e-5)


@pytest.mark.parametrize(("tokens", "loads"), [(2000, True), (2001, False)])
def test_default_budget_is_2000_tokens(service: InstructionService, tokens: int, loads: bool) -> None:
    service.write("checkout-procedure", content=f"Claim the ticket{' word' * (tokens - 3)}")
    assert service.publish([entry("checkout-procedure")]).status == 200
    scope = {"scope": f"instruction:local/{AGENT}", "intent": CLAIM}
    for response in (service.recall(CLAIM), service.request("POST", "/v1/recall", scope, key=service.agent_key)):
        result = response.json
        assert [chunk["tokens"] for chunk in result["chunks"]] == ([tokens] if loads else [])
        assert result["truncated"] is not loads
    assert service.recall(CLAIM, token_budget=tokens).json["total_tokens"] == tokens


def test_tool_schema_states_the_default_budget(published_service: InstructionService) -> None:
    stub = published_service.agent_request("GET", "/boot-stub").body.decode()
    schema = next(line for line in stub.splitlines() if line.startswith("recall_tool_schema: "))
    fields = json.loads(schema.partition(": ")[2])["input_schema"]["properties"]
    assert (fields["token_budget"]["default"], fields["max_chunks"]["default"]) == (2000, 3)


class FailingEncoder:
    """An encoder that fails when it is called, or already when it is created."""

    model_version, floor, words_share = "failing", 0.1, 1.0

    def __init__(self, error: Exception) -> None:
        self._error = error

    def add(self, slot: int, unit: SearchUnit) -> None:
        pass

    def remove(self, slot: int) -> None:
        pass

    def match(self, query: str, *, slots: int) -> list[float]:
        raise self._error


class ThirdPartyError(Exception):
    pass


ERRORS = (RuntimeError("x"), OSError("x"), ValueError("x"), MemoryError("x"), ThirdPartyError("x"), UserError("x"))


@pytest.mark.parametrize("is_made", [True, False], ids=["asked", "made"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_encoder_failure_is_a_retryable_503(
    service: InstructionService, monkeypatch: pytest.MonkeyPatch, error: Exception, is_made: bool
) -> None:
    service.publish_all()
    began = service.heartbeat(service.wake()).json["heartbeat_id"]

    def stage() -> FailingEncoder:
        if is_made:
            return FailingEncoder(error)
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(wordllama, "create_stage", stage)
        service.library.instruction_sets.clear()
        scope = {"scope": f"instruction:local/{AGENT}", "intent": CLAIM}
        entries = [entry(name) for name in UNITS]
        responses = [
            service.recall(CLAIM),
            service.recall(CLAIM, heartbeat_id=began),
            service.request("POST", "/v1/recall", scope, key=service.agent_key),
            service.publish(entries, "v2"),
            service.agent_request("POST", "/instruction-manifest/coverage"),
            service.request("GET", f"/api/instructions/{AGENT}/recall?intent=x"),
        ]
        assert [(response.status, response.code) for response in responses] == [
            (503, "recall_backend_unavailable")
        ] * len(responses)
        assert not any(str(error) in str(response.json) for response in responses)
        assert any("recall_backend_unavailable" in line for line in service.warned)
    service.library.instruction_sets.clear()
    assert service.recalled(CLAIM)[0] == "checkout-procedure"
    assert service.publish(entries, "v2").status == 200


def test_record_stores_the_truncated_intent_and_replays_it(
    published_service: InstructionService,
) -> None:
    recalled = published_service.recall(f"{CLAIM} {'x' * 900_000} approve a purchase").json
    (record,) = published_service.records("recall")
    assert len(record["intent"]) == len(record["detail"]["question"]["intent"]) == 8_000
    replayed = published_service.agent_request(
        "POST", "/instruction-replay", {"audit_token": recalled["audit_token"]}
    ).json
    assert replayed["same_order"]
    assert replayed["loaded_now"] == [chunk["name"] for chunk in recalled["chunks"]]
