"""Sessions to harvest, and knowledge folders that fail at any write."""

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, Unpack

from tests.support.scripted_sessions import new_session, scripted_provider

from holdfast.clock import new_ulid
from holdfast.events.log import EventLog
from holdfast.knowledge.file_notes import NO_PROJECT_LOOKUP, ProjectLookup
from holdfast.knowledge.folder import NOTES_FOLDER, KnowledgeFiles, KnowledgeFolder, open_knowledge_folder
from holdfast.knowledge.harvest import EndedSession, HarvestResult, apply_harvest
from holdfast.knowledge.llm_extraction import SendPrompt
from holdfast.runtime.options import Options
from holdfast.types.blocks import Text, ToolResult, ToolUse
from holdfast.types.prompt import HistoryEntry

FACT = "In this project the orders service listens on port 5433 in config/ports.toml."
RULE = "Never push to the branch release/2.x."
DECISION = "We decided to use SQLite instead of Redis."
COMMIT_SUBJECT = "Mend the start"
QUESTION = "Should the cache live in src/cache.py?"


async def store_session(
    log: EventLog, folder: Path | None, /, *asks: str, end: bool = True, **options: Unpack[Options]
) -> str:
    """A stored session with these user messages, each answered with a decision and a question."""
    defaults: Options = {"store": log, "new_id": new_ulid}
    if folder is not None:
        defaults["workspace"] = folder
    async with new_session(
        scripted_provider(*([f"{DECISION} {QUESTION}"] * len(asks))), **(defaults | options)
    ) as session:
        for ask in asks:
            await session.send(ask)
        if end:
            await session.end()
        return session.id


def knowledge_folder(workspace: Path) -> KnowledgeFolder:
    return open_knowledge_folder(workspace, workspace / "unused-home")


def commit_step(subject: str) -> tuple[str, str, str]:
    """A tool call that commits what was written before it."""
    return "run", json.dumps({"command": f'git commit -am "{subject}"'}), "1 file changed"


def text_session(session: str, *texts: str, day: str = "2026-11-01", workspace: str | None = None) -> EndedSession:
    """An ended session of text only: user messages and replies in turn."""
    entries = [
        HistoryEntry("user" if number % 2 == 0 else "assistant", (Text(text),), number=number + 1)
        for number, text in enumerate(texts)
    ]
    return EndedSession(session, len(entries), day, lambda: entries, workspace)


def tool_session(session: str, ask: str, *steps: tuple[str, str, str], day: str = "2026-11-01") -> EndedSession:
    """An ended session with tool calls: tool, arguments as JSON, and output."""
    entries = [HistoryEntry("user", (Text(ask),), number=1)]
    for at, (tool, arguments, output) in enumerate(steps):
        use = ToolUse(f"t{at}", tool, arguments)
        entries.append(HistoryEntry("assistant", (use,), number=len(entries) + 1))
        result = ToolResult(use.id, (Text(output),), name=tool)
        entries.append(HistoryEntry("user", (result,), number=len(entries) + 1))
    entries.append(HistoryEntry("assistant", (Text("Done."),), number=len(entries) + 1))
    return EndedSession(session, len(entries), day, lambda: entries, "/project")


def harvest_all(
    disk: KnowledgeFiles,
    sessions: Iterable[EndedSession],
    *,
    project: ProjectLookup = NO_PROJECT_LOOKUP,
    ask: SendPrompt | None = None,
) -> HarvestResult:
    """A harvest whose items all go to the pages at once, as after a review that accepted them."""
    return apply_harvest(disk, sessions, accept="all", project=project, ask=ask)


class Crash(BaseException):
    """The process died."""


Mode = Literal["before", "cut short", "after"]


class CrashingDisk:
    """Files on which the process dies at one write: before it, after it, or in the middle of an append."""

    def __init__(self, disk: KnowledgeFiles, *, at: int, mode: Mode = "before") -> None:
        self._disk = disk
        self._at = at
        self._mode = mode
        self.writes = 0

    def read(self, name: str) -> bytes | None:
        return self._disk.read(name)

    def list_names(self, folder: str) -> tuple[str, ...]:
        return self._disk.list_names(folder)

    def lock(self) -> contextlib.AbstractContextManager[None]:
        return self._disk.lock()

    def replace(self, name: str, content: bytes) -> None:
        if self._dies_before():
            raise Crash
        self._disk.replace(name, content)
        self._die_after()

    def replace_unless_changed(self, name: str, content: bytes, before: bytes | None) -> bool:
        if self._dies_before():
            raise Crash
        done = self._disk.replace_unless_changed(name, content, before)
        self._die_after()
        return done

    def append(self, name: str, content: bytes) -> None:
        if self._dies_before():
            if self._mode == "cut short":
                self._disk.append(name, content[: len(content) * 2 // 3])
            raise Crash
        self._disk.append(name, content)
        self._die_after()

    def remove(self, name: str) -> None:
        if self._dies_before():
            raise Crash
        self._disk.remove(name)
        self._die_after()

    def _dies_before(self) -> bool:
        self.writes += 1
        return self.writes == self._at and self._mode != "after"

    def _die_after(self) -> None:
        if self.writes == self._at:
            raise Crash


class EditedDisk:
    """Files to which a user adds a line between read and write, a given number of times each."""

    def __init__(self, disk: KnowledgeFolder, *, times: int = 1) -> None:
        self._disk = disk
        self._times = times
        self.edits: dict[str, list[bytes]] = {}
        self.read = disk.read
        self.list_names = disk.list_names
        self.lock = disk.lock
        self.replace = disk.replace
        self.append = disk.append
        self.remove = disk.remove

    def replace_unless_changed(self, name: str, content: bytes, before: bytes | None) -> bool:
        edits, now = self.edits.setdefault(name, []), self._disk.read(name)
        # A user would not guess the name of a notes file that does not exist yet.
        if len(edits) < self._times and not (now is None and name.startswith(NOTES_FOLDER)):
            edits.append(f"- Mine is line {len(edits)} of {name}.\n".encode())
            self._disk.replace(name, (now or b"") + edits[-1])
        return self._disk.replace_unless_changed(name, content, before)


def contents(folder: KnowledgeFolder, leave_out: Sequence[str] = ()) -> dict[str, bytes]:
    """Every file of a knowledge folder, by name."""
    return {
        str(path.relative_to(folder.path)): path.read_bytes()
        for path in sorted(folder.path.rglob("*"))
        if path.is_file() and path.name not in (".lock", *leave_out)
    }
