"""`PromptCache`: cache statistics and a response cache for programs that send requests without a session.

Its state is kept in memory or in a folder; errors of the disk are ignored, never raised to the caller.
"""

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.clock import Clock, system_clock
from holdfast.engine.cache.response_cache import is_storable_reply
from holdfast.errors import UserError
from holdfast.ledger.cache.prompt_cache import (
    FINGERPRINT_VERSION,
    CacheBreakEvent,
    PromptCacheConfig,
    PromptCacheStats,
    RequestMembers,
    TrackedPrompt,
    compute_request_key,
    count_cache_break,
    detect_cache_break,
    session_folder_name,
    track_prompt,
)
from holdfast.planning.breakpoints import CacheProfile
from holdfast.types.reply import Reply
from holdfast.types.usage import Usage

# Bounds of what one session keeps on disk or in memory: replies are only useful for seconds.
COMPLETIONS_MAX = 256
FILE_BYTES_MAX = 16_000_000
STATS_FILE, STATE_FILE, COMPLETIONS_FOLDER = "stats.json", "session-state.json", "completions"
_Decoded = TypeVar("_Decoded")


class PromptCacheRecord(msgspec.Struct, frozen=True):
    """The cache break that a recorded reply revealed, if any, and the counters after it."""

    cache_break: CacheBreakEvent | None
    stats: PromptCacheStats


class _Completion(msgspec.Struct, frozen=True):
    cached_at: float
    reply: Reply
    fingerprint_version: int = FINGERPRINT_VERSION


class _State(msgspec.Struct, frozen=True):
    previous: TrackedPrompt


class PromptCache:
    """Repeats a reply to an equal request within seconds, and tracks what replies report about the provider's cache.

    `profile="seed"` follows seed 002 to the letter. The default profile repeats only complete replies, with zero usage,
    and calls a cache break unexpected if the new request does not start with the bytes of the previous one.
    """

    def __init__(
        self,
        config: PromptCacheConfig,
        *,
        profile: CacheProfile = "default",
        folder: Path | None = None,
        clock: Clock = system_clock,
    ) -> None:
        if not config.session_id:
            raise UserError("a prompt cache needs a session_id")
        self._config = config
        self._profile: CacheProfile = profile
        self._clock = clock
        self._files = _Files(folder / session_folder_name(config.session_id, profile) if folder is not None else None)
        self._lock = threading.Lock()
        self._stats = _decode_file(self._files.read(STATS_FILE), PromptCacheStats) or PromptCacheStats()
        state = _decode_file(self._files.read(STATE_FILE), _State)
        self._previous = state.previous if state is not None else None

    @property
    def stats(self) -> PromptCacheStats:
        return self._stats

    @property
    def folder(self) -> Path | None:
        """The folder with this session's files; None if its state is in memory."""
        return self._files.folder

    def lookup_completion(self, request: RequestMembers) -> Reply | None:
        """The reply to an equal request, if it was recorded within `completion_ttl`."""
        key = compute_request_key(request, self._profile)
        with self._lock:
            reply = self._fresh_reply(key)
            self._stats = msgspec.structs.replace(
                self._stats,
                completion_cache_hits=self._stats.completion_cache_hits + (reply is not None),
                completion_cache_misses=self._stats.completion_cache_misses + (reply is None),
                last_completion_cache_key=key,
            )
            # The seed counts a repeated reply like a provider's answer; by default it has no usage, because it was
            # not billed again.
            if reply is not None and self._profile == "seed":
                self._count(reply.usage, key, "completion-cache")
                self._previous = track_prompt(request, reply.usage, self._clock(), self._profile)
            elif reply is not None:
                self._stats = msgspec.structs.replace(self._stats, last_cache_source="completion-cache")
                reply = msgspec.structs.replace(reply, usage=Usage())
            self._persist()
            return reply

    def record_response(self, request: RequestMembers, reply: Reply) -> PromptCacheRecord:
        """Record a reply, and store it for equal requests."""
        return self._record(request, reply.usage, reply)

    def record_usage(self, request: RequestMembers, usage: Usage) -> PromptCacheRecord:
        """Record the usage of a streamed reply; the reply itself is not stored."""
        return self._record(request, usage, None)

    def _record(self, request: RequestMembers, usage: Usage, reply: Reply | None) -> PromptCacheRecord:
        key, at = compute_request_key(request, self._profile), self._clock()
        current = track_prompt(request, usage, at, self._profile)
        is_stored = reply is not None and (self._profile == "seed" or is_storable_reply(reply))
        with self._lock:
            cache_break = detect_cache_break(self._config, self._previous, current)
            self._count(usage, key, "api-response" if self._profile == "seed" else "provider")
            self._stats = msgspec.structs.replace(
                self._stats,
                tracked_requests=self._stats.tracked_requests + 1,
                completion_cache_writes=self._stats.completion_cache_writes + is_stored,
            )
            self._stats = self._stats if cache_break is None else count_cache_break(self._stats, cache_break)
            self._previous = current
            if reply is not None and is_stored:
                self._files.write(_completion_file(key), msgspec.json.encode(_Completion(at, reply)))
                self._files.trim()
            self._persist()
            return PromptCacheRecord(cache_break, self._stats)

    def _fresh_reply(self, key: str) -> Reply | None:
        completion = _decode_file(self._files.read(_completion_file(key)), _Completion)
        if completion is None:
            return None
        # If the clock was set back, the difference is negative: the reply counts as new.
        age_seconds = max(0.0, self._clock() - completion.cached_at)
        is_expired = age_seconds >= self._config.completion_ttl.total_seconds()
        if is_expired or completion.fingerprint_version != FINGERPRINT_VERSION:
            self._files.drop(_completion_file(key))
            return None
        return completion.reply

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
        self._files.write(STATS_FILE, msgspec.json.encode(self._stats))
        if self._previous is not None:
            self._files.write(STATE_FILE, msgspec.json.encode(_State(self._previous)))


class _Files:
    """The files of one folder by name, or their contents in memory."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._in_memory: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        if self.folder is None:
            return self._in_memory.get(name)
        try:
            with (self.folder / name).open("rb") as file:
                raw = file.read(FILE_BYTES_MAX + 1)
        except OSError:
            return None
        return raw if len(raw) <= FILE_BYTES_MAX else None

    def write(self, name: str, raw: bytes) -> None:
        if self.folder is None:
            self._in_memory.pop(name, None)
            self._in_memory[name] = raw
            return
        path = self.folder / name
        # Written under another name and renamed, so that a reader never sees half a file.
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(raw)
            temporary.replace(path)

    def drop(self, name: str) -> None:
        self._in_memory.pop(name, None)
        if self.folder is not None:
            with suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)

    def trim(self) -> None:
        """Delete the oldest completions beyond `COMPLETIONS_MAX`."""
        for name in [name for name in self._in_memory if name.startswith(COMPLETIONS_FOLDER)][:-COMPLETIONS_MAX]:
            del self._in_memory[name]
        if self.folder is None:
            return
        paths: list[Path] = []
        with suppress(OSError):
            paths = sorted((self.folder / COMPLETIONS_FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in paths[:-COMPLETIONS_MAX]:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _completion_file(key: str) -> str:
    return f"{COMPLETIONS_FOLDER}/{key}.json"


def _decode_file(raw: bytes | None, type: type[_Decoded]) -> _Decoded | None:
    """The decoded value; None for a missing file, or one that was not written by us."""
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=type)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
