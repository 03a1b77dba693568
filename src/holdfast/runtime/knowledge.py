"""Project knowledge at run time: the sessions to harvest, the files that notes refer to, and the knowledge layer."""

import datetime
import logging
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from holdfast.engine.compaction.history import read_logged_messages
from holdfast.engine.conversation import PrefixRefresh
from holdfast.engine.state import SessionState
from holdfast.errors import UserError
from holdfast.events.log import EventLog, SessionRow
from holdfast.events.payloads.session import SessionEnded, SessionStarted, TurnStarted
from holdfast.knowledge.digest import DIGEST_BYTES_MAX
from holdfast.knowledge.file_notes import HASH_CHARACTERS, ProjectLookup
from holdfast.knowledge.flags import resolve_flag
from holdfast.knowledge.folder import DIGEST_FILE, DISABLED_FILE, KnowledgeFiles, open_knowledge_folder
from holdfast.knowledge.harvest import EndedSession
from holdfast.layers.system_prompt import clean_text
from holdfast.runtime.config import Config
from holdfast.runtime.options import Options
from holdfast.sources.files import cut_utf8, decode_text
from holdfast.sources.project_files import read_project_file, walk_project
from holdfast.types.prompt import LayerText

logger = logging.getLogger(__name__)
KNOWLEDGE_LAYER = "knowledge"
# A session without events for a day is assumed to be over, since many clients never record an end.
IDLE_SECONDS_MIN = 86_400.0
# Files are read whole to hash them, so that notes can follow a renamed file; larger ones are skipped.
FILE_BYTES_MAX = 4_000_000


def finished_sessions(
    log: EventLog,
    *,
    at: float,
    workspace: Path | None,
    quiet_seconds: float = IDLE_SECONDS_MIN,
    known: Container[tuple[str, int]] = (),
    simulated: bool = False,
) -> Iterator[EndedSession]:
    """The finished sessions of this workspace, oldest first; a delegated session is part of its parent.

    Sessions in `known`, pairs of session id and event count, are not read again to find out whether they belong here.
    Sessions with a simulated model are left out unless `simulated`.
    """
    folder = str(workspace.resolve()) if workspace else None
    for row in sorted(log.sessions(), key=lambda session: (session.started_at, session.id)):
        if row.parent_session_id is not None:
            continue
        # Harvested before and unchanged since: yielded without reading its events.
        if (row.id, row.event_count) not in known:
            started = _session_started(log, row.id)
            if started is None or started.workspace_path != folder or (started.simulated and not simulated):
                continue
            if at - row.last_event_at < quiet_seconds and not _has_ended(log, row.id):
                continue
        yield _harvestable(log, row, folder)


def _harvestable(log: EventLog, row: SessionRow, workspace: str | None) -> EndedSession:
    day = datetime.datetime.fromtimestamp(row.last_event_at, datetime.UTC).date().isoformat()
    return EndedSession(row.id, row.event_count, day, lambda: read_logged_messages(log.read(row.id)), workspace)


def _session_started(log: EventLog, session_id: str) -> SessionStarted | None:
    first = next(iter(log.read(session_id)), None)
    return first.payload if first is not None and isinstance(first.payload, SessionStarted) else None


def _has_ended(log: EventLog, session_id: str) -> bool:
    """Whether the session was ended and no turn was started since."""
    # A session can be resumed after its end, so the last of these events counts.
    ended = False
    for event in log.read(session_id):
        if isinstance(event.payload, SessionEnded | TurnStarted):
            ended = isinstance(event.payload, SessionEnded)
    return ended


def project_lookup(workspace: Path | None) -> ProjectLookup:
    """Look up workspace files by path and by content hash, so that notes can follow a renamed file."""
    if workspace is None:
        return ProjectLookup()

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

    return ProjectLookup(content_of, paths_with)


def digest_text(disk: KnowledgeFiles) -> str:
    """The digest as it is put into a prompt; empty if there is none or knowledge is turned off."""
    if disk.read(DISABLED_FILE) is not None:
        return ""
    text, _ = cut_utf8(decode_text(disk.read(DIGEST_FILE) or b""), DIGEST_BYTES_MAX)
    return clean_text(text).strip()


def knowledge_layer(options: Options, config: Config, *, workspace: Path | None) -> tuple[LayerText, ...]:
    """The digest layer that an epoch pins; none without a digest or with knowledge turned off."""
    try:
        text = digest_text(open_knowledge_folder(workspace, Path(config.home)))
    except UserError as error:
        logger.warning("%s", error)
        text = ""
    enabled = resolve_flag(options.get("knowledge"), config.knowledge, present=bool(text))
    return (LayerText(KNOWLEDGE_LAYER, text),) if enabled and text else ()


def knowledge_refresh(options: Options, config: Config, state: SessionState, workspace: Path | None) -> PrefixRefresh:
    """How a session refreshes its pinned layers: of those, only the knowledge digest can change within a session."""

    def newer(pinned: tuple[LayerText, ...]) -> tuple[LayerText, ...] | None:
        current = knowledge_layer(options, config, workspace=workspace)
        if current == tuple(text for text in pinned if text.layer == KNOWLEDGE_LAYER):
            return None
        return (*(text for text in pinned if text.layer != KNOWLEDGE_LAYER), *current)

    profile = state.profile if state.model else config.profile
    refresh = config.digest_refresh if config.digest_refresh != "auto" else _REFRESH_BY_PROFILE[profile]
    return PrefixRefresh(newer, each_turn=refresh == "next_turn")


# Seed 004 refreshes the digest on the next turn; by default it waits for an epoch, which rewrites the cache anyway.
_REFRESH_BY_PROFILE = {"default": "epoch", "seed": "next_turn"}
