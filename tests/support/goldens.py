"""Compares bytes with a golden file; `make golden` rewrites the files."""

import difflib
import os
from pathlib import Path


def is_writing_goldens() -> bool:
    return os.environ.get("HOLDFAST_GOLDEN") == "write"


def check_golden(path: Path, actual: bytes) -> None:
    if is_writing_goldens():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(actual)
        return
    assert path.is_file(), f"there is no {path.name} yet; `make golden` writes it"
    agreed = path.read_bytes()
    assert actual == agreed, difference(path.name, agreed, actual)


def difference(name: str, agreed: bytes, actual: bytes) -> str:
    lines = difflib.unified_diff(
        agreed.decode(errors="replace").splitlines(),
        actual.decode(errors="replace").splitlines(),
        "agreed",
        "actual",
        lineterm="",
        n=2,
    )
    shown = "\n".join(lines) or "the lines are equal, their endings are not"
    return f"{name} has changed; if that is meant, `make golden` rewrites it\n{shown}"
