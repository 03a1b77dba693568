"""Reads the state of a git repository: branch, status, recent commits, and the diff on request.

The repository and its configuration are untrusted: no program that it names is run, and nothing is fetched.
"""

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.clock import Clock
from holdfast.sources.command import BoundedOutput, run_bounded
from holdfast.sources.files import SourceFinding, cut_utf8, find_git_root, to_one_line

SECONDS_MAX = 5.0
STATUS_LINES_MAX = 100
COMMITS_MAX = 5
SUBJECT_CHARS_MAX = 200
DIFF_BYTES_MAX = 50_000
_OUTPUT_BYTES_MAX = 65_536
DETACHED = "HEAD (detached)"

# Nothing else is passed on: variables such as GIT_DIR or GIT_EXTERNAL_DIFF would redirect git.
_PASSED_VARIABLES = (
    "HOME",
    "XDG_CONFIG_HOME",
    "TMPDIR",
    "GIT_CONFIG_GLOBAL",
    "GIT_CONFIG_SYSTEM",
    "GIT_CONFIG_NOSYSTEM",
)

_SETTINGS = (
    ("core.quotepath", "off"),
    ("core.fsmonitor", "false"),  # Could name a program that git would run.
    ("core.hooksPath", os.devnull),
    ("diff.autoRefreshIndex", "false"),  # Otherwise git writes the index, even without optional locks.
    ("log.showSignature", "false"),  # Otherwise git runs the program that `gpg.program` names.
    ("safe.bareRepository", "explicit"),
)

# Fixed options, so that neither the user's configuration nor the repository's changes the output or runs a program.
_DIFF_OPTIONS = (
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--ignore-submodules=dirty",
    "--submodule=short",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--unified=3",
)


class GitState(msgspec.Struct, frozen=True):
    """A field is None if it could not be read; the findings say why. A clean tree has an empty status.

    Status lines are git's short format, paths relative to the root; a commit is its short id and subject.
    """

    branch: str | None = None
    status: tuple[str, ...] | None = None
    status_truncated: bool = False
    commits: tuple[str, ...] | None = None
    diff: str | None = None
    diff_truncated: bool = False
    findings: tuple[SourceFinding, ...] = ()


def read_git_state(
    cwd: Path,
    *,
    environ: Mapping[str, str],
    with_diff: bool = False,
    seconds_max: float = SECONDS_MAX,
    status_lines_max: int = STATUS_LINES_MAX,
    commits_max: int = COMMITS_MAX,
    diff_bytes_max: int = DIFF_BYTES_MAX,
    monotonic: Clock = time.monotonic,
) -> GitState | None:
    """None outside of a repository. `seconds_max` limits all commands together; fields that are not ready are None."""
    root = find_git_root(cwd)
    if root is None:
        return None
    git = _Git(root, environ, monotonic() + seconds_max, monotonic)
    if not git.disarm_filters():
        return GitState(findings=tuple(git.findings))
    branch = git.ask("branch", "symbolic-ref", "--quiet", "--short", "HEAD", exit_codes=(0, 1))
    head = git.ask("head", "rev-parse", "--quiet", "--verify", "HEAD^{commit}", exit_codes=(0, 1))
    status, status_truncated = _read_status(git, status_lines_max)
    has_commits = head is not None and head.exit_code == 0
    diff, diff_truncated = _read_diff(git, has_commits, diff_bytes_max) if with_diff else (None, False)
    return GitState(
        branch=(to_one_line(branch.output.rstrip(b"\n")) or DETACHED) if branch else None,
        status=status,
        status_truncated=status_truncated,
        commits=_read_commits(git, commits_max) if has_commits else (() if head else None),
        diff=diff,
        diff_truncated=diff_truncated,
        findings=tuple(git.findings),
    )


def _read_status(git: "_Git", lines_max: int) -> tuple[tuple[str, ...] | None, bool]:
    options = ("--porcelain=v1", "--untracked-files=normal", "--ignore-submodules=dirty", "--no-ahead-behind")
    result = git.ask("status", "status", *options, may_be_cut=True)
    if result is None:
        return None, False
    lines = result.output.split(b"\n")[:-1]  # The last element has no newline: it is empty or was cut.
    return tuple(to_one_line(line) for line in lines[:lines_max]), result.end == "cut" or len(lines) > lines_max


def _read_diff(git: "_Git", has_commits: bool, bytes_max: int) -> tuple[str | None, bool]:
    """All uncommitted changes, staged or not; before the first commit, the staged ones."""
    against = "HEAD" if has_commits else "--cached"
    result = git.ask("diff", "diff", *_DIFF_OPTIONS, against, "--", may_be_cut=True, bytes_max=bytes_max + 1)
    if result is None:
        return None, False
    return cut_utf8(result.output.decode("utf-8", "replace").replace("\0", "\ufffd"), bytes_max)


def _read_commits(git: "_Git", commits_max: int) -> tuple[str, ...] | None:
    options = (f"--max-count={commits_max}", "--abbrev=7", "--format=%h %s")
    result = git.ask("commits", "log", *options, may_be_cut=True)
    if result is None:
        return None
    return tuple(to_one_line(line)[:SUBJECT_CHARS_MAX] for line in result.output.split(b"\n") if line)


class _Git:
    """The git commands of one reading; they share a deadline and a list of findings."""

    def __init__(self, root: Path, environ: Mapping[str, str], deadline: float, monotonic: Clock) -> None:
        folders = environ.get("PATH", os.defpath).split(os.pathsep)
        # A relative PATH entry would be resolved inside the untrusted repository.
        path = os.pathsep.join(folder for folder in folders if os.path.isabs(folder))
        self._program = shutil.which("git", path=path)
        self._root = root
        self._deadline = deadline
        self._monotonic = monotonic
        self.findings: list[SourceFinding] = []
        self._environ = {name: environ[name] for name in _PASSED_VARIABLES if name in environ} | {
            "PATH": path,
            "LC_ALL": "C",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_NO_LAZY_FETCH": "1",
            # With a broken `.git`, git must not report on a repository further up.
            "GIT_CEILING_DIRECTORIES": str(root.parent),
            # Overrides `core.worktree`, which could point to a folder with secrets.
            "GIT_WORK_TREE": str(root),
        }

    def disarm_filters(self) -> bool:
        """Disable the content filters that the repository configures; False if git cannot be run at all."""
        result = self.ask(
            "git", "config", "--null", "--show-scope", "--name-only", "--get-regexp", r"^filter\.", exit_codes=(0, 1)
        )
        if result is None:
            return False
        fields = result.output.split(b"\0")
        entries = zip(fields[::2], fields[1::2], strict=False)
        filter_names = {
            os.fsdecode(name.rpartition(b".")[0]) for scope, name in entries if scope in (b"local", b"worktree")
        }
        settings = [
            (f"{filter_name}.{key}", value)
            for filter_name in sorted(filter_names)
            for key, value in (("clean", ""), ("process", ""), ("required", "false"))
        ]
        # Through the environment, because `-c` cannot express a name that contains `=`.
        self._environ["GIT_CONFIG_COUNT"] = str(len(settings))
        for number, (name, value) in enumerate(settings):
            self._environ[f"GIT_CONFIG_KEY_{number}"] = name
            self._environ[f"GIT_CONFIG_VALUE_{number}"] = value
        return True

    def ask(
        self,
        subject: str,
        *arguments: str,
        exit_codes: Sequence[int] = (0,),
        may_be_cut: bool = False,
        bytes_max: int = _OUTPUT_BYTES_MAX,
    ) -> BoundedOutput | None:
        """The output of a git command; on failure None, and a finding is added."""
        if self._program is None:
            self.findings.append(SourceFinding(subject, "the git command is not on the PATH"))
            return None
        settings = [part for name, value in _SETTINGS for part in ("-c", f"{name}={value}")]
        result = run_bounded(
            [self._program, "--no-pager", *settings, *arguments],
            self._root,
            self._environ,
            seconds_max=self._deadline - self._monotonic(),
            bytes_max=bytes_max,
            monotonic=self._monotonic,
        )
        reason = _failure_reason(result, exit_codes, may_be_cut)
        if reason is None:
            return result
        self.findings.append(SourceFinding(subject, reason))
        return None


def _failure_reason(result: BoundedOutput, exit_codes: Sequence[int], may_be_cut: bool) -> str | None:
    match result.end:
        case "timed_out":
            return "git took too long"
        case "not_started":
            return "git could not be started"
        case "cut":
            return None if may_be_cut else "git printed too much"
        case "exited":
            if result.exit_code in exit_codes:
                return None
            return f"git failed with exit code {result.exit_code}; run git status there to see why"
