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
from holdfast.errors import InstructionError, UserError
from holdfast.instructions.manifest.check import lint_manifest
from holdfast.instructions.models import LoadTriggers, ManifestEntry

DAY = 86_400


@pytest.fixture
def project(tmp_path: Path) -> Iterator[LibraryProject]:
    project = LibraryProject(tmp_path)
    with project.library:
        yield project


def test_a_folder_is_published_and_recalled_without_a_server(project: LibraryProject) -> None:
    project.write()
    done = project.library.publish(project.folder)
    assert done.changes == dict.fromkeys(UNITS, "create")
    assert project.recalled("review a pull request")[0] == "code-review"
    assert (project.path / "files" / "main" / "code-review.md").read_text() == UNITS["code-review"][2] + "\n"


def test_an_unchanged_folder_is_not_published_again(project: LibraryProject) -> None:
    project.write()
    project.library.publish(project.folder)
    again = project.library.publish(project.folder)
    assert again.published is None
    assert set(again.changes.values()) == {"noop"}


def test_a_changed_text_is_a_new_version_and_a_removed_unit_is_named(project: LibraryProject) -> None:
    project.write()
    project.library.publish(project.folder)
    project.clock.advance(1)
    project.write(texts={"code-review": "Read the whole diff of a pull request, and the tests, before you review it."})
    manifest = project.manifest()
    manifest["entries"] = [entry for entry in manifest["entries"] if entry["name"] != "budget-rules"]
    project.write_manifest(manifest)
    done = project.library.publish(project.folder)
    assert done.version == "v2"
    assert done.changes["code-review"] == "update"
    assert done.changes["budget-rules"] == "tombstone"
    by_name = {entry.name: entry.fact_uri for entry in project.library.entries()}
    assert by_name["code-review"] == "instruction:local/main/code-review/v2"
    assert by_name["release-notes"] == "instruction:local/main/release-notes/v1"
    assert "and the tests" in project.library.recall("review a pull request").result.chunks[0].content.text


def write_preloaded_unit(project: LibraryProject, text: str) -> None:
    """Write a folder with a preloaded unit."""
    project.write(texts={"code-review": text})
    manifest = project.manifest()
    entry_to_preload = next(entry for entry in manifest["entries"] if entry["name"] == "code-review")
    entry_to_preload["required_by_task_types"] = ["manual"]
    project.write_manifest(manifest)


def recall_review_text(project: LibraryProject) -> str:
    return project.library.recall("review a pull request").result.chunks[0].content.text


def test_the_new_text_of_a_preloaded_unit_is_active_once_it_is_approved(project: LibraryProject) -> None:
    old, new = UNITS["code-review"][2], "Review a pull request twice, and leave comments."
    write_preloaded_unit(project, old)
    project.library.publish(project.folder)
    project.clock.advance(1)
    write_preloaded_unit(project, new)
    published = project.run("publish", str(project.folder))
    pending_warning = "warning: code-review: v2 is not active until it is approved (task_types)\n"
    assert pending_warning in published.stdout
    assert recall_review_text(project) == old
    again = project.run("publish", str(project.folder))
    assert again.stdout.startswith(f"v2 is already published; nothing to do\n{pending_warning}")
    approved = project.run("approve", "code-review", "--entity", "acme:user/ann")
    assert approved.stdout == ("approved instruction:local/main/code-review/v2: task_types\nit is active from now on\n")
    assert recall_review_text(project) == new
    assert project.run("publish", str(project.folder)).stdout == "v2 is already published; nothing to do\n"
    for name, reason in (("code-review", "is pending approval"), ("nothing", "lists no unit")):
        refused = project.run("approve", name)
        assert refused.exit_code == 1
        assert reason in str(refused.exception)


def test_a_rollback_restores_the_text_of_a_preloaded_unit_at_once(project: LibraryProject) -> None:
    old = UNITS["code-review"][2]
    write_preloaded_unit(project, old)
    project.library.publish(project.folder)
    project.clock.advance(1)
    write_preloaded_unit(project, "Review a pull request twice, and leave comments.")
    project.library.publish(project.folder)
    project.library.approve("code-review")
    assert recall_review_text(project) != old
    project.clock.advance(1)
    assert project.library.rollback("v1").pending == ()
    assert recall_review_text(project) == old


def write_guaranteed_unit(project: LibraryProject, text: str, **approval: str) -> None:
    project.write(mode="stigmem", texts={"code-review": text})
    manifest = project.manifest()
    next(one for one in manifest["entries"] if one["name"] == "code-review")["guarantee_load"] = True
    approvals = [{"kind": "guarantee_load", "unit": "code-review", **approval}] if approval else []
    project.write_manifest({**manifest, "approvals": approvals})


def test_an_approval_of_another_version_stops_a_folder_before_anything_is_written(project: LibraryProject) -> None:
    project.write(mode="stigmem")
    project.library.publish(project.folder)
    old = recall_review_text(project)
    project.clock.advance(1)
    write_guaranteed_unit(project, "Review a pull request twice.", version="v1")
    assert project.run("check", str(project.folder)).exit_code == 1
    with pytest.raises(InstructionError, match="needs an approval") as refused:
        project.library.publish(project.folder)
    assert refused.value.code == "guarantee_approval_required"
    assert recall_review_text(project) == old
    write_guaranteed_unit(project, "Review a pull request twice.", version="v2")
    project.library.publish(project.folder)
    assert recall_review_text(project) == "Review a pull request twice."


def test_a_folder_without_the_approval_is_published_and_its_new_text_is_pending(project: LibraryProject) -> None:
    old = UNITS["code-review"][2]
    write_guaranteed_unit(project, old, reason="read")
    project.library.publish(project.folder)
    project.clock.advance(1)
    write_guaranteed_unit(project, "Review a pull request twice, and leave comments.")
    done = project.library.publish(project.folder)
    assert done.pending == ("code-review: v2 is not active until it is approved (guarantee_load)",)
    assert recall_review_text(project) == old
    assert project.library.approve("code-review").is_activated


def test_a_folder_that_fails_a_check_changes_nothing(project: LibraryProject) -> None:
    project.write()
    project.library.publish(project.folder)
    project.clock.advance(1)
    project.write(texts={"code-review": "Something else entirely."})
    manifest = project.manifest()
    for entry in manifest["entries"]:
        entry["load_triggers"]["intents"] = ["write release notes"]
    project.write_manifest(manifest)
    checked = project.library.check(project.folder)
    assert {failure.code for failure in checked.failures} == {"manifest_coverage_failure"}
    with pytest.raises(InstructionError, match="of its paraphrases find it; found instead: "):
        project.library.publish(project.folder)
    assert project.library.recall("review a pull request").result.chunks[0].content.text == UNITS["code-review"][2]
    assert project.library.publish(project.folder, skip_coverage_gate=True).version == "v2"


def test_all_check_failures_are_reported_at_once(project: LibraryProject) -> None:
    project.write()
    manifest = project.manifest()
    manifest["entries"][0]["required_by_task_types"] = ["nonsense"]
    manifest["entries"][1]["guarantee_load"] = True
    manifest["always_rules"] = ["Never do this. " * 400]
    project.write_manifest(manifest)
    result = project.run("check", str(project.folder))
    assert result.exit_code == 1
    for code in ("task_type_unknown", "guarantee_approval_required", "boot_stub_too_large", "it cannot be published"):
        assert code in result.stdout


def test_promotion_requires_a_week_with_a_low_miss_rate(project: LibraryProject) -> None:
    project.write()
    project.library.publish(project.folder)
    project.clock.advance(6.9 * DAY)
    with pytest.raises(InstructionError, match="observe it for 7 days first"):
        project.library.promote()
    project.clock.advance(DAY)
    with pytest.raises(InstructionError, match="at least 5 are needed"):
        project.library.promote()
    project.recall_and_close(5, missed=("release-notes",))
    with pytest.raises(InstructionError, match=r"miss rate of the last 7 days is 0\.50"):
        project.library.promote()
    project.recall_and_close(60)
    done = project.library.promote()
    assert done.manifest.migration_mode == "stigmem"
    assert all(entry.path is None for entry in project.library.entries())
    with pytest.raises(InstructionError, match="not coexistence"):
        project.library.promote()


def test_the_week_can_be_skipped_except_for_a_sensitive_agent(project: LibraryProject) -> None:
    project.write()
    project.library.publish(project.folder)
    records = project.library._context.records
    agent = records.agent("main")
    assert agent is not None
    sensitive = type(agent)(**{**{name: getattr(agent, name) for name in agent.__struct_fields__}, "sensitive": True})
    records.put_agent(sensitive)
    with pytest.raises(InstructionError, match="flagged sensitive"):
        project.library.promote(force=True)
    records.put_agent(agent)
    assert project.library.promote(force=True).manifest.version == "v2"


def test_files_are_archived_only_after_the_promotion_and_never_overwrite_others(project: LibraryProject) -> None:
    project.write()
    project.library.publish(project.folder)
    (project.path / "AGENTS.md").write_text("# Old\n")
    with pytest.raises(InstructionError, match="promote it first"):
        project.library.archive(project.path / "AGENTS.md", root=project.path)
    project.library.promote(force=True)
    with pytest.raises(UserError, match="not a file below"):
        project.library.archive(project.path.parent / "other.md", root=project.path)
    project.library.archive(project.path / "AGENTS.md", root=project.path)
    archived = project.path / "docs" / "legacy-instructions" / "AGENTS.md"
    assert archived.read_text() == (
        "<!-- Moved: these instructions are now at instruction:local/main/manifest/v2 -->\n# Old\n"
    )
    assert not (project.path / "AGENTS.md").exists()
    (project.path / "AGENTS.md").write_text("# New\n")
    with pytest.raises(UserError, match="exists already"):
        project.library.archive(project.path / "AGENTS.md", root=project.path)


def test_a_rollback_restores_the_manifest_and_its_texts(project: LibraryProject) -> None:
    project.write()
    project.library.publish(project.folder)
    project.clock.advance(60)
    project.write(texts={"code-review": "Read half of the diff of a pull request before you leave a review comment."})
    manifest = project.manifest()
    del manifest["entries"][-1]
    project.write_manifest(manifest)
    project.library.publish(project.folder)
    project.clock.advance(60)
    done = project.library.rollback("v1")
    assert done.version == "v3"
    assert done.changes["code-review"] == "update"
    assert len(project.library.entries()) == len(UNITS)
    assert project.library.recall("review a pull request").result.chunks[0].content.text == UNITS["code-review"][2]
    with pytest.raises(InstructionError, match="no older manifest"):
        project.library.rollback("v3")


def test_a_rollback_restores_the_texts_however_long_publishing_takes(tmp_path: Path) -> None:
    project = LibraryProject(tmp_path, clock=TickingClock())
    half, none = (f"Read {amount} of the diff of a pull request before you review it." for amount in ("half", "none"))
    with project.library:
        for texts in ({}, {"code-review": half}, {"code-review": none}):
            project.write(texts=texts)
            project.library.publish(project.folder)
        for version, text in (("v2", half), ("v1", UNITS["code-review"][2]), ("v3", none)):
            project.library.rollback(version)
            assert project.library.recall("review a pull request").result.chunks[0].content.text == text


def test_probe_names_the_intents_that_do_not_find_their_unit_and_exits_with_1(project: LibraryProject) -> None:
    project.write()
    project.library.publish(project.folder)
    assert project.run("probe").exit_code == 0
    manifest = project.manifest()
    manifest["entries"][0]["load_triggers"]["intents"] = [
        "write release notes",
        "announce a new version",
        "claim a ticket",
    ]
    project.write_manifest(manifest)
    project.clock.advance(1)
    project.library.publish(project.folder, skip_coverage_gate=True)
    result = project.run("probe", "-k", "1")
    assert result.exit_code == 1
    assert "FAIL security-posture" in result.stdout
    assert "'claim a ticket' finds checkout-procedure" in result.stdout


def test_a_unit_without_a_text_is_not_published(project: LibraryProject) -> None:
    project.write(mode="stigmem")
    (project.folder / "code-review.md").unlink()
    with pytest.raises(
        InstructionError, match=r"code-review: a recall cannot return it; it has no active text"
    ) as raised:
        project.library.publish(project.folder)
    assert raised.value.code == "manifest_coverage_failure"


def test_a_heartbeat_reports_usage_by_itself(project: LibraryProject) -> None:
    project.write()
    project.library.publish(project.folder)
    with project.library.heartbeat() as beat:
        assert "recall_instruction" in beat.stub
        beat.recall("claim a ticket")
        beat.recall("review a pull request")
        beat.report_used("code-review", "checkout-procedure")
        beat.report_missed("budget-rules")
    measures = project.library.metrics()
    assert (measures.recalls, measures.closed) == (2, 2)
    assert measures.miss_rate is not None
    assert 0 < measures.miss_rate < 0.5


def test_a_recall_can_be_replayed(project: LibraryProject) -> None:
    project.write()
    project.library.publish(project.folder)
    token = project.library.recall("review a pull request").audit_token
    project.clock.advance(60)
    project.write(texts={"code-review": "Purchases and invoices."})
    project.library.publish(project.folder, skip_coverage_gate=True)
    result = project.run("replay", token)
    assert result.exit_code == 0
    assert "then: code-review" in result.stdout
    assert isinstance(project.run("replay", "audi_none").exception, InstructionError)


@pytest.mark.parametrize("intent", ["announce a new version", "notify the owner", "eine Lösung prüfen", "审查代码"])
def test_lint_accepts_intents_that_describe_actions_and_other_languages(intent: str) -> None:
    entry = ManifestEntry("a", "About it.", load_triggers=LoadTriggers(intents=(intent,)), path="a.md")
    assert lint_manifest([entry]) == ()


def test_lint_reports_triggers_that_describe_the_content_of_a_unit(project: LibraryProject) -> None:
    project.write()
    manifest = project.manifest()
    for entry in manifest["entries"]:
        del entry["load_triggers"]["intents"][1:]
    project.write_manifest(manifest)
    project.library.publish(project.folder)
    # It has no word in common with its text, and without an encoder nothing else can be known.
    flaw = "security-posture: 'what am I not allowed to do' has nothing in common with the text"
    assert [line.partition("; ")[0] for line in project.run("lint").stdout.splitlines()] == [flaw]
    manifest["entries"][2]["load_triggers"]["intents"] = ["pull request review rules", "write release notes"]
    project.write_manifest(manifest)
    project.library.publish(project.folder, skip_coverage_gate=True)
    result = project.run("lint")
    assert result.exit_code == 1
    assert "'pull request review rules' describes the unit's content" in result.stdout
    assert "'write release notes' is also an intent of 'code-review'" in result.stdout


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("recall", " "), "say in `intent`"),
        (("recall", "anything", "--agent", "nobody"), "has no manifest; `holdfast instructions publish` publishes one"),
        (("rollback", "v7"), "has no manifest; `holdfast instructions publish` publishes one"),
        (("usage", "audi_none"), "no such audit token; the answer to a recall has one"),
        (("replay", "audi_none"), "no such audit record; the answer to a recall has its token"),
    ],
)
def test_a_missing_thing_is_a_one_line_error(project: LibraryProject, words: tuple[str, ...], reason: str) -> None:
    result = project.run(*words)
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
def test_an_invalid_manifest_file_is_named(project: LibraryProject, content: str) -> None:
    (project.folder / "manifest.json").write_text(content)
    with pytest.raises(UserError, match=r"manifest\.json"):
        project.library.check(project.folder)


def test_shadow_turns_are_reported_and_the_command_exits_with_1_until_they_pass(project: LibraryProject) -> None:
    long_texts = {name: f"{content} " * 90 for name, (_, _, content) in UNITS.items()}
    project.write(texts=long_texts)
    project.library.publish(project.folder)
    result = project.run("shadow")
    assert result.exit_code == 1
    assert "coverage: unknown (at least 95%)\ntokens: unknown, 0 of 0 per turn (below 50%)" in result.output
    for _ in range(10):
        report = json.loads(project.run("recall", "claim a ticket", "--shadow", "--max-chunks", "1", "--json").output)
        assert project.run("usage", report["audit_token"], "--used", "checkout-procedure").exit_code == 0
    passed = project.run("shadow")
    assert (passed.exit_code, passed.output.splitlines()[-1]) == (0, "lazy recall would have sufficed")
    wrong = project.library.recall("approve a purchase", shadow=True, max_chunks=1)
    project.library.submit_usage(wrong.audit_token, used=("code-review",))
    failed = project.run("shadow")
    assert failed.exit_code == 1
    assert (
        "regressions: 1 (none allowed)\n  'approve a purchase' without code-review\nmissed: code-review, 1 time\n"
        in (failed.output)
    )
    assert "not yet: turns that would have regressed: 1\n" in failed.output
    report = json.loads(project.run("shadow", "--json").output)
    assert (report["passed"], report["report"]["reported_turns"]) == (False, 11)
    project.clock.advance(3 * DAY)
    assert json.loads(project.run("shadow", "--days", "2", "--json").output)["report"]["turns"] == 0


def test_a_unit_recalled_earlier_in_a_shadow_run_counts_in_its_later_turns(project: LibraryProject) -> None:
    project.write()
    project.library.publish(project.folder)
    project.run("recall", "claim a ticket", "--shadow", "--run", "r1", "--max-chunks", "1")
    recalled = json.loads(
        project.run("recall", "announce a new version", "--shadow", "--run", "r1", "--max-chunks", "1", "--json").output
    )
    project.run("usage", recalled["audit_token"], "--used", "checkout-procedure")
    assert project.library.shadow_report().coverage == 1.0


def test_the_encoder_is_loaded_only_for_a_recall(project: LibraryProject) -> None:
    project.write()
    project.library.publish(project.folder)
    code = (
        "import sys\n"
        "from holdfast import Library\n"
        "from holdfast.instructions.context import InstructionSettings\n"
        "with Library('kept.db', settings=InstructionSettings(encoder='wordllama')) as library:\n"
        "    views = library.stub(), library.index(), library.entries()\n"
        "    print(all(views), 'numpy' in sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=project.path, capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("True False\n", "")
