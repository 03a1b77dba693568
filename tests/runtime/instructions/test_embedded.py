"""`holdfast.Library` and its commands: check, publish, promote, roll back and probe without a server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.support.instruction_service import UNITS
from tests.support.library_projects import LibraryProject, TickingClock

from holdfast.cli.main import command
from holdfast.errors import UserError
from holdfast.instructions.errors import InstructionError
from holdfast.instructions.manifest.lint import lint_manifest
from holdfast.instructions.models import LoadTriggers, ManifestEntry

DAY = 86_400


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[LibraryProject]:
    shop = LibraryProject(tmp_path)
    with shop.library:
        yield shop


def test_a_folder_is_published_and_recalled_without_a_server(shop: LibraryProject) -> None:
    shop.write()
    done = shop.library.publish(shop.folder)
    assert done.changes == dict.fromkeys(UNITS, "create")
    assert shop.recalled("review a pull request")[0] == "code-review"
    assert (shop.path / "files" / "main" / "code-review.md").read_text() == UNITS["code-review"][2] + "\n"


def test_an_unchanged_folder_is_not_published_again(shop: LibraryProject) -> None:
    shop.write()
    shop.library.publish(shop.folder)
    again = shop.library.publish(shop.folder)
    assert again.published is None
    assert set(again.changes.values()) == {"noop"}


def test_a_changed_text_is_a_new_version_and_a_removed_unit_is_named(shop: LibraryProject) -> None:
    shop.write()
    shop.library.publish(shop.folder)
    shop.clock.advance(1)
    shop.write(texts={"code-review": "Read the whole diff of a pull request, and the tests, before you review it."})
    manifest = shop.manifest()
    manifest["entries"] = [entry for entry in manifest["entries"] if entry["name"] != "budget-rules"]
    shop.write_manifest(manifest)
    done = shop.library.publish(shop.folder)
    assert done.version == "v2"
    assert done.changes["code-review"] == "update"
    assert done.changes["budget-rules"] == "tombstone"
    by_name = {entry.name: entry.fact_uri for entry in shop.library.entries()}
    assert by_name["code-review"] == "instruction:local/main/code-review/v2"
    assert by_name["release-notes"] == "instruction:local/main/release-notes/v1"
    assert "and the tests" in shop.library.recall("review a pull request").result.chunks[0].content.text


def write_preloaded_unit(shop: LibraryProject, text: str) -> None:
    """Write a folder with a preloaded unit."""
    shop.write(texts={"code-review": text})
    manifest = shop.manifest()
    entry_to_preload = next(entry for entry in manifest["entries"] if entry["name"] == "code-review")
    entry_to_preload["required_by_task_types"] = ["manual"]
    shop.write_manifest(manifest)


def recall_review_text(shop: LibraryProject) -> str:
    return shop.library.recall("review a pull request").result.chunks[0].content.text


def test_the_new_text_of_a_preloaded_unit_is_active_once_it_is_approved(shop: LibraryProject) -> None:
    old, new = UNITS["code-review"][2], "Review a pull request twice, and leave comments."
    write_preloaded_unit(shop, old)
    shop.library.publish(shop.folder)
    shop.clock.advance(1)
    write_preloaded_unit(shop, new)
    published = shop.run("publish", str(shop.folder))
    pending_warning = "warning: code-review: v2 is not active until it is approved (task_types)\n"
    assert pending_warning in published.stdout
    assert recall_review_text(shop) == old
    again = shop.run("publish", str(shop.folder))
    assert again.stdout.startswith(f"v2 is already published; nothing to do\n{pending_warning}")
    approved = shop.run("approve", "code-review", "--entity", "acme:user/ann")
    assert approved.stdout == ("approved instruction:local/main/code-review/v2: task_types\nit is active from now on\n")
    assert recall_review_text(shop) == new
    assert shop.run("publish", str(shop.folder)).stdout == "v2 is already published; nothing to do\n"
    for name, reason in (("code-review", "is pending approval"), ("nothing", "lists no unit")):
        refused = shop.run("approve", name)
        assert refused.exit_code == 1
        assert reason in str(refused.exception)


def test_a_rollback_restores_the_text_of_a_preloaded_unit_at_once(shop: LibraryProject) -> None:
    old = UNITS["code-review"][2]
    write_preloaded_unit(shop, old)
    shop.library.publish(shop.folder)
    shop.clock.advance(1)
    write_preloaded_unit(shop, "Review a pull request twice, and leave comments.")
    shop.library.publish(shop.folder)
    shop.library.approve("code-review")
    assert recall_review_text(shop) != old
    shop.clock.advance(1)
    assert shop.library.rollback("v1").pending == ()
    assert recall_review_text(shop) == old


def write_guaranteed_unit(shop: LibraryProject, text: str, **approval: str) -> None:
    shop.write(mode="stigmem", texts={"code-review": text})
    manifest = shop.manifest()
    next(one for one in manifest["entries"] if one["name"] == "code-review")["guarantee_load"] = True
    approvals = [{"kind": "guarantee_load", "unit": "code-review", **approval}] if approval else []
    shop.write_manifest({**manifest, "approvals": approvals})


def test_an_approval_of_another_version_stops_a_folder_before_anything_is_written(shop: LibraryProject) -> None:
    shop.write(mode="stigmem")
    shop.library.publish(shop.folder)
    old = recall_review_text(shop)
    shop.clock.advance(1)
    write_guaranteed_unit(shop, "Review a pull request twice.", version="v1")
    assert shop.run("check", str(shop.folder)).exit_code == 1
    with pytest.raises(InstructionError, match="needs an approval") as refused:
        shop.library.publish(shop.folder)
    assert refused.value.code == "guarantee_approval_required"
    assert recall_review_text(shop) == old
    write_guaranteed_unit(shop, "Review a pull request twice.", version="v2")
    shop.library.publish(shop.folder)
    assert recall_review_text(shop) == "Review a pull request twice."


def test_a_folder_without_the_approval_is_published_and_its_new_text_is_pending(shop: LibraryProject) -> None:
    old = UNITS["code-review"][2]
    write_guaranteed_unit(shop, old, reason="read")
    shop.library.publish(shop.folder)
    shop.clock.advance(1)
    write_guaranteed_unit(shop, "Review a pull request twice, and leave comments.")
    done = shop.library.publish(shop.folder)
    assert done.pending == ("code-review: v2 is not active until it is approved (guarantee_load)",)
    assert recall_review_text(shop) == old
    assert shop.library.approve("code-review").is_activated


def test_a_folder_that_fails_a_check_changes_nothing(shop: LibraryProject) -> None:
    shop.write()
    shop.library.publish(shop.folder)
    shop.clock.advance(1)
    shop.write(texts={"code-review": "Something else entirely."})
    manifest = shop.manifest()
    for entry in manifest["entries"]:
        entry["load_triggers"]["intents"] = ["write release notes"]
    shop.write_manifest(manifest)
    checked = shop.library.check(shop.folder)
    assert {failure.code for failure in checked.failures} == {"manifest_coverage_failure"}
    with pytest.raises(InstructionError, match="of its paraphrases find it; found instead: "):
        shop.library.publish(shop.folder)
    assert shop.library.recall("review a pull request").result.chunks[0].content.text == UNITS["code-review"][2]
    assert shop.library.publish(shop.folder, skip_coverage_gate=True).version == "v2"


def test_all_check_failures_are_reported_at_once(shop: LibraryProject) -> None:
    shop.write()
    manifest = shop.manifest()
    manifest["entries"][0]["required_by_task_types"] = ["nonsense"]
    manifest["entries"][1]["guarantee_load"] = True
    manifest["always_rules"] = ["Never do this. " * 400]
    shop.write_manifest(manifest)
    result = shop.run("check", str(shop.folder))
    assert result.exit_code == 1
    for code in ("task_type_unknown", "guarantee_approval_required", "boot_stub_too_large", "it cannot be published"):
        assert code in result.stdout


def test_promotion_requires_a_week_with_a_low_miss_rate(shop: LibraryProject) -> None:
    shop.write()
    shop.library.publish(shop.folder)
    shop.clock.advance(6.9 * DAY)
    with pytest.raises(InstructionError, match="observe it for 7 days first"):
        shop.library.promote()
    shop.clock.advance(DAY)
    with pytest.raises(InstructionError, match="at least 5 are needed"):
        shop.library.promote()
    shop.recall_and_close(5, missed=("release-notes",))
    with pytest.raises(InstructionError, match=r"miss rate of the last 7 days is 0\.50"):
        shop.library.promote()
    shop.recall_and_close(60)
    done = shop.library.promote()
    assert done.manifest.migration_mode == "stigmem"
    assert all(entry.path is None for entry in shop.library.entries())
    with pytest.raises(InstructionError, match="not coexistence"):
        shop.library.promote()


def test_the_week_can_be_skipped_except_for_a_sensitive_agent(shop: LibraryProject) -> None:
    shop.write()
    shop.library.publish(shop.folder)
    records = shop.library._context.records
    agent = records.agent("main")
    assert agent is not None
    sensitive = type(agent)(**{**{name: getattr(agent, name) for name in agent.__struct_fields__}, "sensitive": True})
    records.put_agent(sensitive)
    with pytest.raises(InstructionError, match="flagged sensitive"):
        shop.library.promote(force=True)
    records.put_agent(agent)
    assert shop.library.promote(force=True).manifest.version == "v2"


def test_files_are_archived_only_after_the_promotion_and_never_overwrite_others(shop: LibraryProject) -> None:
    shop.write()
    shop.library.publish(shop.folder)
    (shop.path / "AGENTS.md").write_text("# Old\n")
    with pytest.raises(InstructionError, match="promote it first"):
        shop.library.archive(shop.path / "AGENTS.md", root=shop.path)
    shop.library.promote(force=True)
    with pytest.raises(UserError, match="not a file below"):
        shop.library.archive(shop.path.parent / "other.md", root=shop.path)
    shop.library.archive(shop.path / "AGENTS.md", root=shop.path)
    archived = shop.path / "docs" / "legacy-instructions" / "AGENTS.md"
    assert archived.read_text() == (
        "<!-- Moved: these instructions are now at instruction:local/main/manifest/v2 -->\n# Old\n"
    )
    assert not (shop.path / "AGENTS.md").exists()
    (shop.path / "AGENTS.md").write_text("# New\n")
    with pytest.raises(UserError, match="exists already"):
        shop.library.archive(shop.path / "AGENTS.md", root=shop.path)


def test_a_rollback_restores_the_manifest_and_its_texts(shop: LibraryProject) -> None:
    shop.write()
    shop.library.publish(shop.folder)
    shop.clock.advance(60)
    shop.write(texts={"code-review": "Read half of the diff of a pull request before you leave a review comment."})
    manifest = shop.manifest()
    del manifest["entries"][-1]
    shop.write_manifest(manifest)
    shop.library.publish(shop.folder)
    shop.clock.advance(60)
    done = shop.library.rollback("v1")
    assert done.version == "v3"
    assert done.changes["code-review"] == "update"
    assert len(shop.library.entries()) == len(UNITS)
    assert shop.library.recall("review a pull request").result.chunks[0].content.text == UNITS["code-review"][2]
    with pytest.raises(InstructionError, match="no older manifest"):
        shop.library.rollback("v3")


def test_a_rollback_restores_the_texts_however_long_publishing_takes(tmp_path: Path) -> None:
    shop = LibraryProject(tmp_path, clock=TickingClock())
    half, none = (f"Read {amount} of the diff of a pull request before you review it." for amount in ("half", "none"))
    with shop.library:
        for texts in ({}, {"code-review": half}, {"code-review": none}):
            shop.write(texts=texts)
            shop.library.publish(shop.folder)
        for version, text in (("v2", half), ("v1", UNITS["code-review"][2]), ("v3", none)):
            shop.library.rollback(version)
            assert shop.library.recall("review a pull request").result.chunks[0].content.text == text


def test_probe_names_the_intents_that_do_not_find_their_unit_and_exits_with_1(shop: LibraryProject) -> None:
    shop.write()
    shop.library.publish(shop.folder)
    assert shop.run("probe").exit_code == 0
    manifest = shop.manifest()
    manifest["entries"][0]["load_triggers"]["intents"] = [
        "write release notes",
        "announce a new version",
        "claim a ticket",
    ]
    shop.write_manifest(manifest)
    shop.clock.advance(1)
    shop.library.publish(shop.folder, skip_coverage_gate=True)
    result = shop.run("probe", "-k", "1")
    assert result.exit_code == 1
    assert "FAIL security-posture" in result.stdout
    assert "'claim a ticket' finds checkout-procedure" in result.stdout


def test_a_unit_without_a_text_fails_its_probe(shop: LibraryProject) -> None:
    shop.write(mode="stigmem")
    (shop.folder / "code-review.md").unlink()
    shop.library.publish(shop.folder)
    probed = {unit.name: unit for unit in shop.library.probe().units}
    assert not probed["code-review"].passed
    assert [miss.intent for miss in probed["code-review"].missed] == list(UNITS["code-review"][1])
    assert probed["release-notes"].passed


def test_a_heartbeat_reports_usage_by_itself(shop: LibraryProject) -> None:
    shop.write()
    shop.library.publish(shop.folder)
    with shop.library.heartbeat() as beat:
        assert "recall_instruction" in beat.stub
        beat.recall("claim a ticket")
        beat.recall("review a pull request")
        beat.report_used("code-review", "checkout-procedure")
        beat.report_missed("budget-rules")
    measures = shop.library.metrics()
    assert (measures.recalls, measures.closed) == (2, 2)
    assert measures.miss_rate is not None
    assert 0 < measures.miss_rate < 0.5


def test_a_recall_can_be_replayed(shop: LibraryProject) -> None:
    shop.write()
    shop.library.publish(shop.folder)
    token = shop.library.recall("review a pull request").audit_token
    shop.clock.advance(60)
    shop.write(texts={"code-review": "Purchases and invoices."})
    shop.library.publish(shop.folder, skip_coverage_gate=True)
    result = shop.run("replay", token)
    assert result.exit_code == 0
    assert "then: code-review" in result.stdout
    assert isinstance(shop.run("replay", "audi_none").exception, InstructionError)


@pytest.mark.parametrize("intent", ["announce a new version", "notify the owner", "eine Lösung prüfen", "审查代码"])
def test_lint_accepts_intents_that_describe_actions_and_other_languages(intent: str) -> None:
    entry = ManifestEntry("a", "About it.", load_triggers=LoadTriggers(intents=(intent,)), path="a.md")
    assert lint_manifest([entry]) == ()


def test_lint_reports_triggers_that_describe_the_content_of_a_unit(shop: LibraryProject) -> None:
    shop.write()
    manifest = shop.manifest()
    for entry in manifest["entries"]:
        del entry["load_triggers"]["intents"][1:]
    shop.write_manifest(manifest)
    shop.library.publish(shop.folder)
    assert shop.run("lint").stdout == "no flaws\n"
    manifest["entries"][2]["load_triggers"]["intents"] = ["pull request review rules", "write release notes"]
    shop.write_manifest(manifest)
    shop.library.publish(shop.folder, skip_coverage_gate=True)
    result = shop.run("lint")
    assert result.exit_code == 1
    assert "'pull request review rules' describes the unit's content" in result.stdout
    assert "'write release notes' is also an intent of 'code-review'" in result.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("recall", " "), "say in `intent`"),
        (("recall", "anything", "--agent", "nobody"), "has no instruction manifest"),
        (("rollback", "v7"), "has no instruction manifest"),
        (("usage", "audi_none"), "no such audit token"),
    ],
)
def test_a_missing_thing_is_a_one_line_error(shop: LibraryProject, words: tuple[str, ...], reason: str) -> None:
    result = shop.run(*words)
    assert isinstance(result.exception, UserError)
    assert reason in str(result.exception)


def test_read_only_commands_create_no_store(tmp_path: Path) -> None:
    environ = {"HOLDFAST_HOME": str(tmp_path)}
    result = CliRunner().invoke(command, ["instructions", "lint", "--db", str(tmp_path / "no.db")], env=environ)
    assert isinstance(result.exception, UserError)
    assert not (tmp_path / "no.db").exists()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"agent_id": 3}', '{"agent_id":"a","version":"v1","entries":[{}]}']
)
def test_an_invalid_manifest_file_is_named(shop: LibraryProject, content: str) -> None:
    (shop.folder / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json"):
        shop.library.check(shop.folder)


def test_shadow_turns_are_reported_and_the_command_exits_with_1_until_they_pass(shop: LibraryProject) -> None:
    long_texts = {name: f"{content} " * 90 for name, (_, _, content) in UNITS.items()}
    shop.write(texts=long_texts)
    shop.library.publish(shop.folder)
    result = shop.run("shadow")
    assert result.exit_code == 1
    assert "coverage: unknown (at least 95%)\ntokens: unknown, 0 of 0 per turn (below 50%)" in result.output
    for _ in range(10):
        report = json.loads(shop.run("recall", "claim a ticket", "--shadow", "--max-chunks", "1", "--json").output)
        assert shop.run("usage", report["audit_token"], "--used", "checkout-procedure").exit_code == 0
    passed = shop.run("shadow")
    assert (passed.exit_code, passed.output.splitlines()[-1]) == (0, "lazy recall would have sufficed")
    wrong = shop.library.recall("approve a purchase", shadow=True, max_chunks=1)
    shop.library.submit_usage(wrong.audit_token, used=("code-review",))
    failed = shop.run("shadow")
    assert failed.exit_code == 1
    assert (
        "regressions: 1 (none allowed)\n  'approve a purchase' without code-review\nmissed: code-review, 1 time\n"
        in (failed.output)
    )
    assert "not yet: turns that would have regressed: 1\n" in failed.output
    report = json.loads(shop.run("shadow", "--json").output)
    assert (report["passed"], report["report"]["reported_turns"]) == (False, 11)
    shop.clock.advance(3 * DAY)
    assert json.loads(shop.run("shadow", "--days", "2", "--json").output)["report"]["turns"] == 0


def test_a_unit_recalled_earlier_in_a_shadow_run_counts_in_its_later_turns(shop: LibraryProject) -> None:
    shop.write()
    shop.library.publish(shop.folder)
    shop.run("recall", "claim a ticket", "--shadow", "--run", "r1", "--max-chunks", "1")
    recalled = json.loads(
        shop.run("recall", "announce a new version", "--shadow", "--run", "r1", "--max-chunks", "1", "--json").output
    )
    shop.run("usage", recalled["audit_token"], "--used", "checkout-procedure")
    assert shop.library.shadow_report().coverage == 1.0


def test_the_encoder_is_loaded_only_for_a_recall(shop: LibraryProject) -> None:
    shop.write()
    shop.library.publish(shop.folder)
    code = (
        "import sys\n"
        "from holdfast import Library\n"
        "from holdfast.instructions.settings import InstructionSettings\n"
        "with Library('kept.db', settings=InstructionSettings(encoder='wordllama')) as library:\n"
        "    views = library.stub(), library.index(), library.entries()\n"
        "    print(all(views), 'numpy' in sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=shop.path, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("True False\n", "")
