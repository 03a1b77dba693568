"""The files to audit, what is kept of each, and the cache from which an unchanged file is not read again.

A result is taken from the cache only if nothing that it depends on has changed: the file by its size, times and inode,
the program by its modules, the prices by their values. What cannot be shown to be unchanged is computed again, so that
figures are the same with and without the cache. Loading this module does not load the readers and the planner.
"""

import os
import stat
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from holdfast.errors import UserError
from holdfast.ledger.spending import AuditScope, ContextPoint, ConversationSpending, SessionSums

SETTLED_SECONDS = 2.0
"""A file that changed less than this before is not cached: another change might leave size and time as they are."""

BROKEN_LINES_REPORTED_MAX = 100  # The report counts all broken lines and lists this many.
_Result = TypeVar("_Result")


class BrokenLine(msgspec.Struct, frozen=True):
    """A line that could not be read; `reason` never quotes its content."""

    file: str
    line: int
    reason: str


class FileAudit(msgspec.Struct, array_like=True):
    """What one file holds. `call_ids` has eight bytes per call, to find the calls that other files repeat."""

    conversations: list[ConversationSpending] = []
    call_ids: bytes = b""
    broken: list[BrokenLine] = []
    broken_count: int = 0
    unknown: dict[str, int] = {}


class SharedConversation(msgspec.Struct, array_like=True):
    """A conversation of files that were audited together, with what such conversations are ordered by."""

    started_at: float
    id: str
    spending: ConversationSpending


def find_client_files(path: Path) -> tuple[Path, ...]:
    """The file itself, or the transcripts in a folder and its subfolders, sorted by name."""
    try:
        if path.is_dir():
            # A search below a folder leaves out what it may not read; of this folder that is everything.
            next(path.iterdir(), None)
            files = sorted(file for file in path.rglob("*") if _is_client_file(file) and file.is_file())
            # Of an opencode session with one file per message, the first one stands for all.
            return tuple(
                {file.parent if file.name.startswith("msg_") else file: file for file in reversed(files)}.values()
            )[::-1]
        if path.is_file():
            path.open("rb").close()
            return (path,)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}; choose another folder or file") from error
    raise UserError(f"there is nothing at {str(path)!r}; pass a folder of transcripts, a single one, or a store")


def _is_client_file(file: Path) -> bool:
    if file.suffix == ".json":
        # Gemini CLI before 0.40, and opencode before 1.2: one file per session, or per message.
        is_gemini = file.parent.name == "chats" and file.name.startswith("session-")
        return is_gemini or (file.parent.parent.name == "message" and file.name.startswith("msg_"))
    return file.suffix == ".jsonl" or is_opencode_database(file)


def is_opencode_database(file: Path) -> bool:
    return file.suffix == ".db" and file.name.startswith("opencode")


def group_repeated_files(audits: Sequence[FileAudit]) -> list[list[int]]:
    """The files that share calls with others, by index: resumed and forked sessions. Groups share nothing."""
    owners: dict[int, int] = {}
    leaders = list(range(len(audits)))

    def find_leader(index: int) -> int:
        while leaders[index] != index:
            leaders[index] = index = leaders[leaders[index]]
        return index

    for index, audit in enumerate(audits):
        for digest in array("Q", audit.call_ids):
            owner = owners.setdefault(digest, index)
            if owner != index:
                first, second = sorted((find_leader(owner), find_leader(index)))
                leaders[second] = first
    groups: dict[int, list[int]] = {}
    for index in range(len(audits)):
        groups.setdefault(find_leader(index), []).append(index)
    return [group for group in groups.values() if len(group) > 1]


class FileState(msgspec.Struct, frozen=True):
    """A file as it was found: `stamp` changes with its content. Without a stamp, it must be read again every time."""

    path: Path
    modified_at: float
    stamp: str = ""


def read_state(file: Path, now: float) -> FileState:
    status = file.stat()
    changed_at = max(status.st_mtime, status.st_ctime)
    # A database of opencode has a log beside it, and a folder of messages changes without a trace.
    can_be_cached = stat.S_ISREG(status.st_mode) and file.suffix != ".db" and not file.name.startswith("msg_")
    if not can_be_cached or changed_at > now - SETTLED_SECONDS:
        return FileState(file, status.st_mtime)
    values = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev)
    return FileState(file, status.st_mtime, "-".join(map(str, values)))


def restrict_conversations(
    conversations: Iterable[ConversationSpending], scope: AuditScope
) -> list[ConversationSpending] | None:
    """The conversations, of which all calls were counted, as far as they are in scope; None if one is in part."""
    sums = [SessionSums(each, each.started_at, each.ended_at) for each in conversations]
    if not all(each.covers(scope) for each in sums):
        return None
    return [kept for each in sums if (kept := each.select(scope)) is not None]


class Results(Protocol):
    """Where results are kept between two audits, by name; each is valid for one origin."""

    def find_results(self, origins: Mapping[bytes, bytes]) -> dict[bytes, bytes]: ...

    def keep_results(self, results: Mapping[bytes, tuple[bytes, object]]) -> None: ...


class AuditCache:
    """What was computed from files, as long as these are what they were; what is kept is written by `write`."""

    def __init__(self, results: Results, *, ranges: bool) -> None:
        self._results = results
        self._ranges = ranges
        self._kept: dict[bytes, tuple[bytes, object]] = {}
        self.found = 0
        """How many results were taken from the cache."""

    def find_files(self, states: Sequence[FileState]) -> dict[Path, FileAudit]:
        names = {_name_result("file", [state]): state for state in states if state.stamp}
        found = self._results.find_results({name: self._describe([state]) for name, state in names.items()})
        self.found += len(found)
        return {names[name].path: _decode_file(value) for name, value in found.items()}

    def keep_file(self, state: FileState, audit: FileAudit) -> None:
        self._keep("file", [state], audit)

    def find_shared(self, states: Sequence[FileState]) -> list[SharedConversation] | None:
        return self._find("shared", states, _decode_shared)

    def keep_shared(self, states: Sequence[FileState], shared: list[SharedConversation]) -> None:
        self._keep("shared", states, shared)

    def find_context(self, session: str, states: Sequence[FileState]) -> tuple[ContextPoint, ...] | None:
        return self._find(f"context {session}", states, _decode_context)

    def keep_context(self, session: str, states: Sequence[FileState], points: tuple[ContextPoint, ...]) -> None:
        self._keep(f"context {session}", states, points)

    def write(self) -> None:
        self._results.keep_results(self._kept)
        self._kept = {}

    def _find(self, kind: str, states: Sequence[FileState], decode: Callable[[bytes], _Result]) -> _Result | None:
        if not all(state.stamp for state in states):
            return None
        name = _name_result(kind, states)
        value = self._results.find_results({name: self._describe(states)}).get(name)
        if value is None:
            return None
        self.found += 1
        return decode(value)

    def _keep(self, kind: str, states: Sequence[FileState], result: object) -> None:
        if not all(state.stamp for state in states):
            return
        try:
            now = [read_state(state.path, float("inf")).stamp for state in states]
        except OSError:
            return
        # What was written to while it was read may be counted in part.
        if now == [state.stamp for state in states]:
            self._kept[_name_result(kind, states)] = self._describe(states), result

    def _describe(self, states: Sequence[FileState]) -> bytes:
        return msgspec.msgpack.encode((self._ranges, [state.stamp for state in states]))


_decode_file = msgspec.msgpack.Decoder(FileAudit).decode
_decode_shared = msgspec.msgpack.Decoder(list[SharedConversation]).decode
_decode_context = msgspec.msgpack.Decoder(tuple[ContextPoint, ...]).decode


def _name_result(kind: str, states: Sequence[FileState]) -> bytes:
    paths = [os.fsencode(state.path.absolute()) for state in states]
    return msgspec.msgpack.encode((kind.encode(errors="surrogatepass"), paths))
