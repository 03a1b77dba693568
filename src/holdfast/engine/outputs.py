"""Where outputs are kept that are too long to be sent: files of a session, for its user and its model to read."""

import logging
import os
from pathlib import Path

from holdfast.canonical.encoding import digest
from holdfast.sources.text import cut_utf8

logger = logging.getLogger(__name__)

OUTPUT_FILE_BYTES_MAX = 50_000_000

_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def create_output(folder: Path, tool_use_id: str) -> tuple[int, Path]:
    """A new file that only its user can read, opened for writing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # An id is whatever the provider sent: its digest is a name in every case.
    stem = digest(tool_use_id.encode("utf-8", "surrogatepass"))[:16]
    number = 1
    while True:
        path = folder / f"{stem}-{number}.txt"
        try:
            return os.open(path, _FLAGS, 0o600), path
        except FileExistsError:
            number += 1


def keep_output(folder: Path, tool_use_id: str, text: str) -> str | None:
    """Keep a text whole, and say where; None where the disk does not take it."""
    kept, cut = cut_utf8(text, OUTPUT_FILE_BYTES_MAX)
    try:
        opened, path = create_output(folder, tool_use_id)
        with os.fdopen(opened, "wb") as file:
            file.write(kept.encode())
    except OSError as error:
        logger.warning("a long output could not be kept in %s: %s", folder, error)
        return None
    whole = text.encode()
    return f"{where_kept(path, len(whole), cut=cut)}, sha:{digest(whole)[:8]}"


def where_kept(path: Path, size: int, *, cut: bool) -> str:
    held = f"the first {OUTPUT_FILE_BYTES_MAX} of {size} bytes" if cut else f"all {size} bytes"
    return f"{held} are in {path}"
