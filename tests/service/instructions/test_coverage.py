"""Coverage: who sees which part, when it is measured, curated probes, and checking a new encoder before use."""

import shutil
import time
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


def test_only_admins_see_the_label(published_service: InstructionService) -> None:
    own = published_service.agent_request("GET", COVERAGE, key=published_service.agent_key).json
    coverage = published_service.agent_request("GET", COVERAGE).json
    assert own["manifest_version"] == coverage["manifest_version"] == "v1"
    assert own["embedding_model_version"].startswith("wordllama-")
    assert {unit["name"] for unit in own["units"]} == set(UNITS)
    assert all("coverage_status" not in unit for unit in own["units"])
    assert {unit["coverage_status"] for unit in coverage["units"]} == {"ok"}


def test_coverage_report_requires_a_manifest(service: InstructionService) -> None:
    response = service.agent_request("GET", COVERAGE, key=service.agent_key)
    assert (response.status, response.code) == (404, "manifest_not_found")


def test_rarely_found_unit_is_critical_and_boosted(published_service: InstructionService) -> None:
    before = published_service.recall("claim a ticket", floor=False, max_chunks=5, explain=True).json["chunks"]
    low = UnitCoverage(unit="code-review", coverage_pct=0.5, passed=False, hit_at_10=0.3, probe_count=20)
    none = UnitCoverage(unit="budget-rules", coverage_pct=None, passed=True)
    published_service.clock.advance(60)
    now = published_service.library.now()
    published_service.library.records.add_coverage(
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
    coverage = {
        unit["name"]: unit["coverage_status"] for unit in published_service.agent_request("GET", COVERAGE).json["units"]
    }
    assert coverage == {"code-review": "coverage_critical", "budget-rules": "not_evaluated"}
    asked = {"floor": False, "max_chunks": 5, "explain": True}
    after = published_service.recall("claim a ticket", key=published_service.ann, **asked).json["chunks"]
    scores = {chunk["name"]: chunk["score"] for chunk in before}
    lifted = {chunk["name"]: (chunk["score"] - scores[chunk["name"]], chunk["why"]["lifted"]) for chunk in after}
    assert lifted["code-review"] == (pytest.approx(0.139762, abs=1e-5), True)
    assert lifted["checkout-procedure"] == (0, False)


def test_day_old_coverage_is_measured_again(published_service: InstructionService) -> None:
    assert run_due_coverage(published_service.library) == ()
    published_service.clock.advance(DAY_SECONDS)
    assert run_due_coverage(published_service.library) == (AGENT,)
    assert run_due_coverage(published_service.library) == ()
    assert published_service.agent_request("GET", COVERAGE).json["kind"] == "daily"


def test_service_measures_due_coverage_by_itself(tmp_path: Path) -> None:
    # In process, so that no job runs: the service below would find that one was done within the hour.
    with serve_instructions("sqlite", tmp_path, in_process=True) as service:
        service.publish_all()
    service.clock.advance(DAY_SECONDS)
    with open_store_of_kind("sqlite", tmp_path) as store:
        library = library_of(store, service.clock, tmp_path / "root", ids="later")
        with serve_store(store, clock=service.clock, library=library):
            deadline = time.monotonic() + 20
            while (run := library.records.coverage(AGENT)) is None or run.kind != "daily":
                assert time.monotonic() < deadline
                time.sleep(0.02)


def test_skipped_gate_is_measured_within_seven_days(service: InstructionService) -> None:
    for name in UNITS:
        service.write(name)
    assert service.publish(skip_coverage_gate=True).status == 200
    service.clock.advance(2 * DAY_SECONDS)
    assert run_due_coverage(service.library) == (AGENT,)
    report = service.agent_request("GET", COVERAGE).json
    assert (report["kind"], report["skipped"], report["recert_due"]) == ("recert", False, None)
    assert service.records("recert")[0]["detail"]["units"] == []


@pytest.mark.parametrize("by_hand", [False, True], ids=["by itself", "by hand"])
def test_skipped_gate_is_measured_even_after_another_coverage_run(service: InstructionService, by_hand: bool) -> None:
    for name in UNITS:
        service.write(name)
    assert service.publish(skip_coverage_gate=True).status == 200
    owed = service.agent_request("GET", COVERAGE).json["recert_due"]
    service.clock.advance(3600)
    assert service.write("code-review", "v2", "Read the whole pull request. Then leave a review.").status == 201
    assert run_due_coverage(service.library) == (AGENT,)
    report = service.agent_request("GET", COVERAGE).json
    assert (report["kind"], report["recert_due"]) == ("daily", owed)
    service.clock.advance(2 * DAY_SECONDS)
    if by_hand:
        assert service.agent_request("POST", COVERAGE).json["kind"] == "recert"
    else:
        assert run_due_coverage(service.library) == (AGENT,)
    assert service.agent_request("GET", COVERAGE).json["recert_due"] is None
    assert len(service.records("recert")) == 1
    service.clock.advance(DAY_SECONDS - 1)
    now = service.library.now()
    owing = service.library.records.agents_to_measure(finished_before=now - DAY_MS, recert_before=now + 7 * DAY_MS)
    assert owing == (), "what was made up for is owed no more"


def test_curated_probes_report_whether_they_find_the_expected_unit(published_service: InstructionService) -> None:
    good = {"probe_id": "p1", "intent": "claim a ticket", "required_units": ["checkout-procedure"], "k": 1}
    bad = {"probe_id": "p2", "intent": "claim a ticket", "required_units": ["checkout-procedure", "none"], "k": 3}
    worse = {"probe_id": "p3", "intent": "claim a ticket", "required_units": ["none"]}
    for probe in (good, bad, worse):
        assert published_service.agent_request("PUT", "/instruction-probes", probe).status == 200
    probes = published_service.agent_request("GET", "/instruction-probes").json
    assert [(one["coverage_at_k"], one["hit"]) for one in probes["probes"]] == [(1.0, True), (0.5, True), (0.0, False)]
    assert probes["coverage_at_k"] == pytest.approx(0.5)
    assert probes["hit_at_k"] == pytest.approx(2 / 3)
    assert (
        published_service.agent_request("PUT", "/instruction-probes", {**good, "required_units": []}).code
        == "invalid_body"
    )


def test_small_manifest_is_gated_at_three_and_warned_at_its_scale(tmp_path: Path) -> None:
    listed = [
        entry("code-review", load_triggers={"intents": ["write release notes", "announce a new version"]}),
        entry("release-notes"),
        entry("budget-rules"),
    ]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with serve_instructions("sqlite", tmp_path / "a") as service:
        for name in UNITS:
            service.write(name)
        published = service.publish(listed)
        assert published.status == 200
        line = published.json["coverage_report"][0]
        assert line["coverage_pct"] >= 0.8 > line["scaled_pct"]
        assert line["chance"] == 1.0
        assert any(
            "of its paraphrases rank it among the first 1" in warning and warning.startswith("code-review: ")
            for warning in published.json["warnings"]
        )
    with serve_instructions("sqlite", tmp_path / "b", scaled_is_binding=True) as service:
        for name in UNITS:
            service.write(name)
        assert service.publish(listed).code == "manifest_coverage_failure"


def test_new_encoder_is_used_once_all_manifests_pass_with_it(tmp_path: Path) -> None:
    with serve_instructions("sqlite", tmp_path, encoder=None) as service:
        assert activate_encoder(service.library) == ()
        service.publish_all()
        manifest = service.agent_request("GET", "/instruction-manifest").json
        assert manifest["embedding_model_version"] == "none (lexical and graph only)"
    with open_store_of_kind("sqlite", tmp_path) as store:
        service.clock.advance(60)
        library = library_of(store, service.clock, tmp_path / "root", ids="later")
        assert activate_encoder(library) == ()
        assert library.instruction_sets.encoder == "wordllama"
        assert library.records.encoder() == make_certified_name("wordllama")
        run = library.records.coverage(AGENT)
        assert run is not None
        assert run.kind == "recert"
        assert run.model_id.startswith("wordllama-")


def publish_ambiguous(service: InstructionService) -> None:
    """All units have the same intents, so no encoder can distinguish them."""
    for name in UNITS:
        service.write(name)
    ambiguous = [entry(name, load_triggers={"intents": ["approve a purchase", "claim a ticket"]}) for name in UNITS]
    assert service.publish(ambiguous, skip_coverage_gate=True).status == 200


def test_encoder_that_fails_a_manifest_is_not_used(tmp_path: Path) -> None:
    with serve_instructions("sqlite", tmp_path, encoder=None) as service:
        activate_encoder(service.library)
        publish_ambiguous(service)
    with open_store_of_kind("sqlite", tmp_path) as store:
        library = library_of(store, service.clock, tmp_path / "root", ids="later")
        assert activate_encoder(library) == (AGENT,)
        assert (library.records.encoder(), library.instruction_sets.encoder) == ("none", None)


def test_custom_model_is_certified_by_its_content(tmp_path: Path) -> None:
    model = write_model(tmp_path / "mine")
    with serve_instructions("sqlite", tmp_path, encoder=str(model)) as service:
        assert activate_encoder(service.library) == ()
        service.publish_all()
        result = service.recall("claim a ticket before work", key=service.agent_key).json
        assert result["embedding_model_version"] == f"mine@{fingerprint(model)}"
        assert service.library.records.encoder() == f"{model}@{fingerprint(model)}" == make_certified_name(str(model))
    write_model(model, seed=1.0)
    fingerprint.cache_clear()
    onnx_model.load_onnx_encoders.cache_clear()
    with open_store_of_kind("sqlite", tmp_path) as store:
        library = library_of(store, service.clock, tmp_path / "root", ids="later", encoder=str(model))
        assert activate_encoder(library) == ()
        run = library.records.coverage(AGENT)
        assert run is not None
        assert run.kind == "recert"
        assert run.model_id == f"mine@{fingerprint(model)}"
        assert library.records.encoder() == make_certified_name(str(model))


def test_encoder_with_changed_output_is_measured_before_use(tmp_path: Path) -> None:
    """Like a release with a new encoder revision: the name in the configuration stays the same."""
    with serve_instructions("sqlite", tmp_path) as service:
        activate_encoder(service.library)
        service.publish_all()
        service.library.records.set_encoder("wordllama@0")
    with open_store_of_kind("sqlite", tmp_path) as store:
        service.clock.advance(60)
        later = library_of(store, service.clock, tmp_path / "root", ids="later")
        assert activate_encoder(later) == ()
        run = later.records.coverage(AGENT)
        assert run is not None
        assert (run.kind, later.records.encoder()) == ("recert", make_certified_name("wordllama"))


def test_failure_with_a_new_encoder_revision_warns_and_blocks_nothing(tmp_path: Path) -> None:
    """The output of the old revision cannot be computed any more."""
    with serve_instructions("sqlite", tmp_path) as service:
        activate_encoder(service.library)
        publish_ambiguous(service)
        service.library.records.set_encoder("wordllama@0")
    with open_store_of_kind("sqlite", tmp_path) as store:
        other = library_of(store, service.clock, tmp_path / "root", ids="other", encoder=None)
        assert activate_encoder(other) == (AGENT,)
        assert (other.instruction_sets.encoder, other.records.encoder()) == ("wordllama", "wordllama@0")
        warnings: list[str] = []
        later = library_of(store, service.clock, tmp_path / "root", ids="later")
        later.warn = warnings.append
        assert activate_encoder(later) == ()
        assert later.instruction_sets.encoder == "wordllama"
        assert later.records.encoder() == make_certified_name("wordllama")
        assert "the encoder wordllama, whose results changed in this release" in warnings[0]
        assert f"manifests fail with it, such as that of {AGENT}" in warnings[1]
        run = later.records.coverage(AGENT)
        assert run is not None
        assert not all(unit.passed for unit in run.units)


def test_removed_model_cannot_stay_in_use(tmp_path: Path) -> None:
    model = write_model(tmp_path / "mine")
    with serve_instructions("sqlite", tmp_path, encoder=str(model)) as service:
        activate_encoder(service.library)
        publish_ambiguous(service)
    with open_store_of_kind("sqlite", tmp_path) as store:
        library = library_of(store, service.clock, tmp_path / "root", ids="later")
        assert activate_encoder(library) == (AGENT,)
        assert library.instruction_sets.encoder == str(model)
        shutil.rmtree(model)
        library = library_of(store, service.clock, tmp_path / "root", ids="last")
        with pytest.raises(UserError, match="was in use but is no longer available"):
            activate_encoder(library)


def test_encoder_is_loaded_before_the_first_recall(tmp_path: Path) -> None:
    wordllama.load_wordllama_encoder.cache_clear()
    with open_store_of_kind("sqlite", tmp_path) as store:
        activate_encoder(library_of(store, ManualClock(), tmp_path))
        assert wordllama.load_wordllama_encoder.cache_info().currsize == 1


def test_only_admins_see_which_units_are_boosted(published_service: InstructionService) -> None:
    assert published_service.agent_request("PUT", "", {"supervisors": ["boss"]}).status == 200
    boss = published_service.client.key("agent:boss")
    query = {"intent": "claim a ticket", "explain": True}
    scoped = {**query, "scope": f"instruction:local/{AGENT}"}
    for key, sees in ((published_service.ann, True), (published_service.agent_key, False), (boss, False)):
        for path, body in ((f"/v1/agents/{AGENT}/recall-instruction", query), ("/v1/recall", scoped)):
            chunks = published_service.request("POST", path, body, key=key).json["chunks"]
            assert chunks
            assert all(("lifted" in chunk["why"]) is sees and chunk["why"]["stages"] for chunk in chunks)


def similar_entries(count: int) -> list[dict[str, object]]:
    """Units with the same description and intents: at most three of them can be among the first three results."""
    description, intents, _ = UNITS["checkout-procedure"]
    fields = {"description": description, "load_triggers": {"intents": intents}}
    return [entry(f"unit-{number}", **fields) for number in range(count)]


@pytest.mark.parametrize(("count", "code"), [(3, None), (4, "manifest_coverage_failure")])
def test_gate_considers_the_first_three_results(service: InstructionService, count: int, code: str | None) -> None:
    for number in range(count):
        service.write(f"unit-{number}", content=UNITS["checkout-procedure"][2])
    response = service.publish(similar_entries(count))
    assert (None if response.status == 200 else response.code) == code


@pytest.mark.parametrize(("count", "chance"), [(2, 1.0), (3, 1.0), (4, 0.75), (5, 0.6)])
@pytest.mark.parametrize("more", [{}, {"load_triggers": {}}], ids=["intents", "no intents"])
def test_report_states_the_hit_rate_of_three_random_units(
    service: InstructionService, count: int, chance: float, more: dict[str, object]
) -> None:
    published = service.publish([entry(name, **more) for name in [*UNITS][:count]], skip_coverage_gate=True)
    assert [line["chance"] for line in published.json["coverage_report"]] == [pytest.approx(chance)] * count
