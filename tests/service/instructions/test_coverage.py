"""Coverage: who sees what of it, when it is measured, curated probes, and the encoder that must pass first."""

import shutil
from pathlib import Path

import pytest
from tests.support.instruction_service import (
    AGENT,
    UNITS,
    InstructionService,
    entry,
    library_of,
    open_store_of_kind,
    serve_instructions,
)
from tests.support.onnx_models import write_model
from tests.support.served_service import serve_store

from holdfast.clock import ManualClock
from holdfast.errors import UserError
from holdfast.instructions.coverage.schedule import DAY_MS, activate_encoder, run_due_coverage
from holdfast.instructions.models import CoverageRun, UnitCoverage
from holdfast.retrieval.encoders import onnx_model, wordllama
from holdfast.retrieval.encoders.model_folder import fingerprint
from holdfast.retrieval.encoders.registry import make_certified_name

COVERAGE = "/instruction-manifest/coverage"
DAY_SECONDS = 86_400


def test_only_admins_see_the_label(furnished: InstructionService) -> None:
    own = furnished.agent_request("GET", COVERAGE, key=furnished.agent_key).json
    told = furnished.agent_request("GET", COVERAGE).json
    assert own["manifest_version"] == told["manifest_version"] == "v1"
    assert own["embedding_model_version"].startswith("wordllama-")
    assert {unit["name"] for unit in own["units"]} == set(UNITS)
    assert all("coverage_status" not in unit for unit in own["units"])
    assert {unit["coverage_status"] for unit in told["units"]} == {"ok"}


def test_coverage_report_requires_a_manifest(at: InstructionService) -> None:
    answered = at.agent_request("GET", COVERAGE, key=at.agent_key)
    assert (answered.status, answered.code) == (404, "manifest_not_found")


def test_rarely_found_unit_is_critical_and_boosted(furnished: InstructionService) -> None:
    before = furnished.recall("claim a ticket", floor=False, max_chunks=5, explain=True).json["chunks"]
    low = UnitCoverage(unit="code-review", coverage_pct=0.5, passed=False, hit_at_10=0.3, probe_count=20)
    none = UnitCoverage(unit="budget-rules", coverage_pct=None, passed=True)
    furnished.clock.advance(60)
    now = furnished.library.now()
    furnished.library.records.add_coverage(
        CoverageRun(
            id="coverage_x",
            agent_id=AGENT,
            manifest_version="v1",
            model_id="m",
            kind="daily",
            started_at=now,
            finished_at=now,
            units=(low, none),
        )
    )
    told = {unit["name"]: unit["coverage_status"] for unit in furnished.agent_request("GET", COVERAGE).json["units"]}
    assert told == {"code-review": "coverage_critical", "budget-rules": "not_evaluated"}
    asked = {"floor": False, "max_chunks": 5, "explain": True}
    after = furnished.recall("claim a ticket", key=furnished.ann, **asked).json["chunks"]
    scores = {chunk["name"]: chunk["score"] for chunk in before}
    lifted = {chunk["name"]: (chunk["score"] - scores[chunk["name"]], chunk["why"]["lifted"]) for chunk in after}
    assert lifted["code-review"] == (pytest.approx(0.139762, abs=1e-5), True)
    assert lifted["checkout-procedure"] == (0, False)


def test_day_old_coverage_is_measured_again(furnished: InstructionService) -> None:
    assert run_due_coverage(furnished.library) == ()
    furnished.clock.advance(DAY_SECONDS)
    assert run_due_coverage(furnished.library) == (AGENT,)
    assert run_due_coverage(furnished.library) == ()
    assert furnished.agent_request("GET", COVERAGE).json["kind"] == "daily"


def test_service_measures_due_coverage_by_itself(tmp_path: Path) -> None:
    with serve_instructions("sqlite", tmp_path) as at:
        at.furnish()
    at.clock.advance(DAY_SECONDS)
    with open_store_of_kind("sqlite", tmp_path) as store:
        library = library_of(store, at.clock, tmp_path / "root", ids="later")
        with serve_store(store, clock=at.clock, library=library):
            pass
        run = library.records.coverage(AGENT)
        assert run is not None
        assert run.kind == "daily"


def test_skipped_gate_is_measured_within_seven_days(at: InstructionService) -> None:
    for name in UNITS:
        at.write(name)
    assert at.publish(skip_coverage_gate=True).status == 200
    at.clock.advance(2 * DAY_SECONDS)
    assert run_due_coverage(at.library) == (AGENT,)
    report = at.agent_request("GET", COVERAGE).json
    assert (report["kind"], report["skipped"], report["recert_due"]) == ("recert", False, None)
    assert at.records("recert")[0]["detail"]["units"] == []


@pytest.mark.parametrize("by_hand", [False, True], ids=["by itself", "by hand"])
def test_skipped_gate_is_measured_even_after_another_coverage_run(at: InstructionService, by_hand: bool) -> None:
    for name in UNITS:
        at.write(name)
    assert at.publish(skip_coverage_gate=True).status == 200
    owed = at.agent_request("GET", COVERAGE).json["recert_due"]
    at.clock.advance(3600)
    assert at.write("code-review", "v2", "Read the whole pull request. Then leave a review.").status == 201
    assert run_due_coverage(at.library) == (AGENT,)
    report = at.agent_request("GET", COVERAGE).json
    assert (report["kind"], report["recert_due"]) == ("daily", owed)
    at.clock.advance(2 * DAY_SECONDS)
    if by_hand:
        assert at.agent_request("POST", COVERAGE).json["kind"] == "recert"
    else:
        assert run_due_coverage(at.library) == (AGENT,)
    assert at.agent_request("GET", COVERAGE).json["recert_due"] is None
    assert len(at.records("recert")) == 1
    at.clock.advance(DAY_SECONDS - 1)
    now = at.library.now()
    owing = at.library.records.agents_to_measure(finished_before=now - DAY_MS, recert_before=now + 7 * DAY_MS)
    assert owing == (), "what was made up for is owed no more"


def test_curated_probes_report_whether_they_find_the_expected_unit(furnished: InstructionService) -> None:
    good = {"probe_id": "p1", "intent": "claim a ticket", "required_units": ["checkout-procedure"], "k": 1}
    bad = {"probe_id": "p2", "intent": "claim a ticket", "required_units": ["checkout-procedure", "none"], "k": 3}
    worse = {"probe_id": "p3", "intent": "claim a ticket", "required_units": ["none"]}
    for probe in (good, bad, worse):
        assert furnished.agent_request("PUT", "/instruction-probes", probe).status == 200
    told = furnished.agent_request("GET", "/instruction-probes").json
    assert [(one["coverage_at_k"], one["hit"]) for one in told["probes"]] == [(1.0, True), (0.5, True), (0.0, False)]
    assert told["coverage_at_k"] == pytest.approx(0.5)
    assert told["hit_at_k"] == pytest.approx(2 / 3)
    assert furnished.agent_request("PUT", "/instruction-probes", {**good, "required_units": []}).code == "invalid_body"


def test_small_manifest_is_gated_at_three_and_warned_at_its_scale(tmp_path: Path) -> None:
    listed = [
        entry("code-review", load_triggers={"intents": ["write release notes", "announce a new version"]}),
        entry("release-notes"),
        entry("budget-rules"),
    ]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with serve_instructions("sqlite", tmp_path / "a") as at:
        for name in UNITS:
            at.write(name)
        published = at.publish(listed)
        assert published.status == 200
        line = published.json["coverage_report"][0]
        assert line["coverage_pct"] >= 0.8 > line["scaled_pct"]
        assert line["chance"] == 1.0
        assert any(
            "of its paraphrases rank it among the first 1" in one and one.startswith("code-review: ")
            for one in published.json["warnings"]
        )
    with serve_instructions("sqlite", tmp_path / "b", scaled_is_binding=True) as at:
        for name in UNITS:
            at.write(name)
        assert at.publish(listed).code == "manifest_coverage_failure"


def test_new_encoder_is_used_once_all_manifests_pass_with_it(tmp_path: Path) -> None:
    with serve_instructions("sqlite", tmp_path, encoder=None) as at:
        assert activate_encoder(at.library) == ()
        at.furnish()
        told = at.agent_request("GET", "/instruction-manifest").json
        assert told["embedding_model_version"] == "none (lexical and graph only)"
    with open_store_of_kind("sqlite", tmp_path) as store:
        at.clock.advance(60)
        library = library_of(store, at.clock, tmp_path / "root", ids="later")
        assert activate_encoder(library) == ()
        assert library.instruction_sets.encoder == "wordllama"
        assert library.records.encoder() == make_certified_name("wordllama")
        run = library.records.coverage(AGENT)
        assert run is not None
        assert run.kind == "recert"
        assert run.model_id.startswith("wordllama-")


def publish_stray(at: InstructionService) -> None:
    """All units claim the same, so that no encoder can tell which is meant."""
    for name in UNITS:
        at.write(name)
    stray = [entry(name, load_triggers={"intents": ["approve a purchase", "claim a ticket"]}) for name in UNITS]
    assert at.publish(stray, skip_coverage_gate=True).status == 200


def test_encoder_that_fails_a_manifest_is_not_used(tmp_path: Path) -> None:
    with serve_instructions("sqlite", tmp_path, encoder=None) as at:
        activate_encoder(at.library)
        publish_stray(at)
    with open_store_of_kind("sqlite", tmp_path) as store:
        library = library_of(store, at.clock, tmp_path / "root", ids="later")
        assert activate_encoder(library) == (AGENT,)
        assert (library.records.encoder(), library.instruction_sets.encoder) == ("none", None)


def test_custom_model_is_certified_by_its_content(tmp_path: Path) -> None:
    model = write_model(tmp_path / "mine")
    with serve_instructions("sqlite", tmp_path, encoder=str(model)) as at:
        assert activate_encoder(at.library) == ()
        at.furnish()
        told = at.recall("claim a ticket before work", key=at.agent_key).json
        assert told["embedding_model_version"] == f"mine@{fingerprint(model)}"
        assert at.library.records.encoder() == f"{model}@{fingerprint(model)}" == make_certified_name(str(model))
    write_model(model, seed=1.0)
    fingerprint.cache_clear()
    onnx_model.load_onnx_encoders.cache_clear()
    with open_store_of_kind("sqlite", tmp_path) as store:
        library = library_of(store, at.clock, tmp_path / "root", ids="later", encoder=str(model))
        assert activate_encoder(library) == ()
        run = library.records.coverage(AGENT)
        assert run is not None
        assert run.kind == "recert"
        assert run.model_id == f"mine@{fingerprint(model)}"
        assert library.records.encoder() == make_certified_name(str(model))


def test_encoder_with_changed_output_is_measured_before_use(tmp_path: Path) -> None:
    """As a release does that counts the revision up: the name in the configuration is the same."""
    with serve_instructions("sqlite", tmp_path) as at:
        activate_encoder(at.library)
        at.furnish()
        at.library.records.set_encoder("wordllama@0")
    with open_store_of_kind("sqlite", tmp_path) as store:
        at.clock.advance(60)
        later = library_of(store, at.clock, tmp_path / "root", ids="later")
        assert activate_encoder(later) == ()
        run = later.records.coverage(AGENT)
        assert run is not None
        assert (run.kind, later.records.encoder()) == ("recert", make_certified_name("wordllama"))


def test_failure_with_a_new_encoder_revision_warns_and_blocks_nothing(tmp_path: Path) -> None:
    """What the encoder said before is gone with the release before."""
    with serve_instructions("sqlite", tmp_path) as at:
        activate_encoder(at.library)
        publish_stray(at)
        at.library.records.set_encoder("wordllama@0")
    with open_store_of_kind("sqlite", tmp_path) as store:
        other = library_of(store, at.clock, tmp_path / "root", ids="other", encoder=None)
        assert activate_encoder(other) == (AGENT,)
        assert (other.instruction_sets.encoder, other.records.encoder()) == ("wordllama", "wordllama@0")
        told: list[str] = []
        later = library_of(store, at.clock, tmp_path / "root", ids="later")
        later.warn = told.append
        assert activate_encoder(later) == ()
        assert later.instruction_sets.encoder == "wordllama"
        assert later.records.encoder() == make_certified_name("wordllama")
        assert "the encoder wordllama, whose results changed in this release" in told[0]
        assert f"manifests fail with it, such as that of {AGENT}" in told[1]
        run = later.records.coverage(AGENT)
        assert run is not None
        assert not all(one.passed for one in run.units)


def test_removed_model_cannot_stay_in_use(tmp_path: Path) -> None:
    model = write_model(tmp_path / "mine")
    with serve_instructions("sqlite", tmp_path, encoder=str(model)) as at:
        activate_encoder(at.library)
        publish_stray(at)
    with open_store_of_kind("sqlite", tmp_path) as store:
        library = library_of(store, at.clock, tmp_path / "root", ids="later")
        assert activate_encoder(library) == (AGENT,)
        assert library.instruction_sets.encoder == str(model)
        shutil.rmtree(model)
        library = library_of(store, at.clock, tmp_path / "root", ids="last")
        with pytest.raises(UserError, match="was in use but is no longer available"):
            activate_encoder(library)


def test_encoder_is_loaded_before_the_first_recall(tmp_path: Path) -> None:
    wordllama.load_wordllama_encoder.cache_clear()
    with open_store_of_kind("sqlite", tmp_path) as store:
        activate_encoder(library_of(store, ManualClock(), tmp_path))
        assert wordllama.load_wordllama_encoder.cache_info().currsize == 1


def test_only_admins_see_which_units_are_boosted(furnished: InstructionService) -> None:
    assert furnished.agent_request("PUT", "", {"supervisors": ["boss"]}).status == 200
    boss = furnished.client.key("agent:boss")
    said = {"intent": "claim a ticket", "explain": True}
    scoped = {**said, "scope": f"instruction:local/{AGENT}"}
    for key, sees in ((furnished.ann, True), (furnished.agent_key, False), (boss, False)):
        for path, body in ((f"/v1/agents/{AGENT}/recall-instruction", said), ("/v1/recall", scoped)):
            chunks = furnished.request("POST", path, body, key=key).json["chunks"]
            assert chunks
            assert all(("lifted" in chunk["why"]) is sees and chunk["why"]["stages"] for chunk in chunks)


def alike(count: int) -> list[dict[str, object]]:
    """Units that say the same of themselves: of no intent can more than three of them be among the first three."""
    description, intents, _ = UNITS["checkout-procedure"]
    told = {"description": description, "load_triggers": {"intents": intents}}
    return [entry(f"unit-{number}", **told) for number in range(count)]


@pytest.mark.parametrize(("count", "code"), [(3, None), (4, "manifest_coverage_failure")])
def test_gate_considers_the_first_three_results(at: InstructionService, count: int, code: str | None) -> None:
    for number in range(count):
        at.write(f"unit-{number}", content=UNITS["checkout-procedure"][2])
    answered = at.publish(alike(count))
    assert (None if answered.status == 200 else answered.code) == code


@pytest.mark.parametrize(("count", "chance"), [(2, 1.0), (3, 1.0), (4, 0.75), (5, 0.6)])
@pytest.mark.parametrize("more", [{}, {"load_triggers": {}}], ids=["intents", "no intents"])
def test_report_states_the_hit_rate_of_three_random_units(
    at: InstructionService, count: int, chance: float, more: dict[str, object]
) -> None:
    published = at.publish([entry(name, **more) for name in [*UNITS][:count]], skip_coverage_gate=True)
    assert [line["chance"] for line in published.json["coverage_report"]] == [pytest.approx(chance)] * count
