"""The file tools: what they show and change, and that nothing outside the workspace can be reached."""

import asyncio
import os
import threading
from pathlib import Path

import pytest
from tests.support.toolboxes import CallOutcome, builtin_toolbox, call

from holdfast.engine.tools.builtin.files import (
    ENTRIES_SHOWN_MAX,
    FILE_BYTES_MAX,
    LINE_CHARACTERS_MAX,
    SHOWN_CHARACTERS_MAX,
    make_edit_tools,
    read_file,
)
from holdfast.engine.tools.definition import ToolContext, ToolEnvironment, ToolError
from holdfast.errors import UserError
from holdfast.events.payloads.calls import ToolCompleted
from holdfast.events.payloads.union import AnyPayload
from holdfast.runtime.tools import builtin_tools
from holdfast.sources.confined_paths import PATH_BYTES_MAX, resolve_roots, write_atomically
from holdfast.types.blocks import ToolUse


def test_the_built_in_tools_are_sorted_and_can_be_chosen() -> None:
    names = [tool.spec.name for tool in builtin_tools()]
    assert names == ["edit_file", "grep_files", "list_dir", "read_file", "run_command", "write_file"]
    assert [tool.spec.name for tool in builtin_tools(["read_file", "list_dir"])] == ["list_dir", "read_file"]
    with pytest.raises(UserError, match="there is no built-in tool 'rm'; there are edit_file, "):
        builtin_tools(["rm"])


def test_the_built_in_tools_declare_their_side_effects() -> None:
    declared = {tool.spec.name: tool.side_effects for tool in builtin_tools()}
    assert declared == {
        "edit_file": "write",
        "grep_files": "read",
        "list_dir": "read",
        "read_file": "read",
        "run_command": "execute",
        "write_file": "write",
    }


async def test_a_file_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n\r\n\xff four\n")
    assert (await call(builtin_toolbox(tmp_path), "read_file", path="a.txt")).text == "one\ntwo\n\n\ufffd four"


async def test_a_part_of_a_file_says_how_to_read_more(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour")
    box = builtin_toolbox(tmp_path)
    outcome = await call(box, "read_file", path="a.txt", offset=2, limit=2)
    assert outcome.text == "two\nthree\n[lines 2 to 3 of 4; offset=4 shows more]"
    assert (await call(box, "read_file", path="a.txt", offset=4)).text == "four"
    assert (await call(box, "read_file", path="a.txt", offset=5)).text == "'a.txt' has 4 lines; there is no line 5."
    for wrong in ({"offset": 0}, {"limit": 0}):
        assert (await call(box, "read_file", path="a.txt", **wrong)).text == "offset and limit are counted from 1."


async def test_a_long_file_is_shown_up_to_a_limit_and_can_be_read_to_its_end(tmp_path: Path) -> None:
    lines = [f"{number:0999}" for number in range(100)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    box = builtin_toolbox(tmp_path)
    first = (await call(box, "read_file", path="a.txt")).text.split("\n")
    assert first[-1] == "[lines 1 to 60 of 100; offset=61 shows more]"
    assert len("\n".join(first[:-1])) < SHOWN_CHARACTERS_MAX
    assert first[:-1] + (await call(box, "read_file", path="a.txt", offset=61)).text.split("\n") == lines


async def test_a_long_line_is_cut(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * (LINE_CHARACTERS_MAX + 5) + "\n" + "y" * LINE_CHARACTERS_MAX)
    text = (await call(builtin_toolbox(tmp_path), "read_file", path="a.txt")).text
    cut = "x" * LINE_CHARACTERS_MAX + " [... 5 characters of this line left out ...]"
    assert text == cut + "\n" + "y" * LINE_CHARACTERS_MAX


async def test_binary_and_oversized_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "empty").write_bytes(b"")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(FILE_BYTES_MAX + 1)
    box = builtin_toolbox(tmp_path)
    assert (await call(box, "read_file", path="binary")).text == "'binary' is not a text file."
    assert (await call(box, "read_file", path="empty")).text == "(the file is empty)"
    assert "has more than 20000000 bytes" in (await call(box, "read_file", path="large")).text


async def test_a_utf_16_file_is_read_edited_and_stays_utf_16(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\ufeffgrün\r\nblau\r\n".encode("utf-16-le"))
    box = builtin_toolbox(tmp_path)
    await call(box, "edit_file", path="a.txt", old_text="grün\nblau", new_text="rot\ngelb\nblau")
    assert (tmp_path / "a.txt").read_bytes() == "\ufeffrot\r\ngelb\r\nblau\r\n".encode("utf-16-le")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00\xd8")
    assert (await call(box, "read_file", path="b.txt")).text == "'b.txt' is not a text file."


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder beside the workspace, with a file that the model must not reach."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("secret")
    return folder


@pytest.fixture
def workspace(tmp_path: Path, outside: Path) -> Path:
    """A workspace full of links and paths that lead out of it."""
    folder = tmp_path / "workspace"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "inside.txt").write_text("inside")
    (folder / "link_file").symlink_to(outside / "secret.txt")
    (folder / "link_folder").symlink_to(outside)
    (folder / "link_relative").symlink_to("../outside/secret.txt")
    (folder / "deep" / "link_up").symlink_to("../..")
    (folder / "link_twice").symlink_to("deep/link_up/outside")
    (folder / "link_proc").symlink_to("/proc/self/root")
    (folder / "link_inside").symlink_to("deep/../inside.txt")
    (folder / "link_absolute").symlink_to(folder / "inside.txt")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    return folder


ESCAPING_PATHS = [
    "../outside/secret.txt",
    "deep/../../outside/secret.txt",
    "link_file",
    "link_folder/secret.txt",
    "link_relative",
    "deep/link_up/outside/secret.txt",
    "link_twice/secret.txt",
    "link_proc/etc/passwd",
    "/etc/passwd",
    "/proc/self/root/etc/passwd",
    "//etc/passwd",
    "deep/link_up/workspace/../outside/secret.txt",
]


async def try_every_tool(workspace: Path, path: str, *, read_only: Path | None = None) -> list[CallOutcome]:
    box = builtin_toolbox(workspace, read_only=[read_only] if read_only else [])
    return [
        await call(box, "read_file", path=path),
        await call(box, "write_file", path=path, content="changed"),
        await call(box, "edit_file", path=path, old_text="secret", new_text="changed"),
        await call(box, "list_dir", path=path),
        await call(box, "grep_files", pattern="secret", path=path),
    ]


@pytest.mark.parametrize("path", ESCAPING_PATHS)
async def test_no_path_leads_out_of_the_workspace(workspace: Path, outside: Path, path: str) -> None:
    for outcome in await try_every_tool(workspace, path):
        assert (outcome.error_class, outcome.kinds) == ("permission_denied", ["ToolFailed"])
        assert "secret\n" not in outcome.text
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("secret.txt", "secret")]


def test_a_folder_replaced_by_a_link_during_a_read_does_not_escape(workspace: Path, outside: Path) -> None:
    """The file that was checked is the file that is opened, so there is no moment for a swap."""
    (workspace / "deep" / "secret.txt").write_text("inside")
    (workspace / "lure").symlink_to(outside)
    context = ToolContext(ToolEnvironment("s", resolve_roots(workspace)), tool_use_id="t")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for before, after in (("deep", "aside"), ("lure", "deep"), ("deep", "lure"), ("aside", "deep")):
                (workspace / before).rename(workspace / after)

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen = set()
    for _ in range(500):
        try:
            seen.add(read_file("deep/secret.txt", context))
        except ToolError:
            continue
    over.set()
    swapping.join(5)
    assert seen <= {"inside"}


@pytest.mark.parametrize("path", ["pipe", "loop", "deep", ".", "", "inside.txt/x", "x" * 300, "missing/x"])
async def test_a_path_that_is_not_a_file_is_an_error_and_never_blocks(workspace: Path, path: str) -> None:
    before = sorted(str(path) for path in workspace.rglob("*"))
    box = builtin_toolbox(workspace)
    for name, others in (("read_file", {}), ("edit_file", {"old_text": "a", "new_text": "b"})):
        outcome = await call(box, name, path=path, **others)
        assert outcome.error_class == "execution_error"
        assert outcome.text.endswith(".")
        assert "\n" not in outcome.text
    assert sorted(str(path) for path in workspace.rglob("*")) == before


@pytest.mark.parametrize("path", ["a\0b", "x" * (PATH_BYTES_MAX + 1)])
async def test_a_path_that_no_file_can_have_is_refused(workspace: Path, path: str) -> None:
    assert {outcome.error_class for outcome in await try_every_tool(workspace, path)} == {"validation_error"}


@pytest.mark.parametrize("path", ["link_inside", "link_absolute", "inside.txt", "./deep/../inside.txt", "inside.txt/."])
async def test_links_within_the_workspace_are_followed(workspace: Path, path: str) -> None:
    box = builtin_toolbox(workspace)
    assert (await call(box, "read_file", path=path)).text == "inside"
    assert not (await call(box, "edit_file", path=path, old_text="in", new_text="out")).result.is_error
    assert (workspace / "inside.txt").read_text() == "outside"
    assert (workspace / "link_inside").is_symlink()


async def test_absolute_paths_within_the_workspace_are_accepted_through_any_alias(
    workspace: Path, tmp_path: Path
) -> None:
    (tmp_path / "alias").symlink_to(workspace)
    box = builtin_toolbox(tmp_path / "alias")
    for root in (workspace, tmp_path / "alias"):
        assert (await call(box, "read_file", path=f"{root}/inside.txt")).text == "inside"
    assert (await call(box, "read_file", path=f"{workspace}-other/x")).error_class == "permission_denied"


async def test_a_read_only_folder_can_be_read_and_not_written(workspace: Path, outside: Path) -> None:
    read, written, edited, listed, found = await try_every_tool(workspace, f"{outside}/secret.txt", read_only=outside)
    assert read.text == "secret"
    assert [written.error_class, edited.error_class] == ["permission_denied"] * 2
    assert written.text.endswith("may be read but not written.")
    assert listed.error_class == "execution_error"
    assert found.text == f"{outside}/secret.txt:1: secret"
    assert (outside / "secret.txt").read_text() == "secret"


@pytest.mark.parametrize("path", ["deep/er/a", "deep/er/in/a", "way/a", "deep/../way/a", "{root}/deep/er/a"])
async def test_a_read_only_folder_inside_the_workspace_cannot_be_written_by_any_path(
    workspace: Path, path: str
) -> None:
    (workspace / "deep" / "er" / "a").write_text("secret")
    (workspace / "way").symlink_to("deep/er")
    outcomes = await try_every_tool(workspace, path.format(root=workspace), read_only=workspace / "deep" / "er")
    assert [outcome.error_class for outcome in outcomes[1:3]] == ["permission_denied"] * 2
    assert [str(path.relative_to(workspace)) for path in (workspace / "deep" / "er").rglob("*")] == ["deep/er/a"]
    assert (workspace / "deep" / "er" / "a").read_text() == "secret"
    assert not (await call(builtin_toolbox(workspace), "write_file", path="deep/b", content="x")).result.is_error


async def test_a_new_file_is_written_with_its_folders(tmp_path: Path) -> None:
    outcome = await call(builtin_toolbox(tmp_path), "write_file", path="a/b/c.txt", content="grün\n")
    assert outcome.text == "Wrote a/b/c.txt (6 bytes)."
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "grün\n"
    completed = outcome.recorded[-1]
    assert isinstance(completed, ToolCompleted)
    assert completed.files_modified == ("a/b/c.txt",)


async def test_a_replaced_file_keeps_its_mode_and_line_endings(tmp_path: Path) -> None:
    script = tmp_path / "run.bat"
    script.write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    script.chmod(0o754)
    outcome = await call(builtin_toolbox(tmp_path), "write_file", path="run.bat", content="c\nd\r\n")
    assert outcome.text == "Replaced run.bat (9 bytes)."
    assert script.read_bytes() == b"\xef\xbb\xbfc\r\nd\r\n"
    assert script.stat().st_mode & 0o777 == 0o754
    assert [path.name for path in tmp_path.iterdir()] == ["run.bat"]


async def test_mixed_line_endings_are_left_unchanged(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a\r\nb\nc\xff")
    outcome = await call(builtin_toolbox(tmp_path), "edit_file", path="a", old_text="b\n", new_text="B\n")
    assert outcome.text == "Replaced the passage at line 2 of a."
    assert (tmp_path / "a").read_bytes() == b"a\r\nB\nc\xff"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("x", "y", "old_text does not occur in 'a'; read the file and give it exactly as it stands there."),
        ("aa", "b", "old_text occurs more than once in 'a'; give more of what surrounds it."),
        ("", "b", "old_text is empty; to fill a file use write_file."),
        ("aaa", "aaa", "old_text and new_text are the same; nothing would change."),
    ],
)
async def test_an_ambiguous_or_empty_edit_changes_nothing(tmp_path: Path, old: str, new: str, reason: str) -> None:
    (tmp_path / "a").write_text("aaa\n")
    outcome = await call(builtin_toolbox(tmp_path), "edit_file", path="a", old_text=old, new_text=new)
    assert (outcome.error_class, outcome.text) == ("execution_error", reason)
    assert (tmp_path / "a").read_text() == "aaa\n"


async def test_parallel_edits_of_one_file_are_all_applied(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("".join(f"<{number}>\n" for number in range(20)))
    calls = [
        ToolUse(str(number), "edit_file", f'{{"path":"a","old_text":"<{number}>","new_text":"[{number}]"}}')
        for number in range(20)
    ]

    async def record(payload: AnyPayload) -> None: ...

    await builtin_toolbox(tmp_path).run_calls(calls, record)
    assert (tmp_path / "a").read_text() == "".join(f"[{number}]\n" for number in range(20))


def test_a_stopped_call_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    context = ToolContext(ToolEnvironment("s", resolve_roots(tmp_path)), tool_use_id="t")
    context.stopped.set()
    write_file, edit_file = make_edit_tools()
    with pytest.raises(ToolError, match="stopped before anything was written"):
        write_file("a", "new", context)
    with pytest.raises(ToolError, match="stopped before anything was written"):
        edit_file("a", "old", "new", context)
    assert (tmp_path / "a").read_text() == "old"


def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").write_text("old")
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with pytest.raises(IsADirectoryError):
            write_atomically(folder, "a", b"new")
        with pytest.raises(TypeError):
            write_atomically(folder, "b", "no bytes")  # type: ignore[arg-type]
    finally:
        os.close(folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert (tmp_path / "b").read_text() == "old"


def test_a_leftover_temporary_file_does_not_block_a_write(tmp_path: Path) -> None:
    leftover = tmp_path / f".holdfast-{os.getpid()}-{threading.get_ident()}-0.tmp"
    leftover.write_text("left over")
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        write_atomically(folder, "a", b"new")
    finally:
        os.close(folder)
    assert ((tmp_path / "a").read_text(), leftover.read_text()) == ("new", "left over")


async def test_a_folder_is_listed_by_name(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "B").write_text("")
    (tmp_path / "a\nb").write_text("")
    (tmp_path / "link").symlink_to("b")
    assert (await call(builtin_toolbox(tmp_path), "list_dir")).text == "B\na\ufffdb\nb/\nlink -> b"
    assert (await call(builtin_toolbox(tmp_path), "list_dir", path="b")).text == "(the folder is empty)"


async def test_a_large_folder_says_how_many_entries_are_left_out(tmp_path: Path) -> None:
    for number in range(ENTRIES_SHOWN_MAX + 2):
        (tmp_path / f"{number:05}").touch()
    lines = (await call(builtin_toolbox(tmp_path), "list_dir")).text.split("\n")
    assert (lines[0], lines[-2:]) == ("00000", ["00999", "[2 further entries left out]"])


async def test_a_file_without_write_permission_is_left_unchanged(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everything")
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o444)
    outcome = await asyncio.wait_for(call(builtin_toolbox(tmp_path), "write_file", path="a", content="new"), 5)
    assert outcome.text == "'a' may not be read or written by this user."
