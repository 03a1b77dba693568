"""Writes tool outputs that are too long to send to files, which the session's model and user can read."""

import logging
import os
from pathlib import Path

from holdfast.canonical.encoding import digest
from holdfast.sources.text import cut_utf8

logger = logging.getLogger(__name__)

OUTPUT_FILE_BYTES_MAX = 50_000_000

# O_EXCL and O_NOFOLLOW: never overwrite a file, and never follow a link that another process placed there.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def create_output(folder: Path, tool_use_id: str) -> tuple[int, Path]:
    """Create a file that only the user can read, opened for writing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The id comes from the provider and may contain anything; its digest is always a valid file name.
    stem = digest(tool_use_id.encode("utf-8", "surrogatepass"))[:16]
    number = 1
    while True:
        path = folder / f"{stem}-{number}.txt"
        try:
            return os.open(path, _FLAGS, 0o600), path
        except FileExistsError:
            number += 1


def keep_output(folder: Path, tool_use_id: str, text: str) -> str | None:
    """Store a text in full and return a note on where it is; None if it cannot be written."""
    content, is_cut = cut_utf8(text, OUTPUT_FILE_BYTES_MAX)
    try:
        descriptor, path = create_output(folder, tool_use_id)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode())
    except OSError as error:
        logger.warning("a long output could not be written to %s: %s", folder, error)
        return None
    whole = text.encode()
    return f"{where_kept(path, len(whole), cut=is_cut)}, sha:{digest(whole)[:8]}"


def where_kept(path: Path, size: int, *, cut: bool) -> str:
    content = f"the first {OUTPUT_FILE_BYTES_MAX} of {size} bytes" if cut else f"all {size} bytes"
    return f"{content} are in {path}"
