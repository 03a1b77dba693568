"""Confined paths: with any combination of links and `..`, nothing outside of the root is read or written."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.sources.confined_paths import (
    EscapeError,
    PathError,
    Roots,
    locate_path,
    open_parent,
    read_regular_at,
    resolve_roots,
    write_atomically,
)

STEPS = ("a", "b", "..", ".", "", "up", "out", "file", "round", "missing", "/", "~", "\n", "é")
paths = st.lists(st.sampled_from(STEPS), max_size=8).map("/".join) | st.text(max_size=30)
targets = st.lists(st.sampled_from(("a", "b", "..", "up", "out", "file")), min_size=1, max_size=6).map("/".join)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder).resolve()
        root = top / "root"
        (root / "a" / "b").mkdir(parents=True)
        (top / "file").write_text("outside")
        for inner in (root / "file", root / "a" / "file", root / "a" / "b" / "file"):
            inner.write_text("inside")
        for where in (root, root / "a", root / "a" / "b"):
            (where / "up").symlink_to("..")
            (where / "out").symlink_to(top)
            (where / "round").symlink_to("round/round")
        yield top


def read(roots: Roots, path: str) -> str | None:
    try:
        with open_parent(locate_path(roots, path)) as (folder, name):
            return read_regular_at(folder, name, 100).decode()
    except (EscapeError, PathError):
        return None


def write(roots: Roots, path: str) -> None:
    try:
        with open_parent(locate_path(roots, path, writing=True), make_folders=True) as (folder, name):
            write_atomically(folder, name, b"inside")
    except (EscapeError, PathError):
        return


@given(path=paths)
def test_no_path_reads_a_file_outside_of_the_root(place: Path, path: str) -> None:
    assert read(resolve_roots(place / "root"), path) in (None, "inside")


@given(path=paths)
def test_a_path_reads_the_file_it_resolves_to(place: Path, path: str) -> None:
    root = place / "root"
    if read(resolve_roots(root), path) is not None:
        resolved = Path(os.path.realpath(root / path))
        assert resolved.is_relative_to(root)
        assert resolved.read_text() == "inside"


@given(target=targets, absolute=st.booleans(), path=paths)
def test_no_link_leads_out_of_the_root(place: Path, target: str, absolute: bool, path: str) -> None:
    root = place / "root"
    symlink = root / "link"
    symlink.symlink_to(f"{root}/{target}" if absolute else target)
    try:
        assert read(resolve_roots(root), f"link/{path}") in (None, "inside")
        assert read(resolve_roots(root), "link") in (None, "inside")
    finally:
        symlink.unlink()


@given(path=paths)
def test_no_path_writes_a_file_outside_of_the_root(place: Path, path: str) -> None:
    write(resolve_roots(place / "root"), path)
    assert sorted(entry.name for entry in place.iterdir()) == ["file", "root"]
    assert (place / "file").read_text() == "outside"


@given(path=paths)
def test_every_opened_folder_is_closed(place: Path, path: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    read(resolve_roots(place / "root"), path)
    assert len(os.listdir("/proc/self/fd")) == before
