"""Which sessions can be harvested, which files the notes are on, and what a session is told of what is known."""

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
QUIET_SECONDS = 86_400.0
"""A session that has said nothing for so long is taken to be over."""

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
    """Sessions that are over, of this workspace, oldest first; those that work for another are part of it.

    Those that are `known` with so many events are not read again. What was said to a simulated model is left out
    unless `simulated`.
    """
    folder = str(workspace.resolve()) if workspace else None
    for row in sorted(log.sessions(), key=lambda one: (one.started_at, one.id)):
        if row.parent_session_id is not None:
            continue
        if (row.id, row.event_count) in known:
            yield _spoken(log, row, folder)
            continue
        began = _began(log, row.id)
        if began is None or began.workspace_path != folder or (began.simulated and not simulated):
            continue
        if at - row.last_event_at >= quiet_seconds or _ended(log, row.id):
            yield _spoken(log, row, folder)


def _spoken(log: Log, row: SessionRow, workspace: str | None) -> Spoken:
    def passages() -> tuple[Passage, ...]:
        return logged(log.read(row.id))

    day = datetime.datetime.fromtimestamp(row.last_event_at, datetime.UTC).date().isoformat()
    return Spoken(row.id, row.event_count, day, passages, workspace)


def _began(log: Log, session_id: str) -> SessionStarted | None:
    first = next(iter(log.read(session_id)), None)
    return first.payload if first is not None and isinstance(first.payload, SessionStarted) else None


def _ended(log: Log, session_id: str) -> bool:
    """Whether it was said to be over, and nobody has spoken since."""
    ended = False
    for event in log.read(session_id):
        if isinstance(event.payload, SessionEnded | TurnStarted):
            ended = isinstance(event.payload, SessionEnded)
    return ended


def project_files(workspace: Path | None) -> Project:
    """The contents of the workspace's files, for the notes on them."""
    if workspace is None:
        return Project()

    def content_of(path: str) -> str:
        file = read_project_file(workspace, path, FILE_BYTES_MAX)
        return file.sha256[:HASH_CHARACTERS] if file is not None else ""

    def paths_with(hashes: frozenset[str]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for file in walk_project(workspace):
            content = content_of(file.path)
            if content in hashes:
                found.setdefault(content, file.path)
        return found

    return Project(content_of, paths_with)


def knowledge_text(disk: Disk) -> str:
    """The digest as a prompt is told it; nothing where there is none or knowledge is turned off."""
    if disk.read(DISABLED) is not None:
        return ""
    text, _ = cut_utf8(read_text(disk.read(DIGEST) or b""), DIGEST_BYTES_MAX)
    return sendable(text).strip()


def knowledge_layer(options: Options, config: Config, *, workspace: Path | None) -> tuple[LayerText, ...]:
    """What is pinned for an epoch: the digest, if it is there and knowledge is not turned off."""
    try:
        text = knowledge_text(knowledge_folder(workspace, Path(config.home)))
    except UserError as error:
        logger.warning("%s", error)
        text = ""
    switch = switched(options.get("knowledge"), config.knowledge, present=bool(text))
    return (LayerText(LAYER, text),) if switch.on and text else ()


def adopting_of(options: Options, config: Config, state: State, *, workspace: Path | None) -> Adopting:
    """Of what an epoch pins, only knowledge is looked at again."""

    def newer(pinned: tuple[LayerText, ...]) -> tuple[LayerText, ...] | None:
        now = knowledge_layer(options, config, workspace=workspace)
        if now == tuple(one for one in pinned if one.layer == LAYER):
            return None
        return (*(one for one in pinned if one.layer != LAYER), *now)

    profile = state.profile if state.model else config.profile
    refresh = config.digest_refresh if config.digest_refresh != "auto" else _REFRESH[profile]
    return Adopting(newer, each_turn=refresh == "next_turn")


_REFRESH = {"default": "epoch", "seed": "next_turn"}
