"""Project knowledge at run time: the sessions to harvest, the files that notes refer to, and the knowledge layer."""

import datetime
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from holdfast.engine.compaction.history import read_logged_messages
from holdfast.engine.conversation import PrefixRefresh
from holdfast.engine.state import SessionState
from holdfast.errors import UserError
from holdfast.events.log import EventLog, SessionRow
from holdfast.events.payloads.calls import GatewayForwarded
from holdfast.events.payloads.session import SessionEnded, SessionStarted, TurnStarted
from holdfast.extraction.entities import truncate_words
from holdfast.extraction.tool_calls import extract_plain_text
from holdfast.knowledge.digest import DIGEST_BYTES_MAX
from holdfast.knowledge.file_notes import HASH_CHARACTERS, ProjectLookup
from holdfast.knowledge.folder import (
    DIGEST_FILE,
    DISABLED_FILE,
    KnowledgeFolder,
    list_users,
    open_knowledge_folder,
    open_readable_folders,
)
from holdfast.knowledge.harvest import EndedSession
from holdfast.knowledge.items import Item, SourceOrigin, normalize_item_text
from holdfast.knowledge.journal import read_ledger
from holdfast.layers.system_prompt import clean_text
from holdfast.redaction import redact_secrets
from holdfast.runtime.config import Config, resolve_flag
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
LINE_CHARACTERS_MAX = 300


def finished_sessions(
    log: EventLog,
    *,
    at: float,
    workspace: Path | None,
    quiet_seconds: float = IDLE_SECONDS_MIN,
    known: Mapping[tuple[str, int], str | None] | None = None,
    simulated: bool = False,
) -> Iterator[EndedSession]:
    """The finished sessions of this workspace, oldest first, with their users; delegated ones are part of their parent.

    Sessions in `known`, users by session id and event count, are not read again to find out whether they belong here.
    Sessions with a simulated model are left out unless `simulated`, and so are those of an unknown user.
    """
    folder = str(workspace.resolve()) if workspace else None
    for row in sorted(log.sessions(), key=lambda session: (session.started_at, session.id)):
        if row.parent_session_id is not None:
            continue
        # Harvested before and unchanged since: yielded without reading its events.
        if known and (row.id, row.event_count) in known:
            yield _harvestable(log, row, folder, known[row.id, row.event_count])
            continue
        started = _session_started(log, row.id)
        if started is None or started.workspace_path != folder or (started.simulated and not simulated):
            continue
        if at - row.last_event_at < quiet_seconds and not _has_ended(log, row.id):
            continue
        user = _session_user(log, row.id, started)
        if user != "":
            yield _harvestable(log, row, folder, user)


def _harvestable(log: EventLog, row: SessionRow, workspace: str | None, user: str | None) -> EndedSession:
    day = datetime.datetime.fromtimestamp(row.last_event_at, datetime.UTC).date().isoformat()
    return EndedSession(row.id, row.event_count, day, lambda: read_logged_messages(log.read(row.id)), workspace, user)


def _session_user(log: EventLog, session_id: str, started: SessionStarted) -> str | None:
    """The session's user; for a conversation through the gateway the caller's user, else the caller's key."""
    if started.user_id is not None or started.workspace_path is not None:
        return started.user_id
    forwarded = next(
        (event.payload for event in log.read(session_id) if isinstance(event.payload, GatewayForwarded)), None
    )
    if forwarded is None:
        return None
    return forwarded.user_id or (f"key {forwarded.key_id}" if forwarded.key_id else None)


def known_sessions(workspace: Path | None, home: Path) -> dict[tuple[str, int], str | None]:
    """The users of the sessions that were harvested before, by session id and event count."""
    known: dict[tuple[str, int], str | None] = {}
    for user in (None, *list_users(workspace, home)):
        folder = open_knowledge_folder(workspace, home, user=user)
        known |= dict.fromkeys(read_ledger(folder).harvested_sessions, user)
    return known


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


def group_by_user(
    sessions: Iterable[EndedSession], workspace: Path | None, home: Path
) -> dict[str | None, list[EndedSession]]:
    """Sessions by the user whose knowledge they add to; the current user, and everybody with a folder, is included."""
    groups: dict[str | None, list[EndedSession]] = {None: [], **{user: [] for user in list_users(workspace, home)}}
    for session in sessions:
        groups.setdefault(session.user, []).append(session)
    return groups


class SourceLines(msgspec.Struct, frozen=True):
    """The lines of a message that an item comes from; none if the session is not in the store."""

    session_id: str
    number: int
    origin: SourceOrigin
    lines: tuple[str, ...]


def read_source_lines(log: EventLog, item: Item) -> tuple[SourceLines, ...]:
    """What a person compares an item with: the line that has most of its words, and its neighbours."""
    words = set(normalize_item_text(item.text).split())
    found = []
    for source in item.sources:
        entries = read_logged_messages(log.read(source.session))
        texts = [extract_plain_text(entry.content) for entry in entries if entry.number == source.number]
        lines = [line.strip() for text in texts for line in text.splitlines() if line.strip()]
        scores = [len(words & set(normalize_item_text(line).split())) for line in lines]
        best = scores.index(max(scores)) if scores else 0
        shown = (
            truncate_words(redact_secrets(line), LINE_CHARACTERS_MAX) for line in lines[max(0, best - 1) : best + 2]
        )
        found.append(SourceLines(source.session, source.number, source.origin, tuple(shown)))
    return tuple(found)


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


def digest_text(
    workspace: Path | None, home: Path, *, user: str | None = None, read: Callable[[KnowledgeFolder], str] | None = None
) -> str:
    """The digest that a session of this user receives; empty if there is none or knowledge is turned off.

    `read` gives the digest of one folder, by default the stored one.

    What is shared comes first: it is the same for all users, so their prompts share it in the provider's cache.
    """
    if open_knowledge_folder(workspace, home).read(DISABLED_FILE) is not None:
        return ""
    texts = []
    room = DIGEST_BYTES_MAX
    for folder in open_readable_folders(workspace, home, user=user):
        stored = decode_text(folder.read(DIGEST_FILE) or b"") if read is None else read(folder)
        text = _cut_lines(stored, room)
        if text:
            texts.append(text)
            room -= len(text.encode()) + 2
    return "\n\n".join(texts)


def _cut_lines(digest: str, bytes_max: int) -> str:
    """The digest, cut after a whole line if it is too long."""
    text, cut = cut_utf8(digest, max(0, bytes_max))
    return clean_text(text[: text.rfind("\n") + 1] if cut else text).strip()


def knowledge_user(options: Options, state: SessionState | None = None) -> str | None:
    """Whose knowledge a session receives: its user's, or without one the current user's."""
    if state is not None and state.model:
        return state.user_id
    return clean_text(options["user_id"]) if "user_id" in options else None


def knowledge_layer(
    options: Options, config: Config, *, workspace: Path | None, user: str | None
) -> tuple[LayerText, ...]:
    """The digest layer that an epoch pins; none without a digest or with knowledge turned off."""
    try:
        text = digest_text(workspace, Path(config.home), user=user)
    except UserError as error:
        logger.warning("%s", error)
        text = ""
    enabled = resolve_flag(options.get("knowledge"), config.knowledge, present=bool(text))
    return (LayerText(KNOWLEDGE_LAYER, text),) if enabled and text else ()


def knowledge_refresh(options: Options, config: Config, state: SessionState, workspace: Path | None) -> PrefixRefresh:
    """How a session refreshes its pinned layers: of those, only the knowledge digest can change within a session."""
    user = knowledge_user(options, state)

    def newer(pinned: tuple[LayerText, ...]) -> tuple[LayerText, ...] | None:
        current = knowledge_layer(options, config, workspace=workspace, user=user)
        if current == tuple(text for text in pinned if text.layer == KNOWLEDGE_LAYER):
            return None
        return (*(text for text in pinned if text.layer != KNOWLEDGE_LAYER), *current)

    profile = state.profile if state.model else config.profile
    refresh = config.digest_refresh if config.digest_refresh != "auto" else _REFRESH_BY_PROFILE[profile]
    return PrefixRefresh(newer, each_turn=refresh == "next_turn")


# Seed 004 refreshes the digest on the next turn; by default it waits for an epoch, which rewrites the cache anyway.
_REFRESH_BY_PROFILE = {"default": "epoch", "seed": "next_turn"}
