"""The description of a git repository, and that nothing in it can make us run, fetch, wait or fail."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.sources.files import SourceFinding
from holdfast.sources.git import DETACHED, GitState, read_git_state

GIT_ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
}
AUTHOR = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_AUTHOR_DATE": "2026-11-15T12:00:00Z",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
    "GIT_COMMITTER_DATE": "2026-11-15T12:00:00Z",
}


class Repository:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, stdin: str = "") -> str:
        return subprocess.run(
            ["git", *arguments],
            cwd=self.root,
            env=GIT_ENVIRON | AUTHOR,
            input=stdin,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def commit(self, subject: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", subject)
        return self.git("rev-parse", "--short=7", "HEAD")

    def state(
        self,
        *,
        with_diff: bool = False,
        status_lines_max: int = 100,
        commits_max: int = 5,
        diff_bytes_max: int = 50_000,
    ) -> GitState:
        state = read_git_state(
            self.root,
            environ=GIT_ENVIRON,
            with_diff=with_diff,
            status_lines_max=status_lines_max,
            commits_max=commits_max,
            diff_bytes_max=diff_bytes_max,
        )
        assert state is not None
        return state


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path.resolve() / "repository")


def test_a_repository_with_changes_is_described(repository: Repository) -> None:
    repository.write("kept.txt", "one\n")
    repository.write("gone.txt", "gone\n")
    first = repository.commit("Add two files")
    repository.write("kept.txt", "one\ntwo\n")
    repository.write("staged.txt", "new\n")
    repository.git("add", "staged.txt")
    repository.write("naïve ☃.txt", "untracked\n")
    (repository.root / "gone.txt").unlink()
    assert repository.state() == GitState(
        branch="main",
        status=(" D gone.txt", " M kept.txt", "A  staged.txt", '?? "naïve ☃.txt"'),
        commits=(f"{first} Add two files",),
    )


def test_a_clean_tree_has_an_empty_status(repository: Repository) -> None:
    repository.commit("Nothing yet")
    state = repository.state()
    assert (state.status, state.status_truncated, state.diff, state.findings) == ((), False, None, ())


def test_a_folder_outside_of_any_repository_has_no_state(tmp_path: Path) -> None:
    assert read_git_state(tmp_path, environ=GIT_ENVIRON) is None


@pytest.mark.parametrize("name", ["gone", "nul\0name", "\ud800"])
def test_a_folder_that_does_not_exist_has_no_state(repository: Repository, name: str) -> None:
    assert read_git_state(repository.root / name, environ=GIT_ENVIRON) is None


def test_from_a_subfolder_the_whole_repository_is_described(repository: Repository) -> None:
    repository.write("sub/a.txt", "a")
    repository.commit("One")
    repository.write("top.txt", "new")
    repository.write("sub/a.txt", "b")
    state = read_git_state(repository.root / "sub", environ=GIT_ENVIRON, with_diff=True)
    assert state is not None
    assert state.status == (" M sub/a.txt", "?? top.txt")
    assert state.diff is not None
    assert state.diff.startswith("diff --git a/sub/a.txt b/sub/a.txt\n")


def test_before_the_first_commit_there_are_no_commits_and_no_findings(repository: Repository) -> None:
    repository.write("a.txt", "a\n")
    repository.git("add", "a.txt")
    state = repository.state(with_diff=True)
    assert (state.branch, state.status, state.commits, state.findings) == ("main", ("A  a.txt",), (), ())
    assert state.diff is not None
    assert state.diff.endswith("+a\n")


def test_a_detached_head_is_reported_as_such(repository: Repository) -> None:
    repository.commit("One")
    repository.git("checkout", "--quiet", "--detach")
    assert repository.state().branch == DETACHED == "HEAD (detached)"


def test_a_linked_worktree_is_described_as_itself(repository: Repository, tmp_path: Path) -> None:
    repository.commit("One")
    repository.git("worktree", "add", "--quiet", "-b", "side", str(tmp_path / "side"))
    (tmp_path / "side" / "new.txt").write_text("new")
    state = read_git_state(tmp_path / "side", environ=GIT_ENVIRON)
    assert state is not None
    assert (state.branch, state.status) == ("side", ("?? new.txt",))


def test_the_diff_is_read_only_on_request(repository: Repository) -> None:
    repository.write("a.txt", "a")
    repository.git("add", "a.txt")
    state = read_git_state(repository.root, environ=GIT_ENVIRON)
    assert state is not None
    assert state.diff is None


def test_the_newest_commits_come_first_up_to_a_limit(repository: Repository) -> None:
    commits = [f"{repository.commit(f'Commit {number}')} Commit {number}" for number in range(7)]
    assert repository.state().commits == tuple(reversed(commits[2:]))
    assert repository.state(commits_max=1).commits == (commits[6],)
    assert repository.state(commits_max=0).commits == ()


def test_a_subject_is_one_line_within_limits(repository: Repository) -> None:
    short = repository.commit("x" * 500)
    assert repository.state().commits == (f"{short} {'x' * 192}",)
    short = repository.commit("red \x1b[31m alert\n\nand a body")
    commits = repository.state().commits
    assert commits is not None
    assert commits[0] == f"{short} red \ufffd[31m alert"


def test_status_lines_at_the_limit_are_complete_and_one_more_is_cut(repository: Repository) -> None:
    for number in range(3):
        repository.write(f"{number}.txt", "")
    lines = ("?? 0.txt", "?? 1.txt", "?? 2.txt")
    at_cap, truncated = repository.state(status_lines_max=3), repository.state(status_lines_max=2)
    assert (at_cap.status, at_cap.status_truncated) == (lines, False)
    assert (truncated.status, truncated.status_truncated) == (lines[:2], True)


def test_an_endless_status_is_cut_after_a_complete_line(repository: Repository) -> None:
    for number in range(400):
        repository.write(f"{number:03}-{'x' * 200}", "")
    state = repository.state(status_lines_max=10_000)
    assert state.status_truncated
    assert state.status is not None
    assert len(state.status) == 65_536 // 208
    assert {len(line) for line in state.status} == {207}


# --- the diff


def test_the_diff_contains_staged_and_unstaged_changes(repository: Repository) -> None:
    repository.write("a.txt", "a\n")
    repository.write("b.txt", "b\n")
    repository.commit("One")
    repository.write("a.txt", "staged\n")
    repository.git("add", "a.txt")
    repository.write("b.txt", "unstaged\n")
    state = repository.state(with_diff=True)
    assert state.diff is not None
    assert [line for line in state.diff.splitlines() if line[:1] in "+-"] == [
        "--- a/a.txt",
        "+++ b/a.txt",
        "-a",
        "+staged",
        "--- a/b.txt",
        "+++ b/b.txt",
        "-b",
        "+unstaged",
    ]
    assert not state.diff_truncated


def test_a_clean_tree_has_an_empty_diff(repository: Repository) -> None:
    repository.commit("One")
    assert repository.state(with_diff=True).diff == ""


def test_a_diff_at_the_limit_is_complete_and_one_byte_more_is_cut(repository: Repository) -> None:
    repository.write("a.txt", "")
    repository.commit("One")
    repository.write("a.txt", "new\n")
    complete_diff = repository.state(with_diff=True).diff
    assert complete_diff is not None
    size = len(complete_diff.encode())
    at_cap = repository.state(with_diff=True, diff_bytes_max=size)
    truncated = repository.state(with_diff=True, diff_bytes_max=size - 1)
    assert (at_cap.diff, at_cap.diff_truncated) == (complete_diff, False)
    assert (truncated.diff, truncated.diff_truncated) == (complete_diff[:-1], True)


def test_a_diff_is_cut_between_characters(repository: Repository) -> None:
    repository.write("a.txt", "")
    repository.commit("One")
    repository.write("a.txt", "\U0001f980" * 20_000 + "\n")
    cuts = [repository.state(with_diff=True, diff_bytes_max=50_000 + extra) for extra in range(4)]
    sizes = [len((state.diff or "").encode()) for state in cuts]
    assert all(state.diff_truncated and (state.diff or "").endswith("\U0001f980") for state in cuts)
    assert all(50_000 + extra - 3 <= size <= 50_000 + extra for extra, size in enumerate(sizes))


def test_invalid_utf8_in_a_diff_is_replaced_within_the_limit(repository: Repository) -> None:
    repository.write("a.txt", "x")
    repository.commit("One")
    repository.write("a.txt", b"ok\n" * 4_000 + b"late \0 caf\xe9\n")
    state = repository.state(with_diff=True)
    assert state.diff is not None
    assert "+late \ufffd caf\ufffd\n" in state.diff
    repository.write("a.txt", b"\xff" * 6_000)
    state = repository.state(with_diff=True, diff_bytes_max=5_000)
    assert state.diff is not None
    assert state.diff_truncated
    assert 4_998 <= len(state.diff.encode()) <= 5_000


# --- hostile repositories


def make_tripwire(repository: Repository, tmp_path: Path) -> tuple[Path, Path]:
    """A program that leaves a trace when it runs, and the path of the trace."""
    trace = tmp_path / "trace"
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> {trace}\ncat\n')
    program.chmod(0o755)
    repository.write("a.txt", "a\n")
    repository.commit("One")
    return program, trace


@pytest.mark.parametrize(
    ("settings", "attributes"),
    [
        (("core.fsmonitor",), ""),
        (("diff.external",), ""),
        (("diff.x.command",), "* diff=x\n"),
        (("diff.x.textconv",), "* diff=x\n"),
        (("filter.x.clean",), "* filter=x\n"),
        (("filter.x=y.clean",), "* filter=x=y\n"),
        (("filter.x.process",), "* filter=x\n"),
        (("filter.x.clean", "filter.x.required"), "* filter=x\n"),
        (("core.pager",), ""),
        (("pager.diff", "pager.log", "pager.status"), ""),
    ],
)
def test_programs_that_the_repository_configures_are_not_run(
    repository: Repository, tmp_path: Path, settings: tuple[str, ...], attributes: str
) -> None:
    program, trace = make_tripwire(repository, tmp_path)
    for setting in settings:
        repository.git("config", setting, "true" if setting.endswith("required") else str(program))
    repository.write(".git/info/attributes", attributes)
    repository.write("a.txt", "b\n")
    state = repository.state(with_diff=True)
    assert not trace.exists()
    assert state.status == (" M a.txt",)
    assert state.diff is not None
    assert state.diff.endswith("-a\n+b\n")
    assert state.findings == ()


def test_filters_in_an_included_file_or_of_one_worktree_are_not_run_either(
    repository: Repository, tmp_path: Path
) -> None:
    program, trace = make_tripwire(repository, tmp_path)
    repository.write("more.config", f'[filter "x"]\n\tclean = {program}\n')
    repository.git("config", "include.path", "../more.config")
    repository.git("config", "extensions.worktreeConfig", "true")
    repository.git("config", "--worktree", "filter.y.clean", str(program))
    repository.write(".gitattributes", "a.txt filter=x\nb.txt filter=y\n")
    repository.write("b.txt", "b\n")
    repository.git("-c", "filter.x.clean=", "-c", "filter.y.clean=", "add", "--all")
    trace.unlink(missing_ok=True)
    repository.write("a.txt", "b\n")
    repository.write("b.txt", "c\n")
    repository.state(with_diff=True)
    assert not trace.exists()


def test_filters_that_the_user_configured_remain_active(repository: Repository, tmp_path: Path) -> None:
    program, trace = make_tripwire(repository, tmp_path)
    config = tmp_path / "global.config"
    config.write_text(f'[filter "mine"]\n\tclean = {program}\n')
    repository.write(".git/info/attributes", "* filter=mine\n")
    repository.write("a.txt", "b\n")
    read_git_state(repository.root, environ=GIT_ENVIRON | {"GIT_CONFIG_GLOBAL": str(config)})
    assert trace.exists()


def test_hooks_are_not_run_and_the_index_is_not_changed(repository: Repository, tmp_path: Path) -> None:
    program, trace = make_tripwire(repository, tmp_path)
    hook = repository.root / ".git" / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    shutil.copy(program, hook)
    index = repository.root / ".git" / "index"
    os.utime(repository.root / "a.txt", (1, 1))  # The index is out of date: git would normally refresh it.
    before = index.read_bytes()
    assert repository.state(with_diff=True).status == ()
    assert index.read_bytes() == before
    assert not trace.exists()


def test_signatures_are_not_checked(repository: Repository, tmp_path: Path) -> None:
    program, trace = make_tripwire(repository, tmp_path)
    tree = repository.git("rev-parse", "HEAD^{tree}")
    commit = (
        f"tree {tree}\nauthor Ada <a@b> 1800000000 +0000\ncommitter Ada <a@b> 1800000000 +0000\n"
        "gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\nSigned\n"
    )
    signed = repository.git("hash-object", "-t", "commit", "-w", "--stdin", stdin=commit)
    repository.git("reset", "--quiet", "--soft", signed)
    repository.git("config", "log.showSignature", "true")
    repository.git("config", "gpg.program", str(program))
    assert repository.state().commits == (f"{signed[:7]} Signed",)
    assert not trace.exists()


def test_missing_objects_are_not_fetched(repository: Repository, tmp_path: Path) -> None:
    program, trace = make_tripwire(repository, tmp_path)
    repository.git("config", "core.repositoryFormatVersion", "1")
    repository.git("config", "extensions.partialClone", "evil")
    repository.git("config", "remote.evil.promisor", "true")
    repository.git("config", "remote.evil.url", f"ext::{program}")
    repository.git("config", "protocol.ext.allow", "always")
    blob = repository.git("rev-parse", "HEAD:a.txt")
    (repository.root / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    repository.write("a.txt", "b\n")
    state = repository.state(with_diff=True)
    assert not trace.exists()
    assert state.status == (" M a.txt",)
    assert [finding.subject for finding in state.findings] == ["diff"]


def test_a_nested_repository_is_not_queried(repository: Repository, tmp_path: Path) -> None:
    program, trace = make_tripwire(repository, tmp_path)
    inner = Repository(repository.root / "inner")
    inner.write("b.txt", "b\n")
    before = inner.commit("Inner")
    repository.commit("Outer")
    inner.git("config", "filter.x.clean", str(program))
    inner.write(".git/info/attributes", "* filter=x\n")
    inner.write("b.txt", "c\n")
    assert repository.state(with_diff=True).status == ()
    inner.git("-c", "filter.x.clean=", "commit", "--quiet", "--allow-empty", "--message", "Inner again")
    repository.git("config", "diff.submodule", "diff")
    state = repository.state(with_diff=True)
    assert state.status == (" M inner",)
    assert state.diff is not None
    assert f"\n-Subproject commit {before}" in state.diff
    assert not trace.exists()


def test_a_broken_nested_repository_is_not_mistaken_for_the_outer_one(repository: Repository) -> None:
    repository.commit("Outer")
    inner = repository.root / "inner"
    (inner / ".git").mkdir(parents=True)
    state = read_git_state(inner, environ=GIT_ENVIRON)
    assert state is not None
    assert (state.branch, state.status, state.commits) == (None, None, None)


def test_a_work_tree_set_by_the_configuration_is_not_read(repository: Repository, tmp_path: Path) -> None:
    repository.write("secret.txt", "")
    repository.commit("One")
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / "secret.txt").write_text("password")
    repository.git("config", "core.worktree", str(other))
    state = repository.state(with_diff=True)
    assert (state.status, state.diff) == ((), "")


def test_a_git_program_in_the_repository_is_not_run(repository: Repository, tmp_path: Path) -> None:
    program, trace = make_tripwire(repository, tmp_path)
    shutil.copy(program, repository.root / "git")
    for path in (f".{os.pathsep}{os.environ['PATH']}", f"{os.pathsep}{os.environ['PATH']}"):
        state = read_git_state(repository.root, environ=GIT_ENVIRON | {"PATH": path})
        assert state is not None
        assert state.status == ("?? git",)
    assert not trace.exists()


def test_variables_that_redirect_git_are_not_inherited(repository: Repository, tmp_path: Path) -> None:
    other = Repository(tmp_path / "other")
    other.git("checkout", "--quiet", "-b", "elsewhere")
    repository.commit("One")
    environ = GIT_ENVIRON | {"GIT_DIR": str(other.root / ".git"), "GIT_INDEX_FILE": "/dev/null"}
    state = read_git_state(repository.root, environ=environ)
    assert state is not None
    assert (state.branch, state.status) == ("main", ())


def test_display_settings_do_not_change_the_text(repository: Repository) -> None:
    repository.write("sub/ä.txt", "".join(f"{number}\n" for number in range(20)))
    repository.commit("One")
    repository.write("sub/ä.txt", "".join(f"{number}\n" for number in range(20) if number != 10))
    plain = repository.state(with_diff=True)
    for setting, value in {
        "color.ui": "always",
        "diff.noprefix": "true",
        "diff.mnemonicPrefix": "true",
        "diff.context": "1",
        "diff.relative": "true",
        "core.quotepath": "on",
        "status.showUntrackedFiles": "no",
        "status.branch": "true",
        "status.short": "false",
        "core.abbrev": "20",
        "log.decorate": "full",
        "format.pretty": "raw",
    }.items():
        repository.git("config", setting, value)
    repository.write("new.txt", "")
    changed = repository.state(with_diff=True)
    assert changed.status == (" M sub/ä.txt", "?? new.txt")
    assert changed.commits == plain.commits
    assert changed.diff is not None
    assert changed.diff.partition("\n---")[2] == (plain.diff or "").partition("\n---")[2]


# --- when git does not work


def test_without_git_there_is_a_finding_and_nothing_else(repository: Repository, tmp_path: Path) -> None:
    for path in (str(tmp_path), "", "bin"):
        state = read_git_state(repository.root, environ={"PATH": path})
        assert state == GitState(findings=(SourceFinding("git", "the git command is not on the PATH"),))


def test_a_program_called_git_that_cannot_be_started_is_a_finding(repository: Repository, tmp_path: Path) -> None:
    fake = tmp_path / "git"
    fake.write_bytes(b"\x7fELF and no more")
    fake.chmod(0o755)
    state = read_git_state(repository.root, environ={"PATH": str(tmp_path)})
    assert state == GitState(findings=(SourceFinding("git", "git could not be started"),))


def test_a_git_that_hangs_is_stopped(repository: Repository, tmp_path: Path) -> None:
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\nexec sleep 60\n")
    fake.chmod(0o755)
    started = time.monotonic()
    environ = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    state = read_git_state(repository.root, environ=environ, seconds_max=0.1)
    assert state == GitState(findings=(SourceFinding("git", "git took too long"),))
    assert time.monotonic() - started < 5


def test_the_timeout_is_for_all_commands_together_and_late_results_are_omitted(
    repository: Repository,
) -> None:
    repository.commit("One")
    looks = iter(range(10_000))
    # Every reading of the clock is a second later: the first commands are in time, the last are not.
    state = read_git_state(
        repository.root,
        environ=GIT_ENVIRON,
        with_diff=True,
        seconds_max=14.0,
        monotonic=lambda: float(next(looks)),
    )
    assert state is not None
    assert state.branch == "main"
    assert (state.status, state.commits, state.diff) == (None, None, None)
    assert {finding.reason for finding in state.findings} == {"git took too long"}


def test_a_git_that_prints_without_end_is_stopped(repository: Repository, tmp_path: Path) -> None:
    fake = tmp_path / "git"
    fake.write_text("#!/bin/sh\nwhile :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done\n")
    fake.chmod(0o755)
    state = read_git_state(repository.root, environ={"PATH": str(tmp_path)})
    assert state == GitState(findings=(SourceFinding("git", "git printed too much"),))


def test_a_broken_repository_is_described_as_far_as_possible(repository: Repository) -> None:
    repository.commit("One")
    repository.write(".git/index", b"not an index")
    state = repository.state(with_diff=True)
    assert (state.branch, state.status, state.diff) == ("main", None, None)
    assert state.commits is not None
    assert state.findings == (
        SourceFinding("status", "git failed with exit code 128; run git status there to see why"),
        SourceFinding("diff", "git failed with exit code 128; run git status there to see why"),
    )


def test_a_history_with_a_missing_object_is_a_finding(repository: Repository) -> None:
    repository.commit("One")
    parent = repository.git("rev-parse", "HEAD")
    repository.commit("Two")
    (repository.root / ".git" / "objects" / parent[:2] / parent[2:]).unlink()
    state = repository.state()
    assert (state.branch, state.status, state.commits) == ("main", (), None)
    assert [finding.subject for finding in state.findings] == ["commits"]


def test_a_folder_that_only_resembles_a_repository_has_findings_and_no_state(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    state = read_git_state(tmp_path, environ=GIT_ENVIRON, with_diff=True)
    assert state is not None
    assert state == GitState(findings=state.findings)
    assert [finding.subject for finding in state.findings] == ["branch", "head", "status", "diff"]


def test_configuration_that_cannot_be_parsed_is_a_finding(repository: Repository) -> None:
    repository.write(".git/config", "[[[")
    state = repository.state()
    assert state == GitState(
        findings=(SourceFinding("git", "git failed with exit code 128; run git status there to see why"),)
    )
