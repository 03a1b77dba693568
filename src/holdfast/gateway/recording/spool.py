"""A durable queue in files between the gateway and its recorder: what was appended survives a kill of either process.

A spool is a folder of segment files. One process appends frames, another reads them and notes how far it came; segments
that were read completely are deleted. Both hold a lock on the folder while they run, so that a later process can tell a
spool in use from one that was left behind.
"""

import fcntl
import logging
import os
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, Thread
from typing import IO

import msgspec

logger = logging.getLogger("holdfast.gateway")

SEGMENT_BYTES_MAX = 64 * 1024 * 1024
"""A segment is deleted as a whole, so this bounds how long bodies stay on disk after they were recorded."""

IDLE_SEGMENT_SECONDS = 5.0
"""After this long without a call, a new segment begins, so that the bodies in the old one can be deleted."""

UNWRITTEN_BYTES_MAX = 64 * 1024 * 1024
"""Frames that the disk does not take at the moment, as when it is full; what comes on top of them is lost."""

RESERVED_BYTES = 8 * 1024 * 1024
"""On top, for frames without bodies that end a call which has begun."""

FRAME_BYTES_MAX = 512 * 1024 * 1024
"""A larger length is no frame of ours. A message has at most three bodies of 32 MiB."""

RETRY_SECONDS = 0.5
CHUNK_BYTES = 256 * 1024
_FRAME_HEAD = struct.Struct(">II")  # Length and CRC-32 of the payload.
_SEGMENT_NAME = re.compile(r"(\d{8})\.frames")
_CHECKPOINT, _WRITER_LOCK, _READER_LOCK = "checkpoint", "writer.lock", "reader.lock"


class SpoolPosition(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The place between two frames: a segment, and a byte in it."""

    segment: int = 1
    offset: int = 0


class SpoolWriter:
    """Appends frames in a thread of its own; `append` and `call_when_durable` never block and never raise.

    If the disk refuses, frames wait in memory up to a limit, and callers are not kept waiting for durability.
    """

    def __init__(
        self,
        folder: Path,
        *,
        on_written: Callable[[], None] = lambda: None,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
        unwritten_bytes_max: int = UNWRITTEN_BYTES_MAX,
        idle_seconds: float = IDLE_SEGMENT_SECONDS,
    ) -> None:
        # Under its name only once it is locked: to others an unlocked spool is an abandoned one.
        unnamed = folder.with_name(f".{folder.name}")
        unnamed.mkdir(mode=0o700, parents=True)
        self._lock = _try_lock(unnamed / _WRITER_LOCK)
        unnamed.rename(folder)
        self._folder = folder
        self._on_written = on_written
        self._segment_bytes_max, self._unwritten_bytes_max = segment_bytes_max, unwritten_bytes_max
        self._idle_seconds = idle_seconds
        self._changed = Condition()
        self._frames: list[bytes] = []
        self._frame_bytes = 0
        self._waiting: list[Callable[[], None]] = []
        self._closed = False
        self._position = SpoolPosition()
        self._file = _open_segment(folder, self._position.segment)
        self._is_name_durable = self._has_torn_frame = False
        self.error = ""
        """Why frames cannot be written at the moment; empty if they can."""
        self._thread = Thread(target=self._run, name="holdfast-spool", daemon=True)
        self._thread.start()

    def append(self, payload: bytes, *, may_use_reserve: bool = False) -> bool:
        """Queues a frame; false if it is lost because too many are waiting for the disk."""
        head = _FRAME_HEAD.pack(len(payload), zlib.crc32(payload))
        bytes_max = self._unwritten_bytes_max + (RESERVED_BYTES if may_use_reserve else 0)
        with self._changed:
            if self._closed or self._frame_bytes + len(payload) > bytes_max:
                return False
            self._frames += (head, payload)
            self._frame_bytes += len(head) + len(payload)
            self._changed.notify()
            return True

    def call_when_durable(self, callback: Callable[[], None]) -> None:
        """Calls back, in another thread, once everything appended so far is on disk, or cannot be written."""
        with self._changed:
            self._waiting.append(callback)
            self._changed.notify()

    def close(self) -> None:
        """Writes what is queued, if the disk takes it, and releases the folder."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        os.close(self._file)
        if self._lock is not None:
            self._lock.close()

    def _run(self) -> None:
        while True:
            with self._changed:
                idle_seconds = self._idle_seconds if self._position.offset else None
                has_work = self._changed.wait_for(lambda: self._frames or self._waiting or self._closed, idle_seconds)
                frames, waiting = self._frames, self._waiting
                self._frames, self._waiting = [], []
            if not has_work:
                with suppress(OSError):
                    self._start_segment()
                    self._on_written()
                continue
            if not frames and not waiting:
                return
            written = self._write(frames, durable=bool(waiting))
            for callback in waiting:
                callback()
            if frames:
                self._on_written()
            with self._changed:
                if written:
                    self._frame_bytes -= sum(map(len, frames))
                    continue
                self._frames = [*frames, *self._frames]
                if self._closed:
                    return
                # Not before some time: a full disk stays full for longer than that.
                self._changed.wait_for(lambda: self._closed or self._waiting, RETRY_SECONDS)

    def _write(self, frames: list[bytes], *, durable: bool) -> bool:
        """False if nothing was written: part of a frame would hide all later ones from the reader."""
        size_bytes = sum(map(len, frames))
        try:
            if self._position.offset and self._position.offset + size_bytes > self._segment_bytes_max:
                self._start_segment()
            if self._has_torn_frame:
                self._cut_torn_frame()
            try:
                _write_all(self._file, frames)
                if durable:
                    os.fdatasync(self._file)
                    self._sync_name()
            except OSError:
                self._has_torn_frame = True
                self._cut_torn_frame()
                raise
        except OSError as error:
            self.error = error.strerror or type(error).__name__
            return False
        self.error = ""
        self._position = msgspec.structs.replace(self._position, offset=self._position.offset + size_bytes)
        return True

    def _cut_torn_frame(self) -> None:
        os.ftruncate(self._file, self._position.offset)
        self._has_torn_frame = False

    def _start_segment(self) -> None:
        # A record that counts as durable may be in the old segment only.
        os.fdatasync(self._file)
        # Nothing may fail once the new one exists: a reader that sees it does not come back to the old one.
        file = _open_segment(self._folder, self._position.segment + 1)
        os.close(self._file)
        self._file, self._position = file, SpoolPosition(self._position.segment + 1)
        self._is_name_durable = False

    def _sync_name(self) -> None:
        """The name of a new file is durable only with its folder."""
        if not self._is_name_durable:
            directory = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
            self._is_name_durable = True


class SpoolReader:
    """Reads the frames after the checkpoint. Holds the reader's lock; raises BlockingIOError if another has it."""

    def __init__(self, folder: Path) -> None:
        lock = _try_lock(folder / _READER_LOCK)
        if lock is None:
            raise BlockingIOError(f"{folder} is being read by another process")
        self._lock = lock
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._open_segment = 0
        # What was read of the open segment, and where it starts: one read for many small frames.
        self._chunk, self._chunk_start = b"", 0
        self._damaged: set[SpoolPosition] = set()
        self.checkpoint = self._load_checkpoint()
        self.position = self.checkpoint

    @property
    def backlog_bytes(self) -> int:
        """How much was written and not read."""
        sizes = {segment: _size_of(self._path(segment)) for segment in self._segments()}
        later = sum(size for segment, size in sizes.items() if segment > self.position.segment)
        return max(0, sizes.get(self.position.segment, 0) - self.position.offset) + later

    @property
    def has_writer(self) -> bool:
        """Whether the process that writes this spool is alive."""
        lock = _try_lock(self._folder / _WRITER_LOCK)
        if lock is None:
            return True
        lock.close()
        return False

    @property
    def is_at_end(self) -> bool:
        """Whether no complete frame follows: only part of one, if its writer was killed while it wrote."""
        before, is_at_end = self.position, next(self.read_frames(), None) is None
        if is_at_end:
            self._note_damage()
        self.position = before
        return is_at_end

    @property
    def damaged_count(self) -> int:
        """Places from which on the rest of a segment cannot be read; how many frames that were is not known."""
        return len(self._damaged)

    def rewind(self) -> None:
        """Continues at the checkpoint."""
        self.position = self.checkpoint

    def read_frames(self) -> Iterator[bytes]:
        """The complete frames from `position` on, which moves along; ends where no complete frame follows yet."""
        while True:
            payload = self._read_frame()
            if payload is not None:
                yield payload
            elif not self._move_to_next_segment():
                return

    def save_checkpoint(self, position: SpoolPosition) -> None:
        """Everything before `position` is recorded and never read again."""
        if position == self.checkpoint:
            return
        temporary = self._folder / f"{_CHECKPOINT}.new"
        temporary.write_bytes(msgspec.json.encode(position))
        temporary.replace(self._folder / _CHECKPOINT)
        self.checkpoint = position
        for segment in self._segments():
            if segment < position.segment:
                self._path(segment).unlink(missing_ok=True)

    def close(self, *, delete: bool = False) -> None:
        """With `delete`, also removes the spool."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if delete:
            for path in (*map(self._path, self._segments()), self._folder / _CHECKPOINT, self._folder / _WRITER_LOCK):
                path.unlink(missing_ok=True)
            (self._folder / _READER_LOCK).unlink(missing_ok=True)
            with suppress(OSError):
                self._folder.rmdir()
        self._lock.close()

    def _read_frame(self) -> bytes | None:
        file, position = self._open_at(self.position.segment), self.position
        if file is None:
            return None
        head = self._read_bytes(file, position.offset, _FRAME_HEAD.size)
        if len(head) < _FRAME_HEAD.size:
            return None
        length, checksum = _FRAME_HEAD.unpack(head)
        if length > FRAME_BYTES_MAX:
            return None
        payload = self._read_bytes(file, position.offset + _FRAME_HEAD.size, length)
        # After a power failure a file can have its length without its contents.
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return None
        self.position = SpoolPosition(position.segment, position.offset + _FRAME_HEAD.size + length)
        return payload

    def _read_bytes(self, file: IO[bytes], offset: int, size_bytes: int) -> bytes:
        """Up to so many bytes of the open segment; fewer where it ends, which is looked at again each time."""
        start = offset - self._chunk_start
        if start < 0 or start + size_bytes > len(self._chunk):
            if size_bytes > CHUNK_BYTES:
                return os.pread(file.fileno(), size_bytes, offset)
            self._chunk, self._chunk_start, start = os.pread(file.fileno(), CHUNK_BYTES, offset), offset, 0
        return self._chunk[start : start + size_bytes]

    def _move_to_next_segment(self) -> bool:
        """False if there is none. The writer starts one only after the last frame of the one before is complete."""
        later = min((segment for segment in self._segments() if segment > self.position.segment), default=None)
        # Read again: the segment may have grown after its end was seen and before the next one was.
        if later is None or self._read_ahead():
            return later is not None
        self._note_damage()
        self.position = SpoolPosition(later)
        return True

    def _note_damage(self) -> None:
        """Nothing can be read of the open segment from here on. A frame that is not complete was never confirmed."""
        file, offset = self._open_at(self.position.segment), self.position.offset
        left = _size_of(self._path(self.position.segment)) - offset - _FRAME_HEAD.size
        if file is None or left < 0:
            return
        length, _ = _FRAME_HEAD.unpack(os.pread(file.fileno(), _FRAME_HEAD.size, offset))
        if (length <= left or length > FRAME_BYTES_MAX) and self.position not in self._damaged:
            self._damaged.add(self.position)
            logger.warning("the last %d bytes of a spooled segment are damaged, and are not recorded", left)

    def _read_ahead(self) -> bool:
        before = self.position
        found = self._read_frame() is not None
        self.position = before
        return found

    def _open_at(self, segment: int) -> IO[bytes] | None:
        if self._file is None or self._open_segment != segment:
            if self._file is not None:
                self._file.close()
                self._file = None
            try:
                self._file = self._path(segment).open("rb")
                self._chunk, self._chunk_start = b"", 0
            except FileNotFoundError:
                return None
            self._open_segment = segment
        return self._file

    def _load_checkpoint(self) -> SpoolPosition:
        try:
            return msgspec.json.decode((self._folder / _CHECKPOINT).read_bytes(), type=SpoolPosition)
        except (FileNotFoundError, msgspec.MsgspecError):
            return SpoolPosition(min(self._segments(), default=1))

    def _segments(self) -> list[int]:
        matches = (_SEGMENT_NAME.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def _path(self, segment: int) -> Path:
        return _segment_path(self._folder, segment)


@contextmanager
def open_spool(folder: Path, *, seconds_max: float = 0.0) -> Iterator[SpoolReader]:
    """The reader of a spool; waits up to `seconds_max` while another process reads it. Raises BlockingIOError."""
    deadline = time.monotonic() + seconds_max
    while True:
        try:
            reader = SpoolReader(folder)
            break
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.05)
    try:
        yield reader
    finally:
        reader.close()


def find_abandoned_spools(root: Path, *, own: Path) -> list[Path]:
    """Spools beside `own` that no gateway writes any more, oldest first."""
    abandoned: list[Path] = []
    # Other folders may stand beside it where a user has chosen the place.
    spools = (lock.parent for lock in root.glob(f"[!.]*/{_WRITER_LOCK}") if lock.parent != own)
    for folder in sorted(spools):
        with suppress(OSError), open_spool(folder) as reader:
            if not reader.has_writer:
                abandoned.append(folder)
    return abandoned


def _segment_path(folder: Path, segment: int) -> Path:
    return folder / f"{segment:08d}.frames"


def _open_segment(folder: Path, segment: int) -> int:
    flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
    return os.open(_segment_path(folder, segment), flags, 0o600)


def _write_all(file: int, frames: list[bytes]) -> None:
    view = memoryview(b"".join(frames))
    while view:
        view = view[os.write(file, view) :]


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _try_lock(path: Path) -> IO[bytes] | None:
    """The lock, which the process holds until the file is closed; None if another one has it."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file
