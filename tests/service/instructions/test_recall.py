"""Recall: what is found, in which order, within which budget, and why."""

import json
from typing import Any

import pytest
from tests.support.instruction_places import AGENT, UNITS, Place, entry, uri

from holdfast.errors import UserError
from holdfast.retrieval.encoders import wordllama
from holdfast.retrieval.units import SearchUnit

CLAIM = "I need to claim a ticket and check out an issue"


@pytest.mark.parametrize("body", [None, {}, {"intent": ""}, {"intent": " \n"}, {"intent": 7}, {"intent": None}])
def test_an_intent_is_required(furnished: Place, body: object) -> None:
    answered = furnished.of_agent("POST", "/recall-instruction", body, key=furnished.agent_key)
    assert (answered.status, answered.code) == (400, "intent_required")


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
def test_what_does_not_fit_is_400_in_our_shape(furnished: Place, more: dict[str, Any]) -> None:
    answered = furnished.recall(CLAIM, **more)
    assert (answered.status, answered.code) == (400, "invalid_body")


def test_an_agent_without_a_manifest_has_nothing_to_recall(at: Place) -> None:
    answered = at.recall(CLAIM)
    assert (answered.status, answered.code) == (404, "manifest_not_found")


def test_the_same_question_has_the_same_answer(furnished: Place) -> None:
    first, second = (furnished.recall(CLAIM, floor=False).json for _ in range(2))
    assert first["chunks"] == second["chunks"]
    assert first["snapshot_id"] == second["snapshot_id"]
    assert first["audit_token"] != second["audit_token"]
    scores = [chunk["score"] for chunk in first["chunks"]]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert len(scores) == 3


def test_what_hardly_fits_is_not_told_unless_the_floor_is_off_or_it_is_hinted(furnished: Place) -> None:
    nonsense = "xylophone quartet zeppelin"
    assert furnished.recalled(nonsense) == []
    assert len(furnished.recalled(nonsense, floor=False)) == 3
    assert furnished.recalled(nonsense, manifest_hint=["code-review"]) == ["code-review"]


def test_hints_come_first_in_their_order_and_count_as_chunks(furnished: Place) -> None:
    answered = furnished.recall(CLAIM, manifest_hint=["release-notes", "none-such", "budget-rules", "release-notes"])
    names = [chunk["name"] for chunk in answered.json["chunks"]]
    assert names == ["release-notes", "budget-rules", "checkout-procedure"]
    assert answered.json["missed_hints"] == ["none-such"]
    assert answered.json["dropped_hints"] == []
    assert not answered.json["truncated"]


def test_a_hint_that_does_not_fit_is_told_as_dropped(furnished: Place) -> None:
    answered = furnished.recall(CLAIM, manifest_hint=["release-notes", "budget-rules"], max_chunks=1)
    assert [chunk["name"] for chunk in answered.json["chunks"]] == ["release-notes"]
    assert (answered.json["dropped_hints"], answered.json["truncated"]) == (["budget-rules"], True)
    answered = furnished.recall(CLAIM, manifest_hint=["release-notes"], token_budget=3)
    assert answered.json["chunks"] == []
    assert (answered.json["dropped_hints"], answered.json["truncated"]) == (["release-notes"], True)
    assert answered.json["missed_hints"] == []


def test_ranked_units_keep_to_the_budget(furnished: Place) -> None:
    everything = furnished.recall(CLAIM, floor=False).json
    assert everything["total_tokens"] == sum(chunk["tokens"] for chunk in everything["chunks"])
    assert not everything["truncated"]
    tight = furnished.recall(CLAIM, floor=False, token_budget=everything["total_tokens"] - 1).json
    assert tight["total_tokens"] < everything["total_tokens"]
    assert tight["truncated"]


def test_guaranteed_units_are_always_there_and_make_the_others_give_way(at: Place) -> None:
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
    at.furnish(listed, approvals=approvals)
    # They count as no chunks; one stands first, and one behind what was asked for.
    assert at.recalled(CLAIM, max_chunks=1) == ["budget-rules", "checkout-procedure", "security-posture"]
    whole = at.recall(CLAIM, max_chunks=1).json
    tokens = {chunk["name"]: chunk["tokens"] for chunk in whole["chunks"]}
    less = at.recall(CLAIM, max_chunks=1, token_budget=whole["total_tokens"] - 1).json
    assert [chunk["name"] for chunk in less["chunks"]] == ["budget-rules", "security-posture"]
    assert less["truncated"]
    tiny = at.recall(CLAIM, token_budget=1).json
    assert tiny["total_tokens"] == tokens["budget-rules"] + tokens["security-posture"]
    assert tiny["truncated"]


def test_explained_answers_say_why_and_what_was_left_out(furnished: Place) -> None:
    told = furnished.recall(CLAIM, max_chunks=1, explain=True).json
    why = told["chunks"][0]["why"]
    assert {stage["stage"] for stage in why["stages"]} == {"lexical", "semantic", "graph"}
    assert sum(stage["added"] for stage in why["stages"]) == pytest.approx(told["chunks"][0]["score"], abs=1e-5)
    assert "ticket" in why["matched_terms"]
    assert {one["reason"] for one in told["dropped"]} <= {"below_floor", "over_max_chunks"}
    assert len(told["dropped"]) == len(UNITS) - 1
    assert furnished.recall(CLAIM).json["dropped"] is None


def test_the_scope_may_be_asked_with_weights(furnished: Place) -> None:
    scope = f"instruction:local/{AGENT}"
    body = {
        "scope": scope,
        "intent": CLAIM,
        "max_facts": 1,
        "weights": {"lexical": 0.35, "semantic": 0.50, "graph": 0.15},
        "require_garden_ids": [f"instruction:local:{AGENT}"],
    }
    told = furnished.ask("POST", "/v1/recall", body, key=furnished.agent_key).json
    assert [chunk["name"] for chunk in told["chunks"]] == ["checkout-procedure"]
    words = {**body, "weights": {"lexical": 0.3, "vector": 0.5, "graph": 0.2}}
    assert furnished.ask("POST", "/v1/recall", words, key=furnished.agent_key).status == 200
    query = {"scope": scope, "query": CLAIM}
    assert furnished.ask("POST", "/v1/recall", query, key=furnished.agent_key).status == 200
    for fault, code in (
        ({"weights": {"lexical": 1, "semantic": 1, "graph": 0}}, "invalid_weights"),
        ({"weights": {"lexical": -1, "semantic": 2, "graph": 0}}, "invalid_weights"),
        ({"scope": "team"}, "invalid_scope"),
        ({"intent": ""}, "intent_required"),
        ({"require_garden_ids": ["instruction:local:other"]}, "instruction_scope_denied"),
        ({"scope": f"instruction:acme/{AGENT}"}, "instruction_scope_denied"),
        ({"scope": "instruction:local/other"}, "instruction_scope_denied"),
    ):
        assert furnished.ask("POST", "/v1/recall", {**body, **fault}, key=furnished.agent_key).code == code


def test_a_record_that_cannot_be_written_blocks_no_recall(furnished: Place) -> None:
    furnished.lose("instruction_audit")
    assert furnished.recalled(CLAIM)[0] == "checkout-procedure"
    assert furnished.warned == ["audit_write_failed: StoreError"]


@pytest.mark.parametrize("table", ["instruction_agents", "instruction_units", "api_keys"])
def test_a_store_that_fails_is_503_and_may_be_tried_again(furnished: Place, table: str) -> None:
    furnished.lose(table)
    scope = {"scope": f"instruction:local/{AGENT}", "intent": CLAIM}
    for answered in (furnished.recall(CLAIM), furnished.ask("POST", "/v1/recall", scope, key=furnished.agent_key)):
        assert (answered.status, answered.code) == (503, "recall_backend_unavailable")
        assert answered.json["error"]["details"] == {"retryable": True}


def test_a_unit_that_is_not_there_is_named_and_does_no_harm(at: Place) -> None:
    at.write("code-review")
    published = at.publish([entry("code-review"), entry("release-notes")])
    assert published.status == 200
    assert any("release-notes: unit_unavailable" in line for line in published.json["warnings"])
    told = at.recall("write release notes", manifest_hint=["release-notes"], floor=False).json
    assert told["missed_hints"] == told["unavailable"] == ["release-notes"]
    assert [chunk["name"] for chunk in told["chunks"]] == ["code-review"]


def test_a_file_is_told_by_its_path_and_a_unit_by_its_uri(at: Place) -> None:
    at.write("code-review")
    (at.root / "notes.md").write_text("Release notes list what changed in the new version.")
    (at.root / "review.md").write_text("Old words.")
    listed = [entry("code-review", path="review.md"), entry("release-notes", path="notes.md")]
    assert at.publish(listed, migration_mode="coexistence").status == 200
    told = at.recall("x", manifest_hint=["code-review", "release-notes"]).json["chunks"]
    assert [(chunk["source"], chunk["fact_uri"]) for chunk in told] == [
        ("stigmem", uri("code-review")),
        ("fallback_path", None),
    ]
    (at.root / "notes.md").write_text("Changed.")
    assert at.recall("x", manifest_hint=["release-notes"]).json["chunks"][0]["content"] == "Changed."
    (at.root / "notes.md").unlink()
    assert at.recall("x", manifest_hint=["release-notes"]).json["missed_hints"] == ["release-notes"]


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../secret.md", "a/../../secret.md", "link.md", "folder/secret.md", ""]
)
def test_no_path_leads_out_of_the_root_of_the_agent(at: Place, path: str) -> None:
    secret = at.root.parent / "secret.md"
    secret.write_text("a secret")
    (at.root / "link.md").symlink_to(secret)
    (at.root / "folder").symlink_to(at.root.parent)
    answered = at.publish([entry("code-review", fact_uri=None, path=path)], migration_mode="file")
    assert (answered.status, answered.code) == (400, "manifest_entry_invalid")


def test_a_link_that_leads_out_later_is_not_read(at: Place) -> None:
    secret = at.root.parent / "secret.md"
    secret.write_text("a secret")
    (at.root / "a.md").write_text("harmless")
    assert at.publish([entry("code-review", fact_uri=None, path="a.md")]).status == 200
    (at.root / "a.md").unlink()
    (at.root / "a.md").symlink_to(secret)
    told = at.recall("x", manifest_hint=["code-review"])
    assert told.json["missed_hints"] == ["code-review"]
    assert b"a secret" not in told.body


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
def test_the_mode_is_that_of_the_entries(
    at: Place, entries: list[dict[str, object]], declared: str | None, mode: str | None
) -> None:
    listed = [entry("code-review", **one) for one in entries]
    published = at.publish(listed, **({"migration_mode": declared} if declared else {}))
    if mode is None:
        assert published.code == "manifest_entry_invalid"
        return
    stub = at.of_agent("GET", "/boot-stub").body.decode()
    assert f'migration_mode: "{mode}"' in stub
    assert ("manifest_uri: null" in stub) == (mode == "file")
    assert ("`a.md`" in stub) == (mode == "file")


@pytest.mark.parametrize("weight", ["lexical", "semantic", "vector"])
def test_a_stage_without_weight_adds_nothing_and_one_with_all_of_it_is_the_score(furnished: Place, weight: str) -> None:
    only = "semantic" if weight == "vector" else weight
    body = {
        "scope": f"instruction:local/{AGENT}",
        "intent": CLAIM,
        "max_facts": len(UNITS),
        "weights": {weight: 1.0},
        "explain": True,
        "floor": False,
    }
    chunks = furnished.ask("POST", "/v1/recall", body, key=furnished.agent_key).json["chunks"]
    assert chunks[0]["score"] > 0
    for chunk in chunks:
        added = {stage["stage"]: stage["added"] for stage in chunk["why"]["stages"]}
        fits = {stage["stage"]: stage["fit"] for stage in chunk["why"]["stages"]}
        assert added == {**dict.fromkeys(added, 0.0), only: pytest.approx(fits[only])}
        assert chunk["score"] == pytest.approx(fits[only], abs=1e-5)


@pytest.mark.parametrize(("tokens", "loads"), [(2000, True), (2001, False)])
def test_who_names_no_budget_has_one_of_2000_tokens(at: Place, tokens: int, loads: bool) -> None:
    at.write("checkout-procedure", content=f"Claim the ticket{' word' * (tokens - 3)}")
    assert at.publish([entry("checkout-procedure")]).status == 200
    scope = {"scope": f"instruction:local/{AGENT}", "intent": CLAIM}
    for answered in (at.recall(CLAIM), at.ask("POST", "/v1/recall", scope, key=at.agent_key)):
        told = answered.json
        assert [chunk["tokens"] for chunk in told["chunks"]] == ([tokens] if loads else [])
        assert told["truncated"] is not loads
    assert at.recall(CLAIM, token_budget=tokens).json["total_tokens"] == tokens


def test_a_tool_that_names_no_budget_is_told_the_one_it_has(furnished: Place) -> None:
    stub = furnished.of_agent("GET", "/boot-stub").body.decode()
    schema = next(line for line in stub.splitlines() if line.startswith("recall_tool_schema: "))
    fields = json.loads(schema.partition(": ")[2])["input_schema"]["properties"]
    assert (fields["token_budget"]["default"], fields["max_chunks"]["default"]) == (2000, 3)


def test_a_chunk_says_until_when_its_text_holds(furnished: Place) -> None:
    assert furnished.heartbeat(furnished.wake("manual")).status == 200
    during = {"intent": "review a pull request", "heartbeat_id": "run_1"}
    before = furnished.of_agent("POST", "/recall-instruction", during, key=furnished.agent_key).json["chunks"][0]
    assert (before["version"], before["valid_until"]) == ("v1", None)
    furnished.clock.advance(60)
    assert furnished.write("code-review", "v2", "Newer words on a pull request.").json["status"] == "active"
    # A heartbeat still has what held when it began, and learns that something newer has taken its place.
    after = furnished.of_agent("POST", "/recall-instruction", during, key=furnished.agent_key).json["chunks"][0]
    assert (after["version"], after["valid_until"]) == ("v1", "2027-01-15T08:01:00Z")


class Failing:
    """An encoder that has what it needs to be made, and then fails when it is asked, or has not even that."""

    model_version, floor, words_share = "failing", 0.1, 1.0

    def __init__(self, error: Exception) -> None:
        self._error = error

    def add(self, slot: int, unit: SearchUnit) -> None:
        pass

    def remove(self, slot: int) -> None:
        pass

    def match(self, query: str, *, slots: int) -> list[float]:
        raise self._error


class OfOthers(Exception):
    pass


ERRORS = (RuntimeError("x"), OSError("x"), ValueError("x"), MemoryError("x"), OfOthers("x"), UserError("x"))


@pytest.mark.parametrize("is_made", [True, False], ids=["asked", "made"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_encoder_that_fails_is_503_and_may_be_tried_again(
    at: Place, monkeypatch: pytest.MonkeyPatch, error: Exception, is_made: bool
) -> None:
    at.furnish()
    began = at.heartbeat(at.wake()).json["heartbeat_id"]

    def stage() -> Failing:
        if is_made:
            return Failing(error)
        raise error

    with monkeypatch.context() as broken:
        broken.setattr(wordllama, "create_stage", stage)
        at.library.instruction_sets.clear()
        scope = {"scope": f"instruction:local/{AGENT}", "intent": CLAIM}
        entries = [entry(name) for name in UNITS]
        answers = [
            at.recall(CLAIM),
            at.recall(CLAIM, heartbeat_id=began),
            at.ask("POST", "/v1/recall", scope, key=at.agent_key),
            at.publish(entries, "v2"),
            at.of_agent("POST", "/instruction-manifest/coverage"),
            at.ask("GET", f"/api/instructions/{AGENT}/recall?intent=x"),
        ]
        assert [(one.status, one.code) for one in answers] == [(503, "recall_backend_unavailable")] * len(answers)
        assert not any(str(error) in str(one.json) for one in answers)
        assert any("recall_backend_unavailable" in line for line in at.warned)
    at.library.instruction_sets.clear()
    assert at.recalled(CLAIM)[0] == "checkout-procedure"
    assert at.publish(entries, "v2").status == 200


def test_a_record_keeps_of_an_intent_what_was_read_of_it_and_is_asked_again_by_that(furnished: Place) -> None:
    recalled = furnished.recall(f"{CLAIM} {'x' * 900_000} approve a purchase").json
    (record,) = furnished.records("recall")
    assert len(record["intent"]) == len(record["detail"]["question"]["intent"]) == 8_000
    replayed = furnished.of_agent("POST", "/instruction-replay", {"audit_token": recalled["audit_token"]}).json
    assert replayed["same_order"]
    assert replayed["loaded_now"] == [chunk["name"] for chunk in recalled["chunks"]]
