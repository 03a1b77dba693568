"""A prompt cache watched from outside of a session: for whoever sends requests by other means.

What is remembered stays in memory, or in a folder of its own; no fault of the disk is ever the caller's.
"""

import os
import threading
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.canonical.reply import Reply
from holdfast.canonical.usage import Usage
from holdfast.clock import Clock, system_clock
from holdfast.engine.completions import is_worth_keeping
from holdfast.errors import UserError
from holdfast.ledger.prompt_cache import (
    FINGERPRINT_VERSION,
    PromptCacheConfig,
    Request,
    TrackedPrompt,
    detect_cache_break,
    folder_name,
    request_key,
    tracked,
)
from holdfast.ledger.stats import CacheBreakEvent, PromptCacheStats, broken
from holdfast.planning.marks import Profile

COMPLETIONS_MAX = 256
FILE_BYTES_MAX = 16_000_000

STATS, STATE, COMPLETIONS = "stats.json", "session-state.json", "completions"

_Found = TypeVar("_Found")


class PromptCacheRecord(msgspec.Struct, frozen=True):
    """What recording a reply has shown: a break, if it was one, and the counters after it."""

    cache_break: CacheBreakEvent | None
    stats: PromptCacheStats


class _Completion(msgspec.Struct, frozen=True):
    cached_at: float
    reply: Reply
    fingerprint_version: int = FINGERPRINT_VERSION


class _State(msgspec.Struct, frozen=True):
    previous: TrackedPrompt


class PromptCache:
    """Gives a reply again to an equal request within seconds, and counts what replies say of the provider's cache.

    Under `profile="seed"` it does what the seed says, to the letter. Ours gives only whole replies again, and as having
    taken nothing; and it calls a break unexpected where what was sent before no longer stands at the beginning.
    """

    def __init__(
        self,
        config: PromptCacheConfig,
        *,
        profile: Profile = "default",
        folder: Path | None = None,
        clock: Clock = system_clock,
    ) -> None:
        if not config.session_id:
            raise UserError("a prompt cache needs the id of its session")
        self._config = config
        self._profile: Profile = profile
        self._clock = clock
        self._files = _Files(folder / folder_name(config.session_id, profile) if folder is not None else None)
        self._lock = threading.Lock()
        self._stats = _decoded(self._files.read(STATS), PromptCacheStats) or PromptCacheStats()
        state = _decoded(self._files.read(STATE), _State)
        self._previous = state.previous if state is not None else None

    @property
    def stats(self) -> PromptCacheStats:
        return self._stats

    @property
    def folder(self) -> Path | None:
        """Where everything about this session is, if it is kept on disk."""
        return self._files.folder

    def lookup_completion(self, request: Request) -> Reply | None:
        """The reply to an equal request, if it was recorded in time."""
        key = request_key(request, self._profile)
        with self._lock:
            found = self._fresh(key)
            self._stats = msgspec.structs.replace(
                self._stats,
                completion_cache_hits=self._stats.completion_cache_hits + (found is not None),
                completion_cache_misses=self._stats.completion_cache_misses + (found is None),
                last_completion_cache_key=key,
            )
            if found is not None and self._profile == "seed":
                self._count(found.usage, key, "completion-cache")
                self._previous = tracked(request, found.usage, self._clock(), self._profile)
            elif found is not None:
                self._stats = msgspec.structs.replace(self._stats, last_cache_source="completion-cache")
                found = msgspec.structs.replace(found, usage=Usage())
            self._persist()
            return found

    def record_response(self, request: Request, reply: Reply) -> PromptCacheRecord:
        """Count a reply, and keep it for equal requests."""
        return self._record(request, reply.usage, reply)

    def record_usage(self, request: Request, usage: Usage) -> PromptCacheRecord:
        """Count a reply that was streamed, and keep nothing of it."""
        return self._record(request, usage, None)

    def _record(self, request: Request, usage: Usage, reply: Reply | None) -> PromptCacheRecord:
        key, at = request_key(request, self._profile), self._clock()
        current = tracked(request, usage, at, self._profile)
        is_kept = reply is not None and (self._profile == "seed" or is_worth_keeping(reply))
        with self._lock:
            found = detect_cache_break(self._config, self._previous, current)
            self._count(usage, key, "api-response" if self._profile == "seed" else "provider")
            self._stats = msgspec.structs.replace(
                self._stats,
                tracked_requests=self._stats.tracked_requests + 1,
                completion_cache_writes=self._stats.completion_cache_writes + is_kept,
            )
            self._stats = self._stats if found is None else broken(self._stats, found)
            self._previous = current
            if reply is not None and is_kept:
                self._files.write(_name(key), msgspec.json.encode(_Completion(at, reply)))
                self._files.trim()
            self._persist()
            return PromptCacheRecord(found, self._stats)

    def _fresh(self, key: str) -> Reply | None:
        kept = _decoded(self._files.read(_name(key)), _Completion)
        if kept is None:
            return None
        age_seconds = max(0.0, self._clock() - kept.cached_at)
        is_late = age_seconds >= self._config.completion_ttl.total_seconds()
        if is_late or kept.fingerprint_version != FINGERPRINT_VERSION:
            self._files.drop(_name(key))
            return None
        return kept.reply

    def _count(self, usage: Usage, key: str, source: str) -> None:
        before = self._stats
        self._stats = msgspec.structs.replace(
            before,
            total_cache_creation_input_tokens=before.total_cache_creation_input_tokens + usage.cache_write,
            total_cache_read_input_tokens=before.total_cache_read_input_tokens + usage.cache_read,
            last_cache_creation_input_tokens=usage.cache_write,
            last_cache_read_input_tokens=usage.cache_read,
            last_request_hash=key,
            last_cache_source=source,
        )

    def _persist(self) -> None:
        self._files.write(STATS, msgspec.json.encode(self._stats))
        if self._previous is not None:
            self._files.write(STATE, msgspec.json.encode(_State(self._previous)))


class _Files:
    """Files of one folder by their names, or the same in memory."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._held: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        if self.folder is None:
            return self._held.get(name)
        try:
            with (self.folder / name).open("rb") as file:
                raw = file.read(FILE_BYTES_MAX + 1)
        except OSError:
            return None
        return raw if len(raw) <= FILE_BYTES_MAX else None

    def write(self, name: str, raw: bytes) -> None:
        if self.folder is None:
            self._held.pop(name, None)
            self._held[name] = raw
            return
        path = self.folder / name
        fresh = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(raw)
            fresh.replace(path)
        except OSError:
            return

    def drop(self, name: str) -> None:
        self._held.pop(name, None)
        if self.folder is not None:
            _unlink(self.folder / name)

    def trim(self) -> None:
        """So many completions are held at most; the oldest go."""
        for name in [name for name in self._held if name.startswith(COMPLETIONS)][:-COMPLETIONS_MAX]:
            del self._held[name]
        if self.folder is None:
            return
        try:
            found = sorted((self.folder / COMPLETIONS).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        except OSError:
            return
        for path in found[:-COMPLETIONS_MAX]:
            _unlink(path)


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def _name(key: str) -> str:
    return f"{COMPLETIONS}/{key}.json"


def _decoded(raw: bytes | None, type: type[_Found]) -> _Found | None:
    """What was written, or nothing where the file is not what we have written."""
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=type)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
