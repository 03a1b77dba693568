"""The cache of an audit: the same figures with and without it, whatever happens to the files, to it, and in between."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.client_transcripts import START, loop, usage

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.costs.audit import audit_client_files
from holdfast.ledger.spending import AuditScope
from holdfast.replay.file_audits import SETTLED_SECONDS, AuditCache, find_client_files, read_state
from holdfast.stores.spending_cache import SpendingCache

NOW = time.time() + 3_600
"""When the files of these tests are audited: long after they were written."""

SESSIONS = st.sampled_from(["a", "b", "c"])
GAPS = st.lists(st.sampled_from([5.0, 400.0, 4_000.0]), max_size=4)
TIMES = st.sampled_from([0.0, START.timestamp() + 1, START.timestamp() + 300, START.timestamp() + 4_000])
SCOPES = st.builds(
    AuditScope,
    since=TIMES,
    until=st.sampled_from([1e300, START.timestamp() + 500, START.timestamp() + 5_000]),
    model=st.sampled_from(["", "sonnet", "haiku"]),
    ranges=st.booleans(),
)


def write(file: Path, content: bytes) -> None:
    """Write a file as a client does; the clock of the file system has a later time than at the last change."""
    before = file.stat().st_ctime_ns if file.exists() else 0
    file.write_bytes(content)
    while file.stat().st_ctime_ns == before:
        os.utime(file)


def append_calls(file: Path, gaps: Sequence[float]) -> None:
    script = loop(gaps, file.stem)
    script.model = "claude-haiku-4-5"
    lines = b"".join(msgspec.json.encode(line) + b"\n" for line in script.ask().reply(usage(0, 5_000)).lines)
    write(file, (file.read_bytes() if file.exists() else b"") + lines)


Change = Callable[[Path], None]


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """A client at work in a folder: sessions begin, grow, are forked, cut off, edited in place, and deleted."""
    name, other, gaps = draw(SESSIONS), draw(SESSIONS), draw(GAPS)
    kind = draw(st.sampled_from(["begin", "append", "fork", "cut", "edit", "delete", "break"]))

    def change(folder: Path) -> None:
        file, source = folder / f"{name}.jsonl", folder / f"{other}.jsonl"
        content = file.read_bytes() if file.exists() else b""
        match kind:
            case "begin":
                write(file, b"".join(msgspec.json.encode(line) + b"\n" for line in loop(gaps, name).lines))
            case "append":
                append_calls(file, gaps)
            case "fork" if source.exists():
                write(folder / f"{other}-fork-{name}.jsonl", source.read_bytes())
            case "cut":
                write(file, content[: len(content) // 2])
            case "edit":
                write(file, content.replace(b'"output_tokens":100', b'"output_tokens":999'))
            case "delete":
                file.unlink(missing_ok=True)
            case _:
                write(file, content + b"{broken\n")

    return change


def audit(folder: Path, scope: AuditScope, cache: AuditCache | None) -> bytes:
    files, models = find_client_files(folder), shipped_models()
    spending = audit_client_files(
        files, models, scope, wanted=None, project=None, with_context=True, cache=cache, now=NOW
    )
    return msgspec.json.encode(spending)


def audit_with_cache(folder: Path, scope: AuditScope, file: Path) -> tuple[bytes, int]:
    """The figures, and how many results were taken from the cache."""
    cache = AuditCache(SpendingCache(file, shipped_models()), ranges=scope.ranges)
    return audit(folder, scope, cache), cache.found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three sessions, one of which was forked."""
    for name in ("a", "b", "c"):
        loop([10, 600], name).write(tmp_path / "projects" / f"{name}.jsonl")
    (tmp_path / "projects" / "fork.jsonl").write_bytes((tmp_path / "projects" / "a.jsonl").read_bytes())
    return tmp_path / "projects"


@settings(max_examples=40)
@given(st.lists(st.tuples(st.lists(changes(), max_size=3), SCOPES), min_size=1, max_size=5))
def test_figures_are_the_same_with_and_without_a_cache(steps: Sequence[tuple[Sequence[Change], AuditScope]]) -> None:
    with TemporaryDirectory() as place:
        folder = Path(place) / "projects"
        folder.mkdir()
        for number, (changed, scope) in enumerate(steps):
            for change in changed:
                change(folder)
            found, _ = audit_with_cache(folder, scope, Path(place) / "cache.db")
            assert found == audit(folder, scope, None), number


@settings(max_examples=40)
@given(st.data())
def test_a_damaged_cache_is_not_believed(data: st.DataObject) -> None:
    with TemporaryDirectory() as place:
        folder, file = Path(place) / "projects", Path(place) / "cache.db"
        for name in ("a", "b"):
            loop([10, 600], name).write(folder / f"{name}.jsonl")
        expected, _ = audit_with_cache(folder, AuditScope(), file)
        content = bytearray(file.read_bytes())
        for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=50)):
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        file.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
        assert audit_with_cache(folder, AuditScope(), file)[0] == expected
        assert audit_with_cache(folder, AuditScope(), file)[0] == expected


def test_files_that_did_not_change_are_not_read_again(folder: Path, tmp_path: Path) -> None:
    first, found_first = audit_with_cache(folder, AuditScope(), tmp_path / "cache.db")
    second, found = audit_with_cache(folder, AuditScope(), tmp_path / "cache.db")
    assert second == first
    # Four files, two of which are counted together, and the curve of the worst session.
    assert (found_first, found) == (0, 6)
    append_calls(folder / "b.jsonl", [5.0])
    _, found = audit_with_cache(folder, AuditScope(), tmp_path / "cache.db")
    # The others, the two that are counted together, and the curve: the worst session is still the same.
    assert found == 5


def test_a_second_audit_loads_neither_readers_nor_planner(folder: Path, tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from holdfast.catalog.lookup import shipped_models
from holdfast.cli.costs.audit import audit_client_files
from holdfast.ledger.spending import AuditScope
from holdfast.replay.file_audits import AuditCache, find_client_files
from holdfast.stores.spending_cache import SpendingCache
cache = AuditCache(SpendingCache(Path({str(tmp_path / "cache.db")!r}), shipped_models()), ranges=False)
audit_client_files(find_client_files(Path({str(folder)!r})), shipped_models(), AuditScope(), wanted=None, project=None,
    with_context=True, cache=cache, now=time.time() + 60)
print([name for name in sys.modules if name.startswith(("holdfast.replay.", "holdfast.planning.adaptive"))])
"""
    for expected in (True, False):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert ("holdfast.replay.client_transcripts" in done.stdout) is expected
        assert ("holdfast.planning.adaptive_policy" in done.stdout) is expected


def test_a_file_that_is_being_written_is_not_kept(folder: Path) -> None:
    file = folder / "a.jsonl"
    changed_at = file.stat().st_ctime
    assert not read_state(file, changed_at + SETTLED_SECONDS / 2).stamp
    assert read_state(file, changed_at + SETTLED_SECONDS + 1).stamp


def test_other_prices_take_nothing_from_the_cache(folder: Path, tmp_path: Path) -> None:
    audit_with_cache(folder, AuditScope(), tmp_path / "cache.db")
    models = dict(shipped_models())
    row = models["anthropic:claude-sonnet-4-6"]
    models[row.id] = msgspec.structs.replace(row, context_tokens_max=row.context_tokens_max - 1)
    cache = AuditCache(SpendingCache(tmp_path / "cache.db", models), ranges=False)
    audit(folder, AuditScope(), cache)
    assert cache.found == 0


def test_without_a_place_for_the_cache_everything_is_read(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    spending, found = audit_with_cache(folder, AuditScope(), tmp_path / "home" / "cache.db")
    assert (spending, found) == (audit(folder, AuditScope(), None), 0)
