"""The output of a tool: converted into blocks that providers accept, and stored in full where it is too long to send.

Blocks are never empty, and limited in length, number and size. Stored outputs are deleted after a month, or after a
week if they take too much space.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from holdfast.sources.files import cut_utf8
from holdfast.types.blocks import Image, Text, replace_surrogates
from holdfast.types.json_encoding import sha256_hex

logger = logging.getLogger(__name__)
OUTPUT_CHARACTERS_MAX = 100_000  # About 25,000 tokens, which every later call of the session sends again.
BLOCKS_MAX = 100
IMAGES_MAX = 20
IMAGE_BYTES_MAX = 5 * 1024 * 1024
NO_OUTPUT = "(no output)"

OUTPUTS_FOLDER = "outputs"
"""The folder in Holdfast's home with a folder for each session that has long outputs."""

DAY_SECONDS = 86_400
RETENTION_SECONDS = 30 * DAY_SECONDS
RETENTION_SECONDS_MIN = 7 * DAY_SECONDS
SPILLED_BYTES_MAX = 2_000_000_000  # Of all sessions together, in the user's home.

# Bounds the time that creating a session spends on the cleanup; the rest is looked at on later runs.
FOLDERS_SCANNED_MAX = 5_000
_SUFFIX = ".txt"
OUTPUT_FILE_BYTES_MAX = 50_000_000

# O_EXCL and O_NOFOLLOW: never overwrite a file, and never follow a link that another process placed there.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

StoreFullText = Callable[[str], str | None]
"""Stores a text in full and returns a note on where it is; None if it cannot be stored."""


def to_content_blocks(
    output: object, keep: StoreFullText | None = None, *, characters_max: int = OUTPUT_CHARACTERS_MAX
) -> tuple[Text | Image, ...]:
    """The output as blocks; a text that is too long is cut to its head and tail, and stored in full by `keep`."""
    content: list[Text | Image]
    match output:
        case Text() | Image():
            content = [output]
        case str():
            content = [Text(output)]
        case [*blocks] if blocks and all(isinstance(block, Text | Image) for block in blocks):
            content = [block for block in blocks if isinstance(block, Text | Image)]
        case None:
            content = [Text(NO_OUTPUT)]
        case _:
            # Sorted keys: equal results are equal bytes in the history.
            content = [Text(msgspec.json.encode(output, order="sorted").decode())]
    limited = [_sendable(block) for block in _limit_count(content)]
    share = _fair_share([len(block.text) for block in limited if isinstance(block, Text)], characters_max)
    return tuple(_shortened(block, share, keep) if isinstance(block, Text) else block for block in limited)


def truncate_middle(text: str, characters_max: int = OUTPUT_CHARACTERS_MAX, *, whole: str = "") -> str:
    """The text without lone surrogates, cut to its head and tail if it is too long.

    `whole` is a note for the gap that says where the full text is.
    """
    text = replace_surrogates(text)
    if len(text) <= characters_max:
        return text
    # Computed with the longest possible gap, so that the result never exceeds the maximum.
    room = max(0, characters_max - len(truncation_note(len(text), whole)))
    # Three quarters for the head, one for the tail, which often holds the error or the result.
    head = room * 3 // 4
    return text[:head] + truncation_note(len(text) - room, whole) + text[len(text) - room + head :]


def truncation_note(left_out: int, whole: str = "", *, unit: str = "characters") -> str:
    """The note in place of the text that was left out; `whole` says where the full text is."""
    return f"\n[... {left_out} {unit} left out{whole and '; ' + whole} ...]\n"


def _shortened(block: Text, characters_max: int, keep: StoreFullText | None) -> Text:
    whole = keep(block.text) if keep is not None and len(block.text) > characters_max else None
    return Text(truncate_middle(block.text, characters_max, whole=whole or ""))


def _limit_count(blocks: Sequence[Text | Image]) -> list[Text | Image]:
    """As many of the first blocks as a result may have; a last one says how many were left out."""
    images = 0
    included: list[Text | Image] = []
    for block in blocks:
        images += isinstance(block, Image)
        if isinstance(block, Text) or images <= IMAGES_MAX:
            included.append(block)
    if len(included) == len(blocks) <= BLOCKS_MAX:
        return included
    included = included[: BLOCKS_MAX - 1]
    left_out = len(blocks) - len(included)
    limits = f"a result holds at most {BLOCKS_MAX} blocks, of them {IMAGES_MAX} images"
    return [*included, Text(f"[... {left_out} blocks left out: {limits} ...]")]


def _sendable(block: Text | Image) -> Text | Image:
    if isinstance(block, Text):
        # Anthropic rejects empty text blocks, and JSON encoders reject lone surrogates.
        text = replace_surrogates(block.text)
        return Text(text if text.strip() else NO_OUTPUT)
    size = len(msgspec.json.encode(block.source))
    if size <= IMAGE_BYTES_MAX:
        return block
    return Text(f"[an image of {size} bytes left out: an image may have at most {IMAGE_BYTES_MAX} bytes]")


def _fair_share(lengths: Sequence[int], room: int) -> int:
    """The length to which texts are cut so that all fit; short texts leave their unused share to the long ones."""
    # From the shortest up: a text below an equal share of what is left takes only its length, and the rest is shared
    # by the longer ones. The first text above its share fixes the share of all that follow.
    whole = room
    for number, length in enumerate(sorted(lengths)):
        share = room // (len(lengths) - number)
        if length > share:
            return share
        room -= length
    return whole


class SpilledOutputs(msgspec.Struct, frozen=True):
    """The spilled outputs of one session."""

    folder: Path
    used_at: float
    count: int = 0
    size_bytes: int = 0


def find_outputs(root: Path, session_id: str) -> SpilledOutputs | None:
    """The outputs of one session below `root`; None if there are none."""
    # The id comes from a caller and must not lead out of the folder.
    if session_id in ("", "..") or Path(session_id).name != session_id:
        return None
    return _read_folder(root / session_id)


def mark_used(folder: Path) -> None:
    """Set the folder's time of last use to now, if it exists."""
    with contextlib.suppress(OSError):
        os.utime(folder, follow_symlinks=False)


def delete_outputs(outputs: SpilledOutputs) -> None:
    """Delete the output files of one session and its folder; a folder with other files in it stays."""
    with contextlib.suppress(OSError):
        for file in _files(outputs.folder):
            with contextlib.suppress(OSError):
                os.unlink(file.path)
        os.rmdir(outputs.folder)


def delete_old_outputs(root: Path, *, now: float, bytes_max: int = SPILLED_BYTES_MAX) -> tuple[Path, ...]:
    """Delete outputs unused for a month, and while all exceed `bytes_max` the oldest of those unused for a week.

    Returns the deleted folders. Never raises: what cannot be deleted stays.
    """
    # Least recently used first; the path makes the order deterministic.
    by_age = sorted(_folders(root), key=lambda outputs: (outputs.used_at, str(outputs.folder)))
    excess = sum(outputs.size_bytes for outputs in by_age) - bytes_max
    deleted = []
    for outputs in by_age:
        unused_seconds = now - outputs.used_at
        if unused_seconds > RETENTION_SECONDS or (excess > 0 and unused_seconds > RETENTION_SECONDS_MIN):
            delete_outputs(outputs)
            excess -= outputs.size_bytes
            deleted.append(outputs.folder)
    return tuple(deleted)


def _folders(root: Path) -> Iterator[SpilledOutputs]:
    try:
        with os.scandir(root) as entries:
            for _, entry in zip(range(FOLDERS_SCANNED_MAX), entries, strict=False):
                outputs = _read_folder(Path(entry.path))
                if outputs is not None:
                    yield outputs
    except OSError:
        return


def _read_folder(folder: Path) -> SpilledOutputs | None:
    try:
        status = os.lstat(folder)
        if not stat.S_ISDIR(status.st_mode):
            return None
        files = [entry.stat(follow_symlinks=False) for entry in _files(folder)]
    except OSError:
        return None
    used_at = max((status.st_mtime, *(file.st_mtime for file in files)))
    return SpilledOutputs(folder, used_at, len(files), sum(file.st_size for file in files))


def _files(folder: Path) -> "list[os.DirEntry[str]]":
    with os.scandir(folder) as entries:
        return [entry for entry in entries if entry.name.endswith(_SUFFIX) and entry.is_file(follow_symlinks=False)]


def create_spill_file(folder: Path, tool_use_id: str) -> tuple[int, Path]:
    """Create a file that only the user can read, opened for writing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The id comes from the provider and may contain anything; its digest is always a valid file name.
    stem = sha256_hex(tool_use_id.encode("utf-8", "surrogatepass"))[:16]
    number = 1
    while True:
        path = folder / f"{stem}-{number}.txt"
        try:
            return os.open(path, _FLAGS, 0o600), path
        except FileExistsError:
            number += 1


def spill_output(folder: Path, tool_use_id: str, text: str) -> str | None:
    """Store a text in full and return a note on where it is; None if it cannot be written."""
    content, is_cut = cut_utf8(text, OUTPUT_FILE_BYTES_MAX)
    try:
        descriptor, path = create_spill_file(folder, tool_use_id)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode())
    except OSError as error:
        logger.warning("a long output could not be written to %s: %s", folder, error)
        return None
    whole = text.encode()
    return f"{spill_note(path, len(whole), cut=is_cut)}, sha:{sha256_hex(whole)[:8]}"


def spill_note(path: Path, size: int, *, cut: bool) -> str:
    content = f"the first {OUTPUT_FILE_BYTES_MAX} of {size} bytes" if cut else f"all {size} bytes"
    return f"{content} are in {path}"
