"""`holdfast doctor`: runs a prompt-building function in perturbed environments to find what its output depends on."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.providers.failures import one_line
from holdfast.runtime.differences import excerpt, first_difference, start_of_word
from holdfast.runtime.worlds import ADVICE, FIRST, Cause, World, worlds

ANSWER_BYTES_MAX = 32 * 1024 * 1024
RUN_SECONDS_MAX = 60.0
VARIABLES_MAX = 40
# Shorter values, such as "1" or "true", are no secrets, and masking them would garble the excerpts.
HIDDEN_BYTES_MIN = 6
MIRRORED_ENTRIES_MAX = 5_000

TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

_WORKER = Path(__file__).with_name("probe_child.py")
# Variables that have perturbations of their own, or without which no program would start.
_UNPERTURBED = re.compile(
    r"PATH|LD_.*|DYLD_.*|PYTHON.*|VIRTUAL_ENV|SYSTEMROOT|LANG|LANGUAGE|LC_.*|TZ|PWD", re.IGNORECASE
)


class Answer(msgspec.Struct, frozen=True):
    """One run's result: a value of some kind as bytes, or why it failed. `read` names the variables it looked up."""

    kind: str
    said: bytes
    read: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.kind not in ("bytes", "text", "json")


class Finding(msgspec.Struct, frozen=True):
    """The first difference in the result when one thing is changed; `detail` names the variable or the error."""

    cause: Cause
    advice: str
    byte: int
    path: str | None
    excerpts: tuple[str, ...]
    detail: str = ""


class Diagnosis(msgspec.Struct, frozen=True):
    """`findings` are ordered by byte offset."""

    target: str
    runs: int
    size_bytes: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


class Prober:
    """Runs one target, each time in a new process."""

    def __init__(self, target: str, environ: Mapping[str, str], *, seconds_max: float = RUN_SECONDS_MAX) -> None:
        if not TARGET.fullmatch(target):
            raise UserError(f"{target[:120]!r} is neither a file nor a function; name a function as module:function")
        self.target = target
        self.runs = 0
        self.environ = environ
        self._seconds_max = seconds_max
        self._home = Path.cwd()

    def run(self, perturbation: World) -> Answer:
        self.runs += 1
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            result_file = Path(folder, "answer")
            cwd = _mirror(self._home, Path(folder, "elsewhere")) if perturbation.elsewhere else self._home
            command = [sys.executable, "-P", str(_WORKER), str(result_file), str(self._home), self.target]
            failure = _run_to_end(
                [*command, *_worker_arguments(perturbation)], self._variables(perturbation), cwd, self._seconds_max
            )
            if failure:
                return Answer("raised", failure.encode())
            try:
                kind, variables, content = result_file.read_bytes().split(b"\n", 2)
            except (OSError, ValueError):
                return Answer("raised", b"it ended the process")
        return Answer(kind.decode(), content, tuple(name for name in variables.decode().split("\t") if name))

    def without_values(self, answer: Answer) -> bytes:
        """The output with the values of the variables that were read masked, because one may be a key."""
        output = answer.said
        for name in answer.read:
            value = self.environ.get(name, "").encode(errors="surrogateescape")
            if len(value) >= HIDDEN_BYTES_MIN and not _UNPERTURBED.fullmatch(name):
                output = output.replace(value, b"*" * len(value))
        return output

    def _variables(self, perturbation: World) -> dict[str, str]:
        return {
            **self.environ,
            "PYTHONHASHSEED": str(perturbation.hash_seed),
            "LANG": perturbation.locale,
            "LC_ALL": perturbation.locale,
            "TZ": perturbation.time_zone,
            **dict(perturbation.variables),
        }


def diagnose(prober: Prober, *, runs: int) -> Diagnosis:
    """Raises `UserError` if the function cannot be run at all."""
    notes: list[str] = []
    baseline = FIRST
    expected = prober.run(baseline)
    if expected.kind == "raised":
        # Some libraries fail under a changed clock. Without that perturbation the function can still be checked.
        baseline = msgspec.structs.replace(FIRST, clock=None, chance=None)
        retry = prober.run(baseline)
        if not retry.failed:
            notes.append("it fails under a changed clock, so the clock and random values were not changed")
            expected = retry
    if expected.failed:
        raise UserError(f"{prober.target}: {one_line(prober.without_values(expected).decode(errors='replace'))}")
    findings: dict[Cause, Finding] = {}
    noise_start = len(expected.said) + 1
    for perturbation in worlds(runs, baseline):
        finding = _run_perturbed(prober, expected, perturbation)
        if finding is None or finding.byte >= noise_start:
            continue
        if perturbation.changed == "nothing":
            # The output differs between identical runs from here on, so a later difference proves nothing.
            noise_start = start_of_word(expected.said, finding.byte)
            findings = {finding.cause: finding}
        findings.setdefault(finding.cause, finding)
    environment = _find_environment(prober, expected, baseline, noise_start)
    if environment is not None:
        findings["environment"] = environment
    ordered = tuple(sorted(findings.values(), key=lambda finding: finding.byte))
    return Diagnosis(prober.target, prober.runs, len(expected.said), ordered, tuple(notes))


def _run_perturbed(prober: Prober, expected: Answer, perturbation: World) -> Finding | None:
    cause: Cause = _CAUSES[perturbation.changed]
    result = prober.run(perturbation)
    masked, masked_expected = prober.without_values(result), prober.without_values(expected)
    if result.failed:
        error = one_line(masked.decode(errors="replace"))
        return Finding(cause, ADVICE[cause], 0, None, (), detail=f"it fails when this is changed: {error}")
    difference = first_difference(expected.kind, expected.said, result.said)
    if difference is None:
        return None
    excerpts = tuple(one_line(excerpt(output, difference.byte)) for output in (masked_expected, masked))
    if cause == "set order" and difference.only_order_of_members:
        cause = "unsorted JSON keys"
    if cause == "something else" and any(" 0x" in text for text in excerpts):
        cause = "object address"
    return Finding(cause, ADVICE[cause], difference.byte, difference.path, excerpts)


_CAUSES: dict[str, Cause] = {
    "nothing": "something else",
    "clock": "clock",
    "random": "random",
    "set order": "set order",
    "directory order": "directory order",
    "time zone": "time zone",
    "locale": "locale",
    "working folder": "working folder",
}


def _find_environment(prober: Prober, expected: Answer, baseline: World, noise_start: int) -> Finding | None:
    """Change all variables that were read at once; only if that made a difference, change them one by one."""
    names = [name for name in expected.read if not _UNPERTURBED.fullmatch(name) and "=" not in name][:VARIABLES_MAX]
    if not names:
        return None
    changed = {name: _changed_value(prober.environ.get(name, "")) for name in names}

    def finding_of(answer: Answer, detail: str) -> Finding | None:
        if answer.failed:
            return None
        difference = first_difference(expected.kind, expected.said, answer.said)
        if difference is None or difference.byte >= noise_start:
            return None
        # No excerpts: they would show the value of the variable.
        return Finding("environment", ADVICE["environment"], difference.byte, difference.path, (), detail)

    all_changed = prober.run(msgspec.structs.replace(baseline, variables=tuple(changed.items())))
    if not all_changed.failed and first_difference(expected.kind, expected.said, all_changed.said) is None:
        return None
    for name, value in changed.items():
        one_changed = prober.run(msgspec.structs.replace(baseline, variables=((name, value),)))
        if finding := finding_of(one_changed, name):
            return finding
    return finding_of(all_changed, "several variables together")


def _changed_value(value: str) -> str:
    return f"{value}1" if value.isdigit() else f"{value}changed"


def _worker_arguments(perturbation: World) -> Iterator[str]:
    yield f"bytes_max={ANSWER_BYTES_MAX}"
    yield "environment=watched"
    yield f"folders={perturbation.folders}"
    if perturbation.clock is not None:
        yield f"clock={perturbation.clock}"
    if perturbation.chance is not None:
        yield f"chance={perturbation.chance}"


def _mirror(folder: Path, mirror: Path) -> Path:
    """Create a folder with links to the same entries, so that relative paths still work in it."""
    mirror.mkdir()
    for count, entry in enumerate(sorted(folder.iterdir())):
        if count >= MIRRORED_ENTRIES_MAX:
            break
        with contextlib.suppress(OSError):
            (mirror / entry.name).symlink_to(entry)
    return mirror


def _run_to_end(command: list[str], environ: Mapping[str, str], cwd: Path, seconds_max: float) -> str:
    """Run the process and discard its output; return a description of its failure, empty on success."""
    process = subprocess.Popen(
        command,
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        status = process.wait(timeout=seconds_max)
    except subprocess.TimeoutExpired:
        return f"it took more than {seconds_max:g} seconds"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"the process ended with status {status}" if status else ""
