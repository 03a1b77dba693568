"""`holdfast instructions coverage` and `encoder`: the coverage gate again, and comparison with other versions and
encoders.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.instruction_service import UNITS
from tests.support.library_projects import LibraryProject
from tests.support.onnx_models import write_model

from holdfast.errors import UserError
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.coverage import schedule
from holdfast.instructions.coverage.schedule import measure_coverage
from holdfast.instructions.models import CoverageRun
from holdfast.instructions.units.write import SubmittedUnit, write_unit


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[LibraryProject]:
    shop = LibraryProject(tmp_path)
    with shop.library:
        shop.write(mode="stigmem")
        shop.library.publish(shop.folder)
        yield shop


def add_competing_version(shop: LibraryProject) -> None:
    """Another version: all other units claim the release notes' triggers, and one unit is missing."""
    manifest = shop.manifest()
    manifest["entries"] = [entry for entry in manifest["entries"] if entry["name"] != "budget-rules"]
    for entry in manifest["entries"]:
        if entry["name"] != "release-notes":
            entry["load_triggers"]["intents"] = [*UNITS[entry["name"]][1], *UNITS["release-notes"][1]]
    shop.write_manifest(manifest)
    shop.clock.advance(60)
    shop.library.publish(shop.folder, skip_coverage_gate=True)


def test_every_unit_is_listed_with_queries_that_find_another(shop: LibraryProject) -> None:
    result = shop.run("coverage")
    assert (result.exit_code, "ok   code-review: 100% of 10 paraphrases\n" in result.output) == (0, True)
    add_competing_version(shop)
    result = shop.run("coverage")
    assert result.exit_code == 1
    assert "FAIL code-review: 65% of 20 paraphrases\n" in result.output
    assert "\n       'draft release messages' finds checkout-procedure\n" in result.output
    report = json.loads(shop.run("coverage", "--json").output)
    assert report["passed"] is False
    failing = {unit["unit"] for unit in report["units"] if not unit["passed"]}
    assert failing == {"code-review"}


def test_units_worse_than_in_another_version_are_listed_with_their_queries(shop: LibraryProject) -> None:
    add_competing_version(shop)
    result = shop.run("coverage", "--against", "v1")
    lines = result.output.splitlines()
    assert result.exit_code == 1
    assert lines[0] == "v1 as published, compared with v2 as it is now"
    assert lines[1].startswith("encoder: wordllama-")
    worse = lines.index("worse   code-review: 100% -> 65%")
    assert "  ! 'draft release messages' is new and finds checkout-procedure" in lines[worse:]
    assert lines[-2:] == ["gone    budget-rules: was 100%", "2 units unchanged"]
    report = json.loads(shop.run("coverage", "--against", "v1", "--json").output)
    assert (report["passed"], report["diff"]["later_version"]) == (False, "v2")
    assert {unit["unit"]: unit["verdict"] for unit in report["diff"]["units"]}["release-notes"] == "same"


def test_better_or_new_units_pass(shop: LibraryProject) -> None:
    add_competing_version(shop)
    shop.write(mode="stigmem")
    shop.clock.advance(60)
    shop.library.publish(shop.folder)
    result = shop.run("coverage", "--against", "v2")
    assert result.exit_code == 0
    assert "better  code-review: 65% -> 100%\n" in result.output
    assert "new     budget-rules: 100%\n" in result.output


def test_queries_with_a_changed_outcome_are_listed_with_what_they_find(shop: LibraryProject) -> None:
    shop.write(mode="stigmem", texts={"security-posture": f"{UNITS['security-posture'][2]} That is not allwoed."})
    shop.clock.advance(60)
    shop.library.publish(shop.folder)
    result = shop.run("coverage", "--against", "v1")
    expected = ["better  security-posture: 90% -> 100%", "  + 'what am I not allwoed to do' finds it now"]
    assert (result.exit_code, result.output.splitlines()[2:]) == (0, [*expected, "4 units unchanged"])
    shop.clock.advance(60)
    shop.library.rollback("v1")
    result = shop.run("coverage", "--against", "v2")
    expected = ["worse   security-posture: 100% -> 90%", "  - 'what am I not allwoed to do' finds nothing now"]
    assert (result.exit_code, result.output.splitlines()[2:]) == (1, [*expected, "4 units unchanged"])


def test_a_version_can_be_compared_with_the_current_texts_of_its_units(shop: LibraryProject) -> None:
    assert shop.run("coverage", "--against", "v1").output.splitlines()[2:] == ["5 units unchanged"]
    text = f"{UNITS['security-posture'][2]} That is not allwoed."
    shop.clock.advance(60)
    submitted = SubmittedUnit("instruction:local/main/security-posture/v2", text)
    write_unit(shop.library._context, submitted, InstructionCaller("admin", "embedded", "acme:user/ann"))
    (change,) = (unit for unit in shop.library.coverage_diff("v1").units if unit.verdict != "same")
    assert (change.unit, change.newly_found) == ("security-posture", ("what am I not allwoed to do",))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--against", "v9"), "never had a manifest 'v9'; the current one is 'v1'"),
        (("--against", "v1", "--agent", "nobody"), "has no manifest"),
        (("--agent", "nobody"), "has no manifest"),
    ],
)
def test_missing_things_are_reported_in_one_line(shop: LibraryProject, words: tuple[str, ...], reason: str) -> None:
    result = shop.run("coverage", *words)
    assert isinstance(result.exception, UserError)
    assert reason in str(result.exception)


def configure(shop: LibraryProject, encoder: str) -> None:
    (shop.path / "home" / "config.toml").write_text(f'[instructions]\nencoder = "{encoder}"\n')


MEASURING = "measuring all manifests (1) with the encoder"


def test_the_encoder_in_use_is_listed_with_the_manifests_that_fail_with_another(shop: LibraryProject) -> None:
    result = shop.run("encoder")
    assert (result.exit_code, result.output) == (0, "configured: wordllama\nin use:     wordllama\n")
    add_competing_version(shop)
    configure(shop, "none")
    result = shop.run("encoder")
    assert (result.exit_code, result.stderr) == (1, f"{MEASURING} none, which is new here\n")
    assert result.stdout.splitlines() == [
        "configured: words and links only",
        "in use:     wordllama",
        "1 manifest failed with the configured encoder: main",
        "fix their triggers (`holdfast instructions check FOLDER` names the units), or pass --accept to use it anyway",
    ]
    assert json.loads(shop.run("encoder", "--json").stdout) == {
        "configured": None,
        "active": "wordllama",
        "is_switched": False,
        "failing_agents": ["main"],
    }
    result = shop.run("encoder", "--accept")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1] == "in use:     words and links only (from now on)"
    assert result.stdout.splitlines()[3] == "accepted; a service switches when it restarts"
    assert shop.run("encoder").output == "configured: words and links only\nin use:     words and links only\n"


def test_an_encoder_that_all_manifests_pass_with_is_used_from_then_on(shop: LibraryProject) -> None:
    configure(shop, "none")
    result = shop.run("encoder")
    assert (result.exit_code, result.stdout.splitlines()[1]) == (0, "in use:     words and links only (from now on)")


def test_failures_are_measured_again_on_request_or_after_a_manifest_changed(
    shop: LibraryProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_competing_version(shop)
    configure(shop, "none")
    measured: list[str] = []

    def record_run(*arguments: Any, **more: Any) -> CoverageRun:
        measured.append(more["kind"])
        return measure_coverage(*arguments, **more)

    monkeypatch.setattr(schedule, "measure_coverage", record_run)
    for _ in range(2):
        assert shop.run("recall", "claim a ticket").exit_code == 0
        assert len(measured) == 1
    assert MEASURING in shop.run("encoder").stderr
    assert shop.run("recall", "claim a ticket").stderr == ""
    assert len(measured) == 2
    shop.clock.advance(60)
    manifest = shop.manifest()
    manifest["entries"][0]["description"] += " And more."
    shop.write_manifest(manifest)
    shop.library.publish(shop.folder, skip_coverage_gate=True)
    assert shop.run("index").exit_code == 0
    assert len(measured) == 2, "a reader measures nothing"
    shop.run("recall", "claim a ticket")
    assert len(measured) == 3


def test_an_encoder_that_cannot_run_is_never_called_in_use(tmp_path: Path) -> None:
    shop = LibraryProject(tmp_path)
    shop.library.close()
    model = write_model(tmp_path / "model")
    (model / "modules.json").write_text("[")
    configure(shop, str(model))
    for words in (("encoder",), ("encoder", "--accept")):
        result = shop.run(*words)
        assert isinstance(result.exception, UserError)
        assert "is not a supported model: modules.json: Input data was truncated" in str(result.exception)


def test_another_encoder_can_be_accepted_if_the_previous_one_is_gone(shop: LibraryProject) -> None:
    model = write_model(shop.path / "model")
    configure(shop, str(model))
    shop.run("encoder", "--accept")
    add_competing_version(shop)
    shutil.rmtree(model)
    configure(shop, "wordllama")
    for words in (("encoder",), ("recall", "claim a ticket"), ("recall", "claim a ticket")):
        result = shop.run(*words)
        assert isinstance(result.exception, UserError)
        assert (
            "was in use but is no longer available in that revision, and manifests fail with the configured one"
            in str(result.exception)
        )
        assert "or activate the configured one with `holdfast instructions encoder --accept`" in str(result.exception)
    assert shop.run("encoder", "--accept").exit_code == 0
    assert shop.run("recall", "claim a ticket").exit_code == 0


def test_a_moved_model_is_not_certified_again(shop: LibraryProject) -> None:
    model = write_model(shop.path / "model")
    configure(shop, f"wordllama+{model}")
    shop.run("encoder", "--accept")
    add_competing_version(shop)
    model.rename(shop.path / "moved")
    configure(shop, f"wordllama+{shop.path / 'moved'}")
    result = shop.run("encoder")
    assert result.stdout.splitlines()[1].startswith(f"in use:     wordllama+{shop.path / 'moved'}")
    assert result.stderr == ""
