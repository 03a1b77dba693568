"""A copy of the tree with its own virtual environment, in which functions are broken and tests are run."""

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import coverage

from mutants import Mutant

BASELINE_SECONDS_MAX = 1800
MEMORY_BYTES_MAX = 8 << 30
MADE_BY_TOOLS = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", ".coverage*")

# The tests of this tool break functions of their own small tree, which says nothing about this one.
OWN_TESTS = "tests/scripts/test_mutate.py"

COVERAGE = """\
[run]
parallel = true
data_file = {folder}/lines
source = {root}/src
context = ${{MUTATE_CONTEXT-}}
sigterm = true
disable_warnings = no-data-collected, module-not-imported, module-not-measured, couldnt-parse
"""


@dataclass(frozen=True)
class Lines:
    """Which tests run which line of the package, and how long each test takes; an empty name means no test."""

    tests: Mapping[str, Mapping[int, frozenset[str]]]
    seconds: Mapping[str, float]
    breadth: Mapping[str, int]

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that run the function: first those that run the line, among them the narrowest first."""
        of_line = self.tests.get(mutant.function.path, {}).get(mutant.line, frozenset())
        tests = self._who_run(mutant) & self.seconds.keys()
        return sorted(tests, key=lambda test: (test not in of_line, self.breadth[test], self.seconds[test], test))

    def run_by_no_test(self, mutant: Mutant) -> bool:
        """Whether the function also runs outside of tests: at import time, or in a process without a test name."""
        return bool(self._who_run(mutant) - self.seconds.keys())

    def _who_run(self, mutant: Mutant) -> set[str]:
        lines = self.tests.get(mutant.function.path, {})
        function = range(mutant.function.first_line, mutant.function.last_line + 1)
        return {test for line in function for test in lines.get(line, ())}


@dataclass(frozen=True)
class Failure:
    """Tests that failed, or did not end in time."""

    status: str
    failed_test: str = ""
    output: str = ""


class Copy:
    def __init__(self, original: Path, root: Path) -> None:
        self.root = root
        self._writes = 0
        self._process: subprocess.Popen[bytes] | None = None
        shutil.copytree(original, root, symlinks=True, ignore=MADE_BY_TOOLS)
        self._packages = make_environment(root)
        self._python = str(root / ".venv" / "bin" / "python")

    def learn(self, *, jobs: int) -> Lines | str:
        """Run all tests on the unchanged tree; what they printed if they fail."""
        folder = self.root.with_name("learned")
        folder.mkdir()
        settings = folder / "coverage.ini"
        settings.write_text(COVERAGE.format(folder=folder, root=self.root))
        # In the interpreter and not only in the variables, which a test may keep from its subprocesses.
        start = self._packages / "tree_learn.pth"
        start.write_text(
            f"import os; os.environ.setdefault('COVERAGE_PROCESS_START', {str(settings)!r}); "
            "import coverage; coverage.process_startup()\n"
        )
        workers = ["-n", str(jobs)] if jobs > 1 else []
        variables = {"MUTATE_LEARN": str(folder)}
        failure = self._pytest(["--ignore", OWN_TESTS, *workers], variables, seconds_max=BASELINE_SECONDS_MAX)
        start.unlink()
        return failure.output if failure else read_lines(self.root, folder, settings)

    def run(self, tests: Sequence[str], *, seconds_max: float) -> Failure | None:
        """The first of these tests that fails."""
        chosen = self.root.with_name(f"{self.root.name}-tests.json")
        chosen.write_text(json.dumps(tests))
        files = sorted({test.partition("::")[0] for test in tests})
        return self._pytest(["-x", *files], {"MUTATE_TESTS": str(chosen)}, seconds_max=seconds_max)

    @contextlib.contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        path = self.root / mutant.function.path
        text = path.read_text()
        self._write(path, mutant.apply(text))
        try:
            yield
        finally:
            self._write(path, text)

    def stop(self) -> None:
        if self._process:
            end_group(self._process)

    def _write(self, path: Path, text: str) -> None:
        """Every write has a time of its own, lest the bytecode of an earlier text be taken for this one's."""
        self._writes += 1
        path.write_text(text)
        os.utime(path, (self._writes, self._writes))

    def _pytest(self, arguments: list[str], variables: Mapping[str, str], *, seconds_max: float) -> Failure | None:
        command = [
            self._python,
            "-m",
            "pytest",
            "-p",
            "mutation_plugin",
            "-p",
            "no:cacheprovider",
            *arguments,
        ]
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTEST_", "COV", "MUTATE_", "PYTHONPATH", "VIRTUAL_ENV"))
            or name == "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
        }
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            self._process = process = subprocess.Popen(
                command,
                cwd=self.root,
                env={**inherited, **variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            # A mutant may well ask for all the memory there is.
            resource.prlimit(process.pid, resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
            try:
                status = process.wait(seconds_max)
            except subprocess.TimeoutExpired:
                return Failure("timed out")
            finally:
                end_group(process)
            output.seek(0)
            printed = output.read()
        if status == 5:
            raise RuntimeError(f"pytest found none of the tests it was to run:\n{printed}")
        failed = re.search(r"(?m)^(?:FAILED|ERROR) (.+?)(?: - |$)", printed)
        return Failure("killed", failed[1] if failed else "", printed) if status else None


def make_environment(root: Path) -> Path:
    """An interpreter that sees this tree's package and what is installed beside the running one."""
    venv.create(root / ".venv", symlinks=True)
    packages = next((root / ".venv" / "lib").glob("python*/site-packages"))
    installed = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (packages / "tree.pth").write_text(f"{root / 'src'}\nimport site; list(map(site.addsitedir, {installed!r}))\n")
    shutil.copy(Path(__file__).with_name("mutation_plugin.py"), packages)
    theirs, ours = Path(sys.executable).parent, root / ".venv" / "bin"
    for script in theirs.iterdir():
        if script.is_file() and not (ours / script.name).exists():
            content = script.read_bytes()
            if content.startswith(b"#!"):
                (ours / script.name).write_bytes(content.replace(bytes(theirs), bytes(ours)))
                (ours / script.name).chmod(0o755)
            else:
                (ours / script.name).symlink_to(script)
    return packages


def read_lines(root: Path, folder: Path, settings: Path) -> Lines:
    measured = coverage.Coverage(config_file=str(settings))
    measured.combine()
    data = measured.get_data()
    tests = {
        str(Path(path).relative_to(root)): {
            line: frozenset(contexts) for line, contexts in data.contexts_by_lineno(path).items()
        }
        for path in data.measured_files()
    }
    seconds: dict[str, float] = {}
    for path in folder.glob("seconds-*.json"):
        seconds |= json.loads(path.read_text())
    breadth = Counter(test for lines in tests.values() for names in lines.values() for test in names)
    return Lines(tests, seconds, breadth)


def sources_of(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.glob("src/**/*.py"))}


def end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
