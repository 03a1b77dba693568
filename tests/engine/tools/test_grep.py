"""The grep tool: a stable order of matches, and bounds on time and size for any pattern."""

from pathlib import Path

import pytest
from tests.support.toolboxes import ENVIRON, builtin_toolbox, call

from holdfast.engine.tools.builtin.grep import MATCHES_SHOWN_MAX, SEARCHED_FILE_BYTES_MAX, make_grep_files
from holdfast.engine.tools.definition import ToolEnvironment, tool
from holdfast.engine.tools.dispatch import Toolbox
from holdfast.sources.confined_paths import resolve_roots


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "b" / "two.txt").write_bytes(b"nothing\r\nA lamp\r\n")
    (tmp_path / "a.txt").write_text("lamp\nLAMP\n")
    (tmp_path / "c.bin").write_bytes(b"\0lamp")
    (tmp_path / ".git" / "config").write_text("lamp")
    (tmp_path / "link").symlink_to("a.txt")
    return tmp_path


async def test_matches_are_shown_in_order_of_path_and_line(workspace: Path) -> None:
    box = builtin_toolbox(workspace)
    assert (await call(box, "grep_files", pattern="lamp$")).text == "a.txt:1: lamp\nb/two.txt:2: A lamp"
    both = await call(box, "grep_files", pattern="lamp$", ignore_case=True, path="./a.txt")
    assert both.text == "a.txt:1: lamp\na.txt:2: LAMP"
    assert (await call(box, "grep_files", pattern="chair")).text == "(no matches)"


async def test_a_limit_says_how_many_matches_are_left_out(workspace: Path) -> None:
    outcome = await call(builtin_toolbox(workspace), "grep_files", pattern="(?i)lamp", limit=2)
    assert outcome.text == "a.txt:1: lamp\na.txt:2: LAMP\n[1 more matches left out; 3 in 2 files]"


async def test_files_that_are_too_large_to_search_are_counted(workspace: Path) -> None:
    with (workspace / "large").open("wb") as file:
        file.truncate(SEARCHED_FILE_BYTES_MAX + 1)
    outcome = await call(builtin_toolbox(workspace), "grep_files", pattern="chair")
    assert outcome.text == "[1 files of more than 5000000 bytes not searched]"


async def test_a_long_line_is_shown_around_its_match(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x" * 5_000 + "lamp" + "y" * 5_000)
    outcome = await call(builtin_toolbox(tmp_path), "grep_files", pattern="lamp")
    assert outcome.text == "a:1: ..." + "x" * 100 + "lamp" + "y" * 196 + "..."


async def test_a_pattern_that_never_ends_is_stopped_and_earlier_matches_are_shown(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("aaa\n")
    (tmp_path / "b").write_text("a" * 60 + "!\n")
    search = tool(make_grep_files(ENVIRON, seconds_max=1), paths=["path"])
    box = Toolbox([search], environment=ToolEnvironment("s", resolve_roots(tmp_path)))
    outcome = await call(box, "grep_files", pattern="^(a+)+$")
    first, note = outcome.text.split("\n")
    assert first == "a:1: aaa"
    assert note.startswith("[the search was stopped after 1 s;")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"pattern": "("}, "The pattern is not valid: missing ), unterminated subpattern at position 0."),
        ({"pattern": ""}, "The pattern must have 1 to 1000 characters."),
        ({"pattern": "x" * 1001}, "The pattern must have 1 to 1000 characters."),
        ({"pattern": "x", "limit": 0}, "limit must be between 1 and 200."),
        ({"pattern": "x", "limit": MATCHES_SHOWN_MAX + 1}, "limit must be between 1 and 200."),
        ({"pattern": "x", "path": "missing"}, "'missing' does not exist."),
    ],
)
async def test_an_invalid_search_says_why(workspace: Path, arguments: dict[str, int], reason: str) -> None:
    outcome = await call(builtin_toolbox(workspace), "grep_files", **arguments)
    assert (outcome.error_class, outcome.text) == ("execution_error", reason)


async def test_a_search_that_cannot_be_started_is_an_error(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(workspace / "no-python"))
    assert (await call(builtin_toolbox(workspace), "grep_files", pattern="x")).text == "The search failed."


async def test_matches_of_many_files_fit_in_one_result(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}.txt").write_text("x" * 400 + "\n")
    lines = (await call(builtin_toolbox(tmp_path), "grep_files", pattern="x", limit=200)).text.split("\n")
    assert (len(lines), lines[0][:10], lines[-1]) == (
        201,
        "000.txt:1:",
        "[100 more matches left out; 300 in 300 files]",
    )
