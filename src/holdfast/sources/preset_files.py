"""Presets and personas that are stored as files: the workspace's own, else the user's."""

import os
import re
from pathlib import Path
from typing import Literal

from holdfast.errors import UserError
from holdfast.sources.files import decode_text, describe_read_error, format_path, read_regular_file

TEXT_BYTES_MAX = 200_000
NamedTextKind = Literal["presets", "personas"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_named_text(kind: NamedTextKind, name: str, *, workspace: Path | None, home: Path) -> str:
    """The text of `<kind>/<name>.md`, looked for in `<workspace>/.holdfast` and then in the home folder."""
    if not _NAME.fullmatch(name):
        raise UserError(f"{kind[:-1]} {name[:80]!r} is not a valid name: use letters, digits, '.', '_' and '-'")
    for folder in _folders(kind, workspace, home):
        path = folder / f"{name}.md"
        if os.path.lexists(path):
            return _read(path, workspace if folder.parent.parent == workspace else None)
    names = list_named_texts(kind, workspace=workspace, home=home)
    available = f"there are {', '.join(names)}" if names else f"there are no {kind} yet"
    raise UserError(f"there is no {kind[:-1]} {name!r}; {available} (files {kind}/<name>.md below .holdfast)")


def list_named_texts(kind: NamedTextKind, *, workspace: Path | None, home: Path) -> tuple[str, ...]:
    """The available names, sorted."""
    names: set[str] = set()
    for folder in _folders(kind, workspace, home):
        try:
            files = os.listdir(folder)
        except OSError:
            continue
        names |= {file[:-3] for file in files if file.endswith(".md") and _NAME.fullmatch(file[:-3])}
    return tuple(sorted(names))


def _folders(kind: NamedTextKind, workspace: Path | None, home: Path) -> tuple[Path, ...]:
    return (*((workspace / ".holdfast" / kind,) if workspace else ()), home / kind)


def _read(path: Path, within: Path | None) -> str:
    try:
        real = Path(os.path.realpath(path, strict=True))
        if within is not None and not real.is_relative_to(os.path.realpath(within)):
            raise UserError(f"{format_path(path)} is a link that leads out of the workspace; put the file itself there")
        content = read_regular_file(real, TEXT_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"{format_path(path)} {describe_read_error(error)}") from error
    if content is None:
        raise UserError(f"{format_path(path)} is not a regular file")
    if len(content.raw) > TEXT_BYTES_MAX:
        raise UserError(f"{format_path(path)} has more than {TEXT_BYTES_MAX} bytes; shorten it")
    return decode_text(content.raw).strip()
