"""`holdfast doctor`: runs a prompt-building function in perturbed environments to find what its output depends on."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.providers.errors import sanitize_message
from holdfast.runtime.doctor.perturbations import ADVICE, UNPERTURBED, Cause, Perturbation, list_perturbations
from holdfast.types.json_encoding import canonical_json
from holdfast.types.request_buffer import common_prefix_length

# Bounds for a function that never ends or never stops writing; a prompt is far below both.
OUTPUT_BYTES_MAX = 32 * 1024 * 1024
RUN_SECONDS_MAX = 60.0
# Each variable that was read costs one more run of the function.
VARIABLES_MAX = 40

# Shorter values, such as "1" or "true", are no secrets, and masking them would garble the excerpts.
HIDDEN_BYTES_MIN = 6
MIRRORED_ENTRIES_MAX = 5_000
EXCERPT_BYTES_BEFORE = 30
EXCERPT_BYTES_AFTER = 60
WORD_BYTES_MAX = 200
_WORD_BEFORE = re.compile(rb"[\w.:+-]+\Z")
TARGET_PATTERN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_WORKER = Path(__file__).with_name("worker.py")

# Variables that have perturbations of their own, or without which no program would start.
_UNPERTURBED = re.compile(r"(?i)PATH|LD_.*|DYLD_.*|PYTHON.*|VIRTUAL_ENV|SYSTEMROOT|LANG|LANGUAGE|LC_.*|TZ|PWD")


class TargetResult(msgspec.Struct, frozen=True):
    """One run's result: a value of some kind as bytes, or why it failed."""

    kind: str
    output: bytes
    variables_read: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        return self.kind not in ("bytes", "text", "json")


class Instability(msgspec.Struct, frozen=True):
    """The first difference in the result when one thing is changed; `detail` names the variable or the error."""

    cause: Cause
    advice: str
    byte: int
    path: str | None
    excerpts: tuple[str, ...]
    detail: str = ""


class StabilityReport(msgspec.Struct, frozen=True):
    """`findings` are ordered by byte offset."""

    target: str
    runs: int
    size_bytes: int
    findings: tuple[Instability, ...]
    notes: tuple[str, ...]


class TargetRunner:
    """Runs one target, each time in a new process."""

    def __init__(self, target: str, environ: Mapping[str, str], *, seconds_max: float = RUN_SECONDS_MAX) -> None:
        if not TARGET_PATTERN.fullmatch(target):
            raise UserError(f"{target[:120]!r} is neither a file nor a function; name a function as module:function")
        self.target = target
        self.runs = 0
        self.environ = environ
        self._seconds_max = seconds_max
        self._home = Path.cwd()

    def run(self, perturbation: Perturbation) -> TargetResult:
        self.runs += 1
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            result_file = Path(folder, "answer")
            cwd = _mirror(self._home, Path(folder, "elsewhere")) if perturbation.other_folder else self._home
            command = [sys.executable, "-P", str(_WORKER), str(result_file), str(self._home), self.target]
            command += _worker_arguments(perturbation)
            failure = _run_to_end(command, self._variables(perturbation), cwd, self._seconds_max)
            if failure:
                return TargetResult("raised", failure.encode())
            try:
                kind, variables, content = result_file.read_bytes().split(b"\n", 2)
            except (OSError, ValueError):
                return TargetResult("raised", b"it ended the process")
        return TargetResult(kind.decode(), content, tuple(name for name in variables.decode().split("\t") if name))

    def masked_output(self, result: TargetResult) -> bytes:
        """The output with the values of the variables that were read masked, because one may be a key."""
        output = result.output
        for name in result.variables_read:
            value = self.environ.get(name, "").encode(errors="surrogateescape")
            if len(value) >= HIDDEN_BYTES_MIN and not _UNPERTURBED.fullmatch(name):
                output = output.replace(value, b"*" * len(value))
        return output

    def _variables(self, perturbation: Perturbation) -> dict[str, str]:
        return {
            **self.environ,
            "PYTHONHASHSEED": str(perturbation.hash_seed),
            "LANG": perturbation.locale,
            "LC_ALL": perturbation.locale,
            "TZ": perturbation.time_zone,
            **dict(perturbation.variables),
        }


def diagnose_target(runner: TargetRunner, *, runs: int) -> StabilityReport:
    """Raises `UserError` if the function cannot be run at all."""
    notes: list[str] = []
    baseline = UNPERTURBED
    expected = runner.run(baseline)
    if expected.kind == "raised":
        # Some libraries fail under a changed clock. Without that perturbation the function can still be checked.
        baseline = msgspec.structs.replace(UNPERTURBED, clock=None, random_seed=None)
        retry = runner.run(baseline)
        if not retry.has_failed:
            notes.append("it fails under a changed clock, so the clock and random values were not changed")
            expected = retry
    if expected.has_failed:
        raise UserError(f"{runner.target}: {sanitize_message(runner.masked_output(expected).decode(errors='replace'))}")
    findings: dict[Cause, Instability] = {}
    noise_start = len(expected.output) + 1
    for perturbation in list_perturbations(runs, baseline):
        finding = _run_perturbed(runner, expected, perturbation)
        if finding is None or finding.byte >= noise_start:
            continue
        if perturbation.changed is None:
            # The output differs between identical runs from here on, so a later difference proves nothing.
            noise_start = word_start(expected.output, finding.byte)
            findings = {finding.cause: finding}
        findings.setdefault(finding.cause, finding)
    environment = _find_environment(runner, expected, baseline, noise_start)
    if environment is not None:
        findings["environment"] = environment
    ordered = tuple(sorted(findings.values(), key=lambda finding: finding.byte))
    return StabilityReport(runner.target, runner.runs, len(expected.output), ordered, tuple(notes))


def _run_perturbed(runner: TargetRunner, expected: TargetResult, perturbation: Perturbation) -> Instability | None:
    cause: Cause = perturbation.changed or "something else"
    result = runner.run(perturbation)
    masked, masked_expected = runner.masked_output(result), runner.masked_output(expected)
    if result.has_failed:
        error = sanitize_message(masked.decode(errors="replace"))
        return Instability(cause, ADVICE[cause], 0, None, (), detail=f"it fails when this is changed: {error}")
    difference = first_difference(expected.kind, expected.output, result.output)
    if difference is None:
        return None
    excerpts = tuple(sanitize_message(excerpt_around(output, difference.byte)) for output in (masked_expected, masked))
    if cause == "set order" and difference.only_order_of_members:
        cause = "unsorted JSON keys"
    if cause == "something else" and any(" 0x" in text for text in excerpts):
        cause = "object address"
    return Instability(cause, ADVICE[cause], difference.byte, difference.path, excerpts)


def _find_environment(
    runner: TargetRunner, expected: TargetResult, baseline: Perturbation, noise_start: int
) -> Instability | None:
    """Change all variables that were read at once; only if that made a difference, change them one by one."""
    names = [name for name in expected.variables_read if not _UNPERTURBED.fullmatch(name) and "=" not in name]
    if not names:
        return None
    values = {name: runner.environ.get(name, "") for name in names[:VARIABLES_MAX]}
    changed = {name: f"{value}1" if value.isdigit() else f"{value}changed" for name, value in values.items()}

    def finding_of(result: TargetResult, detail: str) -> Instability | None:
        if result.has_failed:
            return None
        difference = first_difference(expected.kind, expected.output, result.output)
        if difference is None or difference.byte >= noise_start:
            return None
        # No excerpts: they would show the value of the variable.
        return Instability("environment", ADVICE["environment"], difference.byte, difference.path, (), detail)

    all_changed = runner.run(msgspec.structs.replace(baseline, variables=tuple(changed.items())))
    if not all_changed.has_failed and first_difference(expected.kind, expected.output, all_changed.output) is None:
        return None
    for name, value in changed.items():
        one_changed = runner.run(msgspec.structs.replace(baseline, variables=((name, value),)))
        if finding := finding_of(one_changed, name):
            return finding
    return finding_of(all_changed, "several variables together")


def _worker_arguments(perturbation: Perturbation) -> list[str]:
    arguments = {"bytes_max": OUTPUT_BYTES_MAX, "environment": "watched", "folder_order": perturbation.folder_order}
    optional = {"clock": perturbation.clock, "random_seed": perturbation.random_seed}
    return [f"{name}={value}" for name, value in (arguments | optional).items() if value is not None]


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


class ResultDifference(msgspec.Struct, frozen=True):
    """`path` is the JSON path of the difference; None if the results are not JSON."""

    byte: int
    path: str | None
    only_order_of_members: bool


def first_difference(kind: str, before: bytes, after: bytes) -> ResultDifference | None:
    """The first difference of two results of this kind ("text", "json" or "bytes"); None if they are equal."""
    if before == after:
        return None
    byte = common_prefix_length(before, after)
    old, new = _decode(kind, before), _decode(kind, after)
    return ResultDifference(
        byte=byte,
        path=None if old is None or new is None else difference_path(old, new),
        only_order_of_members=old is not None and canonical_json(old) == canonical_json(new),
    )


def word_start(content: bytes, byte: int) -> int:
    """The offset at which the number, address or word around this byte begins."""
    match = _WORD_BEFORE.search(content, max(0, byte - WORD_BYTES_MAX), byte)
    return match.start() if match else byte


def difference_path(old: object, new: object) -> str:
    """The innermost path at which the two values differ, such as `messages.0.content`; empty for the root."""
    path: list[str] = []
    while True:
        step = _step(old, new)
        if step is None:
            return ".".join(path)
        name, old, new = step
        path.append(name)


def _step(old: object, new: object) -> tuple[str, object, object] | None:
    if isinstance(old, list) and isinstance(new, list):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        for (name, value), (other_name, other) in zip(old.items(), new.items(), strict=False):
            if name != other_name:
                return None
            if _encode(value) != _encode(other):
                return str(name), value, other
    return None


def _encode(value: object) -> bytes:
    # Comparing bytes, not values: two dicts that differ only in member order are equal, but miss the cache.
    return msgspec.json.encode(value)


def _decode(kind: str, content: bytes) -> object:
    """Decode JSON results, and text results that are a JSON object or list; None for all others."""
    if kind != "json" and content[:1] not in (b"{", b"["):
        return None
    try:
        return msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def excerpt_around(content: bytes, byte: int) -> str:
    return content[max(0, byte - EXCERPT_BYTES_BEFORE) : byte + EXCERPT_BYTES_AFTER].decode(errors="replace")
