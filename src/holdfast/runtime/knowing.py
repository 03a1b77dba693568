"""Project knowledge at run time: the sessions to harvest, the files that notes refer to, and the knowledge layer."""

import datetime
import logging
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from holdfast.canonical.prompt import Passage
from holdfast.canonical.view import LayerText
from holdfast.engine.conversation import Adopting
from holdfast.engine.history import logged
from holdfast.engine.state import State
from holdfast.errors import UserError
from holdfast.events.log import Log, SessionRow
from holdfast.events.payloads import SessionEnded, SessionStarted, TurnStarted
from holdfast.knowledge.digest import DIGEST_BYTES_MAX
from holdfast.knowledge.folder import DIGEST, DISABLED, Disk, knowledge_folder
from holdfast.knowledge.harvest import Spoken
from holdfast.knowledge.notes import HASH_CHARACTERS, Project
from holdfast.knowledge.switches import switched
from holdfast.layers.builder import sendable
from holdfast.runtime.config import Config
from holdfast.runtime.options import Options
from holdfast.sources.project import read_project_file, walk_project
from holdfast.sources.text import cut_utf8, read_text

logger = logging.getLogger(__name__)

LAYER = "knowledge"
# A session without events for a day is assumed to be over, since many clients never record an end.
QUIET_SECONDS = 86_400.0

FILE_BYTES_MAX = 4_000_000


def spoken_in(
    log: Log,
    *,
    at: float,
    workspace: Path | None,
    quiet_seconds: float = QUIET_SECONDS,
    known: Container[tuple[str, int]] = (),
    simulated: bool = False,
) -> Iterator[Spoken]:
    """The finished sessions of this workspace, oldest first; a delegated session is part of its parent.

    Sessions in `known`, pairs of session id and event count, are not read again to find out whether they belong here.
    Sessions with a simulated model are left out unless `simulated`.
    """
    folder = str(workspace.resolve()) if workspace else None
    for row in sorted(log.sessions(), key=lambda session: (session.started_at, session.id)):
        if row.parent_session_id is not None:
            continue
        # Harvested before and unchanged since: yielded without reading its events.
        if (row.id, row.event_count) in known:
            yield _harvestable(log, row, folder)
            continue
        started = _session_started(log, row.id)
        if started is None or started.workspace_path != folder or (started.simulated and not simulated):
            continue
        if at - row.last_event_at >= quiet_seconds or _has_ended(log, row.id):
            yield _harvestable(log, row, folder)


def _harvestable(log: Log, row: SessionRow, workspace: str | None) -> Spoken:
    def passages() -> tuple[Passage, ...]:
        return logged(log.read(row.id))

    day = datetime.datetime.fromtimestamp(row.last_event_at, datetime.UTC).date().isoformat()
    return Spoken(row.id, row.event_count, day, passages, workspace)


def _session_started(log: Log, session_id: str) -> SessionStarted | None:
    first = next(iter(log.read(session_id)), None)
    return first.payload if first is not None and isinstance(first.payload, SessionStarted) else None


def _has_ended(log: Log, session_id: str) -> bool:
    """Whether the session was ended and no turn was started since."""
    # A session can be resumed after its end, so the last of these events counts.
    ended = False
    for event in log.read(session_id):
        if isinstance(event.payload, SessionEnded | TurnStarted):
            ended = isinstance(event.payload, SessionEnded)
    return ended


def project_files(workspace: Path | None) -> Project:
    """Look up workspace files by path and by content hash, so that notes can follow a renamed file."""
    if workspace is None:
        return Project()

    def content_of(path: str) -> str:
        file = read_project_file(workspace, path, FILE_BYTES_MAX)
        return file.sha256[:HASH_CHARACTERS] if file is not None else ""

    def paths_with(hashes: frozenset[str]) -> Mapping[str, str]:
        paths: dict[str, str] = {}
        for file in walk_project(workspace):
            content = content_of(file.path)
            if content in hashes:
                paths.setdefault(content, file.path)
        return paths

    return Project(content_of, paths_with)


def knowledge_text(disk: Disk) -> str:
    """The digest as it is put into a prompt; empty if there is none or knowledge is turned off."""
    if disk.read(DISABLED) is not None:
        return ""
    text, _ = cut_utf8(read_text(disk.read(DIGEST) or b""), DIGEST_BYTES_MAX)
    return sendable(text).strip()


def knowledge_layer(options: Options, config: Config, *, workspace: Path | None) -> tuple[LayerText, ...]:
    """The digest layer that an epoch pins; none without a digest or with knowledge turned off."""
    try:
        text = knowledge_text(knowledge_folder(workspace, Path(config.home)))
    except UserError as error:
        logger.warning("%s", error)
        text = ""
    switch = switched(options.get("knowledge"), config.knowledge, present=bool(text))
    return (LayerText(LAYER, text),) if switch.on and text else ()


def adopting_of(options: Options, config: Config, state: State, *, workspace: Path | None) -> Adopting:
    """How a session refreshes its pinned layers: of those, only the knowledge digest can change within a session."""

    def newer(pinned: tuple[LayerText, ...]) -> tuple[LayerText, ...] | None:
        current = knowledge_layer(options, config, workspace=workspace)
        if current == tuple(text for text in pinned if text.layer == LAYER):
            return None
        return (*(text for text in pinned if text.layer != LAYER), *current)

    profile = state.profile if state.model else config.profile
    refresh = config.digest_refresh if config.digest_refresh != "auto" else _REFRESH_BY_PROFILE[profile]
    return Adopting(newer, each_turn=refresh == "next_turn")


# Seed 004 refreshes the digest on the next turn; by default it waits for an epoch, which rewrites the cache anyway.
_REFRESH_BY_PROFILE = {"default": "epoch", "seed": "next_turn"}
