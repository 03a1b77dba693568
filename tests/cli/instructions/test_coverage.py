"""`holdfast instructions coverage` and `encoder`: the gate once more, what another version did better, and by what."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.instruction_examples import Shop
from tests.support.instruction_places import UNITS
from tests.support.onnx_models import write_model

from holdfast.errors import UserError
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.coverage import schedule
from holdfast.instructions.coverage.schedule import measure_coverage
from holdfast.instructions.models import CoverageRun
from holdfast.instructions.units.write import SubmittedUnit, write_unit


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    with shop.library:
        shop.write(mode="stigmem")
        shop.library.publish(shop.folder)
        yield shop


def crowd(shop: Shop) -> None:
    """Another version: all others claim what the release notes are for, and one unit is left out."""
    told = shop.manifest()
    told["entries"] = [entry for entry in told["entries"] if entry["name"] != "budget-rules"]
    for entry in told["entries"]:
        if entry["name"] != "release-notes":
            entry["load_triggers"]["intents"] = [*UNITS[entry["name"]][1], "write release notes"]
    shop.write_manifest(told)
    shop.clock.advance(60)
    shop.library.publish(shop.folder, skip_coverage_gate=True)


def test_every_unit_is_told_with_what_finds_another(shop: Shop) -> None:
    ended = shop.run("coverage")
    assert (ended.exit_code, "ok   code-review: 100% of 10 paraphrases\n" in ended.output) == (0, True)
    crowd(shop)
    ended = shop.run("coverage")
    assert ended.exit_code == 1
    assert "FAIL checkout-procedure: 73% of 15 paraphrases\n" in ended.output
    assert "\n       'draft release messages' finds release-notes\n" in ended.output
    told = json.loads(shop.run("coverage", "--json").output)
    assert told["passed"] is False
    failing = {one["unit"] for one in told["units"] if not one["passed"]}
    assert failing == {"security-posture", "checkout-procedure"}


def test_what_is_worse_than_in_another_version_is_told_with_its_queries(shop: Shop) -> None:
    crowd(shop)
    ended = shop.run("coverage", "--against", "v1")
    lines = ended.output.splitlines()
    assert ended.exit_code == 1
    assert lines[0] == "v1 as published, compared with v2 as it is now"
    assert lines[1].startswith("encoder: wordllama-")
    worse = lines.index("worse   checkout-procedure: 100% -> 73%")
    assert "  ! 'draft release messages' is new and finds release-notes" in lines[worse:]
    assert lines[-2:] == ["gone    budget-rules: was 100%", "1 unit unchanged"]
    told = json.loads(shop.run("coverage", "--against", "v1", "--json").output)
    assert (told["passed"], told["diff"]["later_version"]) == (False, "v2")
    assert {one["unit"]: one["verdict"] for one in told["diff"]["units"]}["release-notes"] == "same"


def test_what_is_better_or_new_passes(shop: Shop) -> None:
    crowd(shop)
    shop.write(mode="stigmem")
    shop.clock.advance(60)
    shop.library.publish(shop.folder)
    ended = shop.run("coverage", "--against", "v2")
    assert ended.exit_code == 0
    assert "better  checkout-procedure: 73% -> 100%\n" in ended.output
    assert "new     budget-rules: 100%\n" in ended.output


def test_queries_that_changed_sides_are_told_with_what_they_find(shop: Shop) -> None:
    shop.write(mode="stigmem", texts={"security-posture": f"{UNITS['security-posture'][2]} That is not allwoed."})
    shop.clock.advance(60)
    shop.library.publish(shop.folder)
    ended = shop.run("coverage", "--against", "v1")
    told = ["better  security-posture: 90% -> 100%", "  + 'what am I not allwoed to do' finds it now"]
    assert (ended.exit_code, ended.output.splitlines()[2:]) == (0, [*told, "4 units unchanged"])
    shop.clock.advance(60)
    shop.library.rollback("v1")
    ended = shop.run("coverage", "--against", "v2")
    told = ["worse   security-posture: 100% -> 90%", "  - 'what am I not allwoed to do' finds nothing now"]
    assert (ended.exit_code, ended.output.splitlines()[2:]) == (1, [*told, "4 units unchanged"])


def test_a_version_can_be_compared_with_what_became_of_its_texts(shop: Shop) -> None:
    assert shop.run("coverage", "--against", "v1").output.splitlines()[2:] == ["5 units unchanged"]
    text = f"{UNITS['security-posture'][2]} That is not allwoed."
    shop.clock.advance(60)
    given = SubmittedUnit("instruction:local/main/security-posture/v2", text)
    write_unit(shop.library._context, given, InstructionCaller("admin", "embedded", "acme:user/ann"))
    (change,) = (one for one in shop.library.coverage_diff("v1").units if one.verdict != "same")
    assert (change.unit, change.newly_found) == ("security-posture", ("what am I not allwoed to do",))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--against", "v9"), "never had a manifest 'v9'"),
        (("--against", "v1", "--agent", "nobody"), "has no instruction manifest"),
        (("--agent", "nobody"), "has no instruction manifest"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(shop: Shop, words: tuple[str, ...], reason: str) -> None:
    ended = shop.run("coverage", *words)
    assert isinstance(ended.exception, UserError)
    assert reason in str(ended.exception)


def configure(shop: Shop, encoder: str) -> None:
    (shop.path / "home" / "config.toml").write_text(f'[instructions]\nencoder = "{encoder}"\n')


MEASURING = "measuring all manifests (1) with the encoder"


def test_the_encoder_in_use_is_told_with_the_manifests_that_fail_with_another(shop: Shop) -> None:
    ended = shop.run("encoder")
    assert (ended.exit_code, ended.output) == (0, "configured: wordllama\nin use:     wordllama\n")
    crowd(shop)
    configure(shop, "none")
    ended = shop.run("encoder")
    assert (ended.exit_code, ended.stderr) == (1, f"{MEASURING} none, which is new here\n")
    assert ended.stdout.splitlines() == [
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
    ended = shop.run("encoder", "--accept")
    assert ended.exit_code == 0
    assert ended.stdout.splitlines()[1] == "in use:     words and links only (from now on)"
    assert ended.stdout.splitlines()[3] == "accepted; a service switches when it restarts"
    assert shop.run("encoder").output == "configured: words and links only\nin use:     words and links only\n"


def test_an_encoder_that_all_pass_with_is_used_from_then_on(shop: Shop) -> None:
    configure(shop, "none")
    ended = shop.run("encoder")
    assert (ended.exit_code, ended.stdout.splitlines()[1]) == (0, "in use:     words and links only (from now on)")


def test_what_failed_is_measured_again_when_asked_or_when_a_manifest_changed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd(shop)
    configure(shop, "none")
    measured: list[str] = []

    def watched(*said: Any, **more: Any) -> CoverageRun:
        measured.append(more["kind"])
        return measure_coverage(*said, **more)

    monkeypatch.setattr(schedule, "measure_coverage", watched)
    first, second = shop.run("index"), shop.run("index")
    assert (first.output, len(measured)) == (second.output, 1)
    assert MEASURING in shop.run("encoder").stderr
    assert shop.run("index").stderr == ""
    assert len(measured) == 2
    shop.clock.advance(60)
    told = shop.manifest()
    told["entries"][0]["description"] += " And more."
    shop.write_manifest(told)
    shop.library.publish(shop.folder, skip_coverage_gate=True)
    shop.run("index")
    assert len(measured) == 3


def test_a_model_that_cannot_be_computed_is_never_called_in_use(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.library.close()
    model = write_model(tmp_path / "model")
    (model / "modules.json").write_text("[")
    configure(shop, str(model))
    for words in (("encoder",), ("encoder", "--accept")):
        ended = shop.run(*words)
        assert isinstance(ended.exception, UserError)
        assert "is not a supported model: modules.json: Input data was truncated" in str(ended.exception)


def test_where_the_encoder_before_is_gone_another_can_be_accepted(shop: Shop) -> None:
    model = write_model(shop.path / "model")
    configure(shop, str(model))
    shop.run("encoder", "--accept")
    crowd(shop)
    shutil.rmtree(model)
    configure(shop, "wordllama")
    for command in ("encoder", "index", "index"):
        ended = shop.run(command)
        assert isinstance(ended.exception, UserError)
        assert (
            "was in use but is no longer available in that revision, and manifests fail with the configured one"
            in str(ended.exception)
        )
        assert "or activate the configured one with `holdfast instructions encoder --accept`" in str(ended.exception)
    assert shop.run("encoder", "--accept").exit_code == 0
    assert shop.run("recall", "claim a ticket").exit_code == 0


def test_a_model_that_was_moved_is_not_certified_again(shop: Shop) -> None:
    model = write_model(shop.path / "model")
    configure(shop, f"wordllama+{model}")
    shop.run("encoder", "--accept")
    crowd(shop)
    model.rename(shop.path / "moved")
    configure(shop, f"wordllama+{shop.path / 'moved'}")
    ended = shop.run("encoder")
    assert ended.stdout.splitlines()[1].startswith(f"in use:     wordllama+{shop.path / 'moved'}")
    assert ended.stderr == ""
