"""What stored sessions spent. Each log is audited once, and again when it or what computes the sums has changed.

The sums are kept in a SQLite file of the user's, not in the store: reports open stores read-only, and writing sums with
each call would slow down recording. Without the file everything is computed. What is found in it is what would be
computed: a digest over the position of the log, the code, the catalog and the sums themselves has to match.
"""

import functools
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar

import msgspec

from holdfast.catalog.lookup import Catalog, Models
from holdfast.clock import Clock, system_clock
from holdfast.errors import StoreError, UserError
from holdfast.events.log import LogPosition
from holdfast.ledger.spending import AuditScope, ConversationSpending, SessionSums, Spending, SpendingFold
from holdfast.stores.sql.dialect import PARAMETERS_MAX, repeat_params
from holdfast.stores.sqlite.file import READ_ERRORS, connect_sqlite, prepare_file

FILE_NAME = "spending-cache.db"
CACHE_BYTES_MAX = 64 * 1024 * 1024  # About 100,000 sessions of 50 calls; what was not used for longest makes room.
SUMS_BYTES_MAX = 256 * 1024  # Of one session: one with more has thousands of days, models or tools.
UNUSED_SECONDS_MAX = 30 * 86_400.0  # A session that was deleted by another machine is forgotten after that.
TOUCHED_SECONDS = 86_400.0  # How exactly the last use is known: a report does not write for each session that it reads.
BUSY_SECONDS_MAX = 1.0  # Computing what another process is writing takes about as long as waiting for it.
SESSIONS_A_WRITE = 200
"""An audit that is interrupted has kept all but this many of its sessions."""

PROGRAM = Path(__file__).parents[1]
COMPUTING_PACKAGES = (
    *("cachemodel", "catalog", "compaction", "economics", "events", "layers", "ledger", "planning", "providers"),
    *("recovery", "replay", "types"),
)
"""Everything that the sums of a log depend on is in these packages, or beside them in a module of its own."""

_TABLE = """
CREATE TABLE IF NOT EXISTS sums (
    session BLOB PRIMARY KEY, used_at REAL NOT NULL, digest BLOB NOT NULL, sums BLOB NOT NULL
) WITHOUT ROWID"""
_USED_BYTES = """
SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size"""
_DELETE_HALF = """
DELETE FROM sums WHERE session IN (SELECT session FROM sums ORDER BY used_at LIMIT (SELECT count(*) / 2 FROM sums))"""
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH)
_Row = tuple[bytes, float, bytes, bytes]
_Result = TypeVar("_Result")
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SessionSums).decode


class AuditedSession(Protocol):
    """As `replay.stored_sessions` has it, which this package does not import."""

    @property
    def id(self) -> str: ...
    @property
    def sums(self) -> SessionSums: ...
    @property
    def conversation(self) -> ConversationSpending | None: ...


class HasPositions(Protocol):
    def read_positions(self, session_ids: Sequence[str]) -> dict[str, LogPosition]:
        """Where the logs of sessions end now."""


AuditLogs = Callable[[Mapping[str, LogPosition | None]], Iterable[AuditedSession]]
"""Reads and audits the logs of sessions, in any order."""


def sum_spending(
    log: HasPositions,
    ids: Sequence[str],
    scope: AuditScope,
    audit_logs: AuditLogs,
    *,
    cache: "SpendingCache",
    project: str = "",
    names: Mapping[str, str] | None = None,
) -> Spending:
    """Where the money of stored sessions went; only what the cache lacks is audited. `names` are for display."""
    positions = log.read_positions(ids)
    cached = {id: sums for id, sums in cache.find(positions).items() if sums.covers(scope)}
    conversations = {id: sums.select(scope) for id, sums in cached.items()}
    audited: dict[str, SessionSums] = {}
    for session in audit_logs({id: positions.get(id) for id in ids if id not in cached}):
        conversations[session.id] = session.conversation
        audited[session.id] = session.sums
        if len(audited) >= SESSIONS_A_WRITE:
            _keep_unchanged(log, cache, positions, audited)
            audited = {}
    _keep_unchanged(log, cache, positions, audited)
    fold = SpendingFold()
    for id in ids:
        conversation = conversations.get(id)
        if conversation is not None and project.lower() in conversation.project.lower():
            fold.add(msgspec.structs.replace(conversation, session=id, name=(names or {}).get(id, "")))
    return fold.build()


def _keep_unchanged(
    log: HasPositions, cache: "SpendingCache", before: Mapping[str, LogPosition], sums: Mapping[str, SessionSums]
) -> None:
    """A log that grew while it was audited may have been read further than its position said."""
    after = log.read_positions(tuple(sums)) if sums else {}
    cache.keep({id: (after[id], sums[id]) for id in sums if id in after and after[id] == before.get(id)})


class SpendingCache:
    """Safe for threads and processes. Without a path, or where its file cannot be used, it is in memory."""

    def __init__(
        self,
        path: Path | None,
        models: Models,
        *,
        clock: Clock = system_clock,
        bytes_max: int = CACHE_BYTES_MAX,
        busy_seconds_max: float = BUSY_SECONDS_MAX,
    ) -> None:
        # Now, because later the files of the program may be those of another version.
        program = digest_program()
        self._path = path if program is not None else None
        # The shipped price list answers for models without a row, if the rows are backed by it.
        version = _encode([program, sorted(models.items()), isinstance(models, Catalog)])
        self._version = blake2b(version, digest_size=16).digest()
        self._clock = clock
        self._bytes_max = bytes_max
        self._busy_seconds_max = busy_seconds_max
        self._lock = Lock()
        self._memory: sqlite3.Connection | None = None

    def find(self, positions: Mapping[str, LogPosition]) -> dict[str, SessionSums]:
        """The sums of the sessions whose logs end where they did when the sums were computed."""
        names = {_encode((position.store, id)): id for id, position in positions.items()}
        found = self.find_results({name: _encode(positions[id]) for name, id in names.items()})
        return {names[name]: _decode(value) for name, value in found.items()}

    def find_results(self, origins: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """The values by name that were computed from these origins; for other results than sums of stored sessions."""
        now = self._clock()
        names = {_make_key(name): name for name in origins}
        found: dict[bytes, bytes] = {}
        is_stored = self._path is None or self._path.exists()
        rows: list[_Row] = []
        if names and is_stored:
            rows = self._run(lambda connection: _select(connection, tuple(names)), rows, writes=False)
        touched: list[bytes] = []
        for key, used_at, digest, encoded in rows:
            name = names[key]
            if digest == self._make_digest(name, origins[name], encoded):
                found[name] = encoded
                # Also if a wrong clock has written a time to come.
                if not isinstance(used_at, float) or abs(now - used_at) > TOUCHED_SECONDS:
                    touched.append(key)
        if touched:
            self._run(lambda connection: _touch(connection, touched, now), None)
        return found

    def keep(self, sums: Mapping[str, tuple[LogPosition, SessionSums]]) -> None:
        self.keep_results(
            {_encode((position.store, id)): (_encode(position), each) for id, (position, each) in sums.items()}
        )

    def keep_results(self, results: Mapping[bytes, tuple[bytes, object]]) -> None:
        """Keep values by name, each with the origin that it was computed from."""
        now, rows = self._clock(), list[_Row]()
        for name, (origin, value) in results.items():
            # What cannot be encoded, such as a number of more than 64 bits, is computed each time.
            with suppress(ValueError, OverflowError):
                encoded = _encode(value)
                if len(encoded) <= SUMS_BYTES_MAX:
                    rows.append((_make_key(name), now, self._make_digest(name, origin, encoded), encoded))
        if rows:
            self._run(lambda connection: _insert(connection, rows, now, bytes_max=self._bytes_max), None)

    def forget(self, positions: Mapping[str, LogPosition]) -> None:
        """For sessions that are deleted."""
        keys = [_make_key(_encode((position.store, id))) for id, position in positions.items()]
        if keys and (self._path is None or self._path.exists()):
            self._run(lambda connection: _delete(connection, keys), None)

    def _make_digest(self, name: bytes, origin: bytes, encoded: bytes) -> bytes:
        return blake2b(_encode((self._version, name, origin, encoded)), digest_size=16).digest()

    def _run(
        self, action: Callable[[sqlite3.Connection], _Result], fallback: _Result, *, writes: bool = True
    ) -> _Result:
        """The fallback while another process is writing, and for a damaged file, which the next write replaces."""
        with self._lock:
            if self._path is not None:
                try:
                    if writes:
                        prepare_file(self._path)
                    mode = "rw" if writes else "ro"
                    with closing(connect_sqlite(self._path, mode, busy_seconds_max=self._busy_seconds_max)) as file:
                        return _run_transaction(file, action) if writes else action(file)
                except READ_ERRORS as error:
                    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
                    if code in _DAMAGED:
                        _remove(self._path)
                    if not writes or code in (*_DAMAGED, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                        return fallback
                except (StoreError, UserError):
                    pass
                self._path = None
            if self._memory is None:
                self._memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            return _run_transaction(self._memory, action)


def _run_transaction(connection: sqlite3.Connection, action: Callable[[sqlite3.Connection], _Result]) -> _Result:
    connection.execute("PRAGMA secure_delete = ON")
    # What a power failure damages is computed again.
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(_TABLE)
    connection.execute("BEGIN")
    with connection:
        return action(connection)


def _select(connection: sqlite3.Connection, keys: Sequence[bytes]) -> list[_Row]:
    pages = (keys[start : start + PARAMETERS_MAX] for start in range(0, len(keys), PARAMETERS_MAX))
    query = "SELECT session, used_at, digest, sums FROM sums WHERE session IN ({})"
    return [row for page in pages for row in connection.execute(query.format(repeat_params(len(page))), page)]


def _touch(connection: sqlite3.Connection, keys: Sequence[bytes], now: float) -> None:
    connection.executemany("UPDATE sums SET used_at = ? WHERE session = ?", [(now, key) for key in keys])


def _insert(connection: sqlite3.Connection, rows: Sequence[_Row], now: float, *, bytes_max: int) -> None:
    connection.execute("DELETE FROM sums WHERE used_at < ?", (now - UNUSED_SECONDS_MAX,))
    connection.executemany("INSERT OR REPLACE INTO sums VALUES (?, ?, ?, ?)", rows)
    ((used_bytes,),) = connection.execute(_USED_BYTES)
    if used_bytes > bytes_max:
        connection.execute(_DELETE_HALF)


def _delete(connection: sqlite3.Connection, keys: Sequence[bytes]) -> None:
    connection.executemany("DELETE FROM sums WHERE session = ?", [(key,) for key in keys])


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.with_name(f"{path.name}-journal").unlink(missing_ok=True)


def _make_key(name: bytes) -> bytes:
    return blake2b(name, digest_size=16).digest()


@functools.cache
def digest_program(root: Path = PROGRAM) -> bytes | None:
    """A digest of the code that computes sums, and of its data. None if that is not in files, so nobody can tell."""
    # Sums of floats differ by version of Python.
    digest = blake2b(repr(sys.version_info).encode(), digest_size=16)
    try:
        folders = [folder for name in COMPUTING_PACKAGES for folder, _, _ in os.walk(root / name)]
        for folder in (root, *map(Path, sorted(folders))):
            for name in sorted(os.listdir(folder)):
                if name.endswith((".py", ".json")):
                    digest.update(f"\0{name}\0".encode() + (folder / name).read_bytes())
    except OSError:
        return None
    return digest.digest()
