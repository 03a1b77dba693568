"""Memory files: how they are read and edited, within their limits, by concurrent sessions."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.toolboxes import call

from holdfast.engine.tools.builtin.memory import memory_tools
from holdfast.engine.tools.definition import ToolContext, ToolEnvironment, ToolError
from holdfast.engine.tools.dispatch import Toolbox
from holdfast.errors import UserError
from holdfast.events.payloads.session import MemoryEviction, MemoryUpdated
from holdfast.sources.memory_files import (
    add_entry,
    consolidate,
    render_memory,
    replace_entry,
    user_memory,
    workspace_memory,
)
from holdfast.types.json_encoding import sha256_hex


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home" / ".holdfast"


def memory_box(workspace: Path, home: Path) -> Toolbox:
    return Toolbox(memory_tools([workspace_memory(workspace), user_memory(home)]))


def text_of(workspace: Path) -> str:
    return (workspace / ".holdfast" / "MEMORY.md").read_text()


def test_a_line_is_added_trimmed_and_only_once(workspace: Path) -> None:
    file = workspace_memory(workspace)
    add_entry(file, "  The build needs\n make 4. ")
    add_entry(file, "Tests run in order.")
    again = add_entry(file, "The build needs make 4.")
    assert again.before == again.after
    assert text_of(workspace) == "The build needs make 4.\nTests run in order.\n"


def test_a_line_is_added_without_changing_existing_text(workspace: Path) -> None:
    (workspace / ".holdfast").mkdir()
    (workspace / ".holdfast" / "MEMORY.md").write_bytes(b"one\xff\x0btwo")
    add_entry(workspace_memory(workspace), "three")
    assert (workspace / ".holdfast" / "MEMORY.md").read_bytes() == b"one\xff\x0btwo\nthree\n"


def test_a_text_is_replaced_if_it_occurs_once(workspace: Path) -> None:
    file = workspace_memory(workspace)
    consolidate(file, "aaa\nlamp\n")
    replace_entry(file, "lamp\n", "")
    assert text_of(workspace) == "aaa\n"
    for old, reason in (("lamp", "does not occur in MEMORY.md"), ("aa", "occurs more than once"), ("", "is empty")):
        with pytest.raises(UserError, match=reason):
            replace_entry(file, old, "x")
    assert text_of(workspace) == "aaa\n"


def test_a_file_is_rewritten(workspace: Path) -> None:
    file = workspace_memory(workspace)
    add_entry(file, "old")
    edit = consolidate(file, "\n new \n\n")
    assert (edit.before, edit.after, text_of(workspace)) == (b"old\n", b"new\n", "new\n")
    assert consolidate(file, " ").after == b""
    with pytest.raises(UserError, match="nothing to add"):
        add_entry(file, " \n")


@pytest.mark.parametrize(("of_user", "hard"), [(False, 4096), (True, 3072)])
def test_the_hard_limit_is_exact_and_a_refused_edit_changes_nothing(
    workspace: Path, home: Path, of_user: bool, hard: int
) -> None:
    file = user_memory(home) if of_user else workspace_memory(workspace)
    consolidate(file, "é" * ((hard - 2) // 2) + "x")
    with pytest.raises(UserError, match=f"may have {hard} bytes and would have {hard + 2}; nothing was written"):
        add_entry(file, "y")
    with pytest.raises(UserError, match=f"would have {hard + 1}"):
        consolidate(file, "z" * hard)
    path = home / "USER.md" if of_user else workspace / ".holdfast" / "MEMORY.md"
    assert path.stat().st_size == hard
    assert path.read_text().startswith("é")


async def test_beyond_the_soft_limit_the_model_is_asked_to_consolidate(workspace: Path, home: Path) -> None:
    box = memory_box(workspace, home)
    result = await call(box, "memory_consolidate", text="x" * 2047)
    assert result.text == "MEMORY.md now has 2048 bytes."
    result = await call(box, "memory_add", text="y")
    assert result.text.startswith("MEMORY.md now has 2050 bytes. That is more than the 2048 bytes it should have;")
    result = await call(box, "memory_consolidate", file="USER.md", text="x" * 1536)
    assert result.text.startswith("USER.md now has 1537 bytes. That is more than the 1536 bytes")


async def test_the_reason_for_a_refusal_reaches_the_model(workspace: Path, home: Path) -> None:
    result = await call(memory_box(workspace, home), "memory_add", text="x" * 5000)
    assert result.error_class == "execution_error"
    assert result.text == (
        "MEMORY.md may have 4096 bytes and would have 5001; nothing was written: consolidate it first."
    )


async def test_an_edit_is_on_the_log_with_its_changes(workspace: Path, home: Path) -> None:
    box = memory_box(workspace, home)
    result = await call(box, "memory_add", text="one")
    assert result.kinds == ["ToolCalled", "MemoryUpdated", "ToolCompleted"]
    assert result.recorded[1] == MemoryUpdated("MEMORY.md", "add", sha256_hex(b""), sha256_hex(b"one\n"), 0, 4)
    result = await call(box, "memory_replace", old_text="one", new_text="two\nthree")
    assert result.recorded[1] == MemoryUpdated(
        "MEMORY.md", "replace", sha256_hex(b"one\n"), sha256_hex(b"two\nthree\n"), 4, 10
    )
    result = await call(box, "memory_consolidate", text="two")
    assert result.recorded[1:3] == (
        MemoryUpdated("MEMORY.md", "consolidate", sha256_hex(b"two\nthree\n"), sha256_hex(b"two\n"), 10, 4),
        MemoryEviction("MEMORY.md", "manual", 1, 10, 4),
    )
    result = await call(box, "memory_add", text="two")
    assert (result.kinds, result.text) == (
        ["ToolCalled", "ToolCompleted"],
        "MEMORY.md says so already; nothing was changed.",
    )


async def test_lines_dropped_because_the_file_was_too_large_are_counted_as_such(workspace: Path, home: Path) -> None:
    box = memory_box(workspace, home)
    await call(box, "memory_consolidate", text="\n\n".join("x" * 700 for _ in range(3)))
    result = await call(box, "memory_consolidate", text="x")
    assert result.recorded[2] == MemoryEviction("MEMORY.md", "size_cap_exceeded", 2, 2105, 2)


def test_a_session_without_a_workspace_has_only_the_users_file(home: Path) -> None:
    specs = [tool.spec for tool in memory_tools([user_memory(home)])]
    assert [spec.name for spec in specs] == ["memory_add", "memory_consolidate", "memory_replace"]
    assert all('"enum":["USER.md"]' in spec.input_schema_json for spec in specs)


def test_a_cancelled_call_writes_nothing(workspace: Path, home: Path) -> None:
    context = ToolContext(ToolEnvironment(), tool_use_id="t")
    context.stopped.set()
    add, _, _ = memory_tools([workspace_memory(workspace)])
    with pytest.raises(ToolError, match="stopped before anything was written"):
        add.run(text="x", context=context)
    assert not (workspace / ".holdfast").exists()


def test_a_file_is_rendered_under_its_heading_and_an_empty_one_is_omitted(workspace: Path, home: Path) -> None:
    files = (user_memory(home), workspace_memory(workspace))
    assert [render_memory(file) for file in files] == ["", ""]
    add_entry(files[0], "Likes tea.")
    consolidate(files[1], " \n")
    assert [render_memory(file) for file in files] == ["## User context (USER.md)\nLikes tea.", ""]
    add_entry(files[1], "Uses make.")
    assert render_memory(files[1]) == "## Workspace memory (MEMORY.md)\nUses make."


def test_a_file_that_was_edited_beyond_its_limit_is_rendered_up_to_it(workspace: Path) -> None:
    (workspace / ".holdfast").mkdir()
    (workspace / ".holdfast" / "MEMORY.md").write_text("é" * 5_000_000)
    rendered = render_memory(workspace_memory(workspace))
    assert rendered == (
        "## Workspace memory (MEMORY.md)\n"
        + "é" * 2048
        + "\n[MEMORY.md is longer than 4096 bytes; the rest is left out]"
    )


@pytest.mark.parametrize("inner", [".holdfast", ".holdfast/MEMORY.md"])
def test_a_workspace_cannot_redirect_its_memory_to_a_file_elsewhere(
    workspace: Path, tmp_path: Path, inner: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "MEMORY.md").write_text("secret")
    (workspace / inner).parent.mkdir(exist_ok=True)
    (workspace / inner).symlink_to(elsewhere / inner.partition("/")[2])
    file = workspace_memory(workspace)
    assert render_memory(file) == ""
    with pytest.raises(UserError, match=r"MEMORY\.md is not written: "):
        add_entry(file, "x")
    assert [(path.name, path.read_text()) for path in elsewhere.iterdir()] == [("MEMORY.md", "secret")]


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_special_file_is_neither_read_nor_written(workspace: Path, kind: str) -> None:
    place = workspace / ".holdfast" / "MEMORY.md"
    place.parent.mkdir()
    place.mkdir() if kind == "folder" else os.mkfifo(place)
    assert render_memory(workspace_memory(workspace)) == ""
    with pytest.raises(UserError, match=r"MEMORY\.md cannot be written: "):
        add_entry(workspace_memory(workspace), "x")


def test_a_link_of_the_users_own_is_followed_and_preserved(home: Path, tmp_path: Path) -> None:
    home.mkdir(parents=True)
    (tmp_path / "dotfiles").mkdir()
    (home / "USER.md").symlink_to(tmp_path / "dotfiles" / "USER.md")
    add_entry(user_memory(home), "Likes tea.")
    assert (home / "USER.md").is_symlink()
    assert (tmp_path / "dotfiles" / "USER.md").read_text() == "Likes tea.\n"


def test_a_home_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"USER\.md cannot be written: its folder is not a folder"):
        add_entry(user_memory(tmp_path / "file" / "home"), "x")


def test_concurrent_sessions_lose_no_edit(workspace: Path) -> None:
    script = """
import sys
from pathlib import Path
from holdfast.sources.memory_files import add_entry, replace_entry, workspace_memory
file = workspace_memory(Path(sys.argv[1]))
for number in range(20):
    add_entry(file, f"draft {sys.argv[2]}-{number}.")
    replace_entry(file, f"draft {sys.argv[2]}-{number}.", f"line {sys.argv[2]}-{number}.")
"""
    running = [
        subprocess.Popen([sys.executable, "-c", script, str(workspace), str(number)], stderr=subprocess.PIPE)
        for number in range(4)
    ]
    assert [(process.communicate(timeout=60)[1], process.returncode) for process in running] == [(b"", 0)] * 4
    expected = sorted(f"line {number}-{inner}." for number in range(4) for inner in range(20))
    assert sorted(text_of(workspace).splitlines()) == expected


def test_an_edit_waits_no_longer_than_its_timeout(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.sources.memory_files.LOCK_SECONDS_MAX", 0.05)
    add_entry(workspace_memory(workspace), "first")
    with (workspace / ".holdfast" / "MEMORY.md.lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"MEMORY\.md is being written by somebody else; try again later"):
            add_entry(workspace_memory(workspace), "second")
    assert text_of(workspace) == "first\n"
    assert add_entry(workspace_memory(workspace), "third").after == b"first\nthird\n"
