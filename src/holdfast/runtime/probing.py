"""What somebody's prompt-building function returns in a changed world, and what it therefore depends on."""

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
HIDDEN_BYTES_MIN = 6
MIRRORED_ENTRIES_MAX = 5_000

TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")

_CHILD = Path(__file__).with_name("probe_child.py")
# These have worlds of their own, or nothing would run without them.
_KEPT = re.compile(r"PATH|LD_.*|DYLD_.*|PYTHON.*|VIRTUAL_ENV|SYSTEMROOT|LANG|LANGUAGE|LC_.*|TZ|PWD", re.IGNORECASE)


class Answer(msgspec.Struct, frozen=True):
    """What came back: a value of some kind as bytes, or the reason why there is none. `read` names variables."""

    kind: str
    said: bytes
    read: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.kind not in ("bytes", "text", "json")


class Finding(msgspec.Struct, frozen=True):
    """Where the result first differs when one thing is changed; `detail` names the variable or the error."""

    cause: Cause
    advice: str
    byte: int
    path: str | None
    excerpts: tuple[str, ...]
    detail: str = ""


class Diagnosis(msgspec.Struct, frozen=True):
    """`findings` stand in the order of the bytes that they are about."""

    target: str
    runs: int
    size_bytes: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


class Prober:
    """Runs one target, each time in a process of its own."""

    def __init__(self, target: str, environ: Mapping[str, str], *, seconds_max: float = RUN_SECONDS_MAX) -> None:
        if not TARGET.fullmatch(target):
            raise UserError(f"{target[:120]!r} is neither a file nor a function; write module:function")
        self.target = target
        self.runs = 0
        self.environ = environ
        self._seconds_max = seconds_max
        self._home = Path.cwd()

    def run(self, world: World) -> Answer:
        self.runs += 1
        with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
            written = Path(folder, "answer")
            cwd = _mirror(self._home, Path(folder, "elsewhere")) if world.elsewhere else self._home
            command = [sys.executable, "-P", str(_CHILD), str(written), str(self._home), self.target]
            trouble = _finish([*command, *_changes(world)], self._variables(world), cwd, self._seconds_max)
            if trouble:
                return Answer("raised", trouble.encode())
            try:
                kind, read, said = written.read_bytes().split(b"\n", 2)
            except (OSError, ValueError):
                return Answer("raised", b"it ended the process")
        return Answer(kind.decode(), said, tuple(name for name in read.decode().split("\t") if name))

    def without_values(self, answer: Answer) -> bytes:
        """What came back, with the values of the variables that were read made unreadable: one may be a key."""
        said = answer.said
        for name in answer.read:
            value = self.environ.get(name, "").encode(errors="surrogateescape")
            if len(value) >= HIDDEN_BYTES_MIN and not _KEPT.fullmatch(name):
                said = said.replace(value, b"*" * len(value))
        return said

    def _variables(self, world: World) -> dict[str, str]:
        return {
            **self.environ,
            "PYTHONHASHSEED": str(world.hash_seed),
            "LANG": world.locale,
            "LC_ALL": world.locale,
            "TZ": world.time_zone,
            **dict(world.variables),
        }


def diagnose(prober: Prober, *, runs: int) -> Diagnosis:
    """Raises `UserError` where the function cannot be run at all."""
    notes: list[str] = []
    first_world = FIRST
    first = prober.run(first_world)
    if first.kind == "raised":
        # Some libraries do not bear a changed clock; without one the function may still be looked at.
        first_world = msgspec.structs.replace(FIRST, clock=None, chance=None)
        again = prober.run(first_world)
        if not again.failed:
            notes.append("it fails under a changed clock, so that the clock and chance were left alone")
            first = again
    if first.failed:
        raise UserError(f"{prober.target}: {one_line(prober.without_values(first).decode(errors='replace'))}")
    found: dict[Cause, Finding] = {}
    noise = len(first.said) + 1
    for world in worlds(runs, first_world):
        finding = _finding(prober, first, world)
        if finding is None or finding.byte >= noise:
            continue
        if world.changed == "nothing":
            # What differs without a change says nothing about a change: only what stands before it does.
            noise = start_of_word(first.said, finding.byte)
            found = {finding.cause: finding}
        found.setdefault(finding.cause, finding)
    environment = _environment(prober, first, first_world, noise)
    if environment is not None:
        found["environment"] = environment
    ordered = tuple(sorted(found.values(), key=lambda finding: finding.byte))
    return Diagnosis(prober.target, prober.runs, len(first.said), ordered, tuple(notes))


def _finding(prober: Prober, first: Answer, world: World) -> Finding | None:
    cause: Cause = _CAUSES[world.changed]
    answer = prober.run(world)
    shown, shown_first = prober.without_values(answer), prober.without_values(first)
    if answer.failed:
        said = one_line(shown.decode(errors="replace"))
        return Finding(cause, ADVICE[cause], 0, None, (), detail=f"it fails when this is changed: {said}")
    difference = first_difference(first.kind, first.said, answer.said)
    if difference is None:
        return None
    excerpts = tuple(one_line(excerpt(said, difference.byte)) for said in (shown_first, shown))
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


def _environment(prober: Prober, first: Answer, world: World, noise: int) -> Finding | None:
    """The variables that were looked at, changed all at once, and one by one only where that made a difference."""
    names = [name for name in first.read if not _KEPT.fullmatch(name) and "=" not in name][:VARIABLES_MAX]
    if not names:
        return None
    changed = {name: _another(prober.environ.get(name, "")) for name in names}

    def found_at(answer: Answer, detail: str) -> Finding | None:
        if answer.failed:
            return None
        difference = first_difference(first.kind, first.said, answer.said)
        if difference is None or difference.byte >= noise:
            return None
        # No excerpts: what stands there is the value of a variable.
        return Finding("environment", ADVICE["environment"], difference.byte, difference.path, (), detail)

    together = prober.run(msgspec.structs.replace(world, variables=tuple(changed.items())))
    if not together.failed and first_difference(first.kind, first.said, together.said) is None:
        return None
    for name, value in changed.items():
        alone = prober.run(msgspec.structs.replace(world, variables=((name, value),)))
        if finding := found_at(alone, name):
            return finding
    return found_at(together, "several variables together")


def _another(value: str) -> str:
    return f"{value}1" if value.isdigit() else f"{value}changed"


def _changes(world: World) -> Iterator[str]:
    yield f"bytes_max={ANSWER_BYTES_MAX}"
    yield "environment=watched"
    yield f"folders={world.folders}"
    if world.clock is not None:
        yield f"clock={world.clock}"
    if world.chance is not None:
        yield f"chance={world.chance}"


def _mirror(folder: Path, mirror: Path) -> Path:
    """Another folder with the same things in it, so that relative paths still lead somewhere."""
    mirror.mkdir()
    for count, entry in enumerate(sorted(folder.iterdir())):
        if count >= MIRRORED_ENTRIES_MAX:
            break
        with contextlib.suppress(OSError):
            (mirror / entry.name).symlink_to(entry)
    return mirror


def _finish(command: list[str], environ: Mapping[str, str], cwd: Path, seconds_max: float) -> str:
    """Nothing, once the process has ended well; else what became of it. What it prints is thrown away."""
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
        return f"it takes more than {seconds_max:g} seconds"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return f"the process ended with status {status}" if status else ""
