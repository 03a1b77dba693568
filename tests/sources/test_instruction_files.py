"""Which instruction files an agent gets, in which order, and what is skipped."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import UserError
from holdfast.sources.files import SourceFinding
from holdfast.sources.instruction_files import InstructionFile, InstructionFiles, read_instructions

ALL_KINDS = (
    "AGENTS.md",
    "CLAUDE.md",
    "CLAUDE.local.md",
    ".claude/CLAUDE.md",
    ".holdfast/instructions.md",
    ".holdfast/rules/a.md",
    ".holdfast/rules/b.mdc",
    ".holdfast/rules/c.txt",
)


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder that looks like a git root to the instruction file reader."""
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    return root


def paths(files: InstructionFiles) -> list[str]:
    return [file.path for file in files.files]


def text_of_only_file(files: InstructionFiles) -> str:
    (file,) = files.files
    return file.text


def reason_for(files: InstructionFiles, subject: str) -> str:
    (finding,) = [candidate for candidate in files.findings if candidate.subject == subject]
    return finding.reason


def test_the_home_file_comes_first_then_the_root_then_the_working_folder(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home / "AGENTS.md", "from home")
    write(project / "AGENTS.md", "from the root")
    write(project / "a" / "AGENTS.md", "from a")
    write(project / "a" / "b" / "CLAUDE.md", "from b")
    assert read_instructions(project / "a" / "b", home) == InstructionFiles(
        files=(
            InstructionFile("~/AGENTS.md", "from home", False),
            InstructionFile("AGENTS.md", "from the root", False),
            InstructionFile("a/AGENTS.md", "from a", False),
            InstructionFile("a/b/CLAUDE.md", "from b", False),
        ),
        omitted=0,
        findings=(),
    )


def test_a_folder_is_read_in_a_fixed_order(project: Path) -> None:
    for name in reversed(ALL_KINDS):
        write(project / name, f"this is {name}")
    assert paths(read_instructions(project)) == list(ALL_KINDS)


def test_the_home_folder_has_two_kinds_of_files_only(project: Path, tmp_path: Path) -> None:
    for name in ALL_KINDS:
        write(tmp_path / "home" / name, f"this is {name}")
    assert paths(read_instructions(project, tmp_path / "home")) == ["~/AGENTS.md", "~/CLAUDE.md"]


def test_folders_beside_and_below_the_working_folder_are_not_read(project: Path) -> None:
    write(project / "a" / "AGENTS.md", "on the way")
    write(project / "b" / "AGENTS.md", "beside")
    write(project / "a" / "c" / "AGENTS.md", "below")
    assert paths(read_instructions(project / "a")) == ["a/AGENTS.md"]


def test_folders_above_the_git_root_are_not_read(project: Path) -> None:
    write(project.parent / "AGENTS.md", "above")
    write(project / "AGENTS.md", "inside")
    assert text_of_only_file(read_instructions(project)) == "inside"


def test_the_nearest_git_root_counts_and_may_be_a_file(project: Path) -> None:
    write(project / "AGENTS.md", "outer")
    write(project / "inner" / ".git", "gitdir: elsewhere")
    write(project / "inner" / "deep" / "AGENTS.md", "inner")
    assert paths(read_instructions(project / "inner" / "deep")) == ["deep/AGENTS.md"]


def test_without_a_git_root_only_the_working_folder_is_read(tmp_path: Path) -> None:
    write(tmp_path / "AGENTS.md", "above")
    write(tmp_path / "here" / "AGENTS.md", "here")
    assert read_instructions(tmp_path / "here").files == (InstructionFile("AGENTS.md", "here"),)


def test_rules_are_files_with_a_known_extension_sorted_by_name(project: Path) -> None:
    for name in ("z.md", "B.md", "a.txt", "m.mdc", "é.md", "ignored.json", "md", "README"):
        write(project / ".holdfast" / "rules" / name, name)
    assert [Path(path).name for path in paths(read_instructions(project))] == [
        "B.md",
        "a.txt",
        "m.mdc",
        "z.md",
        "é.md",
    ]


def test_only_the_first_rules_are_read_and_the_rest_are_counted(project: Path) -> None:
    for number in range(5):
        write(project / ".holdfast" / "rules" / f"{number}.md", f"rule {number}")
    assert read_instructions(project, rules_max=5).omitted == 0
    files = read_instructions(project, rules_max=3)
    assert (len(files.files), files.omitted) == (3, 2)
    assert files.findings == (SourceFinding(".holdfast/rules", "2 files after the first 3 were not read"),)


def test_without_files_there_is_no_text_and_no_finding(project: Path, tmp_path: Path) -> None:
    assert read_instructions(project, tmp_path / "no-such-home") == InstructionFiles()


def test_a_file_in_place_of_a_folder_is_ignored(project: Path) -> None:
    write(project / ".claude", "a file")
    write(project / ".holdfast", "a file")
    assert read_instructions(project) == InstructionFiles()


def test_a_working_folder_that_does_not_exist_is_a_finding(tmp_path: Path) -> None:
    missing = tmp_path / "gone"
    assert read_instructions(missing) == InstructionFiles(
        findings=(SourceFinding(str(missing), "cannot be read (ENOENT)"),)
    )


@pytest.mark.parametrize(("name", "expected"), [("a\0b", "a\ufffdb"), ("a\ud800b", "a\ufffd\ufffd\ufffdb")])
def test_an_invalid_folder_name_is_a_finding(name: str, expected: str) -> None:
    files = read_instructions(Path(name), Path(name))
    assert [finding.subject for finding in files.findings] == ["~", expected]
    assert all(finding.reason.startswith("cannot be read (") for finding in files.findings)


# --- limits


def test_a_file_at_the_limit_is_complete_and_one_character_more_is_cut(project: Path) -> None:
    write(project / "AGENTS.md", "x" * 4_000)
    assert read_instructions(project).files == (InstructionFile("AGENTS.md", "x" * 4_000, False),)
    write(project / "AGENTS.md", "x" * 4_001)
    assert read_instructions(project).files == (InstructionFile("AGENTS.md", "x" * 4_000, True),)


def test_the_limit_counts_characters_and_not_bytes(project: Path) -> None:
    write(project / "AGENTS.md", "\U0001f980" * 4_000)
    assert read_instructions(project).files == (InstructionFile("AGENTS.md", "\U0001f980" * 4_000, False),)


def test_white_space_around_the_text_does_not_count(project: Path) -> None:
    write(project / "AGENTS.md", "\n" * 60_000 + "x" * 4_000 + "\n  \n")
    assert read_instructions(project).files == (InstructionFile("AGENTS.md", "x" * 4_000, False),)


def test_files_at_the_total_limit_are_complete(project: Path) -> None:
    for name, letter in zip(("AGENTS.md", "CLAUDE.md", "CLAUDE.local.md"), "abc", strict=True):
        write(project / name, letter * 4_000)
    files = read_instructions(project)
    assert [(len(file.text), file.is_truncated) for file in files.files] == [(4_000, False)] * 3
    assert files.omitted == 0


def test_files_beyond_the_total_limit_are_counted_and_named(project: Path) -> None:
    for name in ALL_KINDS[:5]:
        write(project / name, name + "x" * (4_000 - len(name)))
    files = read_instructions(project)
    assert (len(files.files), files.omitted) == (3, 2)
    assert files.findings == (
        SourceFinding(".claude/CLAUDE.md", "left out: the limit of 12000 characters is used up"),
        SourceFinding(".holdfast/instructions.md", "left out: the limit of 12000 characters is used up"),
    )


def test_the_file_that_reaches_the_total_limit_is_cut_there(project: Path) -> None:
    write(project / "AGENTS.md", "a" * 6)
    write(project / "CLAUDE.md", "b" * 5)
    assert read_instructions(project, total_chars_max=10).files == (
        InstructionFile("AGENTS.md", "aaaaaa", False),
        InstructionFile("CLAUDE.md", "bbbb", True),
    )
    assert read_instructions(project, total_chars_max=11).files[1] == InstructionFile("CLAUDE.md", "bbbbb", False)


def test_blank_files_are_not_counted_as_omitted(project: Path) -> None:
    write(project / "AGENTS.md", "aaa")
    write(project / "CLAUDE.md", "aaa\n")
    write(project / "CLAUDE.local.md", " \n\t\n")
    files = read_instructions(project, total_chars_max=3)
    assert (len(files.files), files.omitted) == (1, 0)


def test_a_limit_below_one_is_refused_by_name(project: Path) -> None:
    with pytest.raises(UserError, match=r"file_chars_max is 0: .* at least 1"):
        read_instructions(project, file_chars_max=0)
    with pytest.raises(UserError, match=r"total_chars_max is -1: .* at least 1"):
        read_instructions(project, total_chars_max=-1)
    with pytest.raises(UserError, match=r"rules_max is 0: .* at least 1$"):
        read_instructions(project, rules_max=0)


def test_a_limit_of_one_is_allowed(project: Path) -> None:
    write(project / "AGENTS.md", "xyz")
    files = read_instructions(project, file_chars_max=1, total_chars_max=1, rules_max=1)
    assert files.files == (InstructionFile("AGENTS.md", "x", True),)


def test_a_huge_file_is_not_read_completely(project: Path) -> None:
    with open(project / "AGENTS.md", "wb") as file:
        file.write(b"start ")
        file.truncate(64 << 30)  # Sparse: it takes no room on the disk.
    (files,) = read_instructions(project).files
    assert (files.text[:7], len(files.text), files.is_truncated) == ("start \ufffd", 4_000, True)


def test_a_file_that_is_blank_as_far_as_it_is_read_says_so(project: Path) -> None:
    write(project / "AGENTS.md", b" " * 200_000 + b"late")
    files = read_instructions(project)
    assert files.files == ()
    assert reason_for(files, "AGENTS.md") == "starts with too much blank space"


def test_a_character_split_by_the_read_limit_is_omitted(project: Path) -> None:
    bytes_read = 4 * 4_000 + 65_536
    write(project / "AGENTS.md", b" " * (bytes_read - 3) + "a€".encode())
    assert read_instructions(project).files == (InstructionFile("AGENTS.md", "a", True),)
    write(project / "AGENTS.md", b" " * (bytes_read - 4) + "a€".encode())
    assert read_instructions(project).files == (InstructionFile("AGENTS.md", "a€", False),)


# --- identical texts


def test_identical_texts_appear_once_at_the_first_position(project: Path) -> None:
    write(project / "AGENTS.md", "one\n\ntwo")
    write(project / "a" / "CLAUDE.md", "\n\none  \n\n\n \ntwo\n\n")
    files = read_instructions(project / "a")
    assert files.files == (InstructionFile("AGENTS.md", "one\n\ntwo"),)
    assert reason_for(files, "a/CLAUDE.md") == "has the same text as AGENTS.md"


@pytest.mark.parametrize("other", ["one\ntwo", "one\n\n  two", "one two", "One\n\ntwo"])
def test_texts_that_differ_in_more_than_blank_lines_both_appear(project: Path, other: str) -> None:
    write(project / "AGENTS.md", "one\n\ntwo")
    write(project / "CLAUDE.md", other)
    assert paths(read_instructions(project)) == ["AGENTS.md", "CLAUDE.md"]


def test_long_texts_that_differ_only_after_the_cut_both_appear(project: Path) -> None:
    write(project / "AGENTS.md", "x" * 10 + "1")
    write(project / "CLAUDE.md", "x" * 10 + "2")
    assert len(read_instructions(project, file_chars_max=10).files) == 2


# --- hostile files


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"\xef\xbb\xbfwith a mark", "with a mark"),
        (b"one\r\ntwo\rthree\n", "one\ntwo\nthree"),
        (b"a\0b", "a\ufffdb"),
        (b"caf\xe9 au lait", "caf\ufffd au lait"),
        (b"cut \xe2\x82", "cut \ufffd"),
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),
    ],
)
def test_bytes_become_text_that_can_be_sent(project: Path, raw: bytes, text: str) -> None:
    write(project / "AGENTS.md", raw)
    assert text_of_only_file(read_instructions(project)) == text


@pytest.mark.parametrize("raw", [b"", b" \n\t\r\n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_skipped_with_a_finding(project: Path, raw: bytes) -> None:
    write(project / "AGENTS.md", raw)
    assert read_instructions(project) == InstructionFiles(findings=(SourceFinding("AGENTS.md", "empty"),))


def test_a_link_inside_the_project_is_followed(project: Path) -> None:
    write(project / "docs" / "rules.md", "linked")
    (project / "AGENTS.md").symlink_to("docs/rules.md")
    assert read_instructions(project).files == (InstructionFile("AGENTS.md", "linked"),)


@pytest.mark.parametrize("name", ["AGENTS.md", ".claude/CLAUDE.md", ".holdfast/rules/x.md"])
def test_a_link_that_leads_out_of_the_project_is_refused(project: Path, tmp_path: Path, name: str) -> None:
    secret = write(tmp_path / "secret.md", "secret")
    (project / name).parent.mkdir(parents=True, exist_ok=True)
    (project / name).symlink_to(secret)
    files = read_instructions(project)
    assert files == InstructionFiles(
        findings=(SourceFinding(name, "not read: it is a link that leads out of its folder"),)
    )


def test_a_folder_that_is_a_link_out_of_the_project_is_refused(project: Path, tmp_path: Path) -> None:
    write(tmp_path / "outside" / "rules" / "x.md", "secret")
    write(tmp_path / "outside" / "instructions.md", "secret")
    (project / ".holdfast").symlink_to(tmp_path / "outside")
    files = read_instructions(project)
    assert (files.files, files.omitted) == ((), 0)
    assert reason_for(files, ".holdfast/rules") == "not read: it is a link that leads out of the project"
    assert reason_for(files, ".holdfast/instructions.md") == "not read: it is a link that leads out of its folder"


def test_a_folder_whose_name_starts_like_the_project_is_outside_of_it(project: Path) -> None:
    sibling = write(project.parent / "project-two" / "secret.md", "secret")
    (project / "AGENTS.md").symlink_to(sibling)
    assert read_instructions(project).files == ()


def test_in_the_home_folder_a_link_that_leads_out_is_followed_and_reported(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "AGENTS.md").symlink_to(write(tmp_path / "dotfiles" / "agents.md", "mine"))
    assert read_instructions(project, home) == InstructionFiles(
        files=(InstructionFile("~/AGENTS.md", "mine"),),
        findings=(SourceFinding("~/AGENTS.md", "followed, though it is a link that leads out of its folder"),),
    )


def test_a_home_folder_that_is_a_link_is_still_the_home_folder(project: Path, tmp_path: Path) -> None:
    write(tmp_path / "real" / "AGENTS.md", "mine")
    (tmp_path / "home").symlink_to(tmp_path / "real")
    assert read_instructions(project, tmp_path / "home") == InstructionFiles((InstructionFile("~/AGENTS.md", "mine"),))


def test_a_home_folder_that_is_a_loop_of_links_is_a_finding(project: Path, tmp_path: Path) -> None:
    (tmp_path / "home").symlink_to("home")
    files = read_instructions(project, tmp_path / "home")
    assert files == InstructionFiles(findings=(SourceFinding("~", "cannot be read (ELOOP)"),))


def test_loops_of_links_and_dangling_links_are_findings(project: Path) -> None:
    (project / "AGENTS.md").symlink_to("AGENTS.md")
    (project / "CLAUDE.md").symlink_to("nowhere.md")
    (project / ".holdfast").mkdir()
    (project / ".holdfast" / "rules").symlink_to("rules")
    files = read_instructions(project)
    assert (files.files, files.omitted) == ((), 0)
    assert set(files.findings) == {
        SourceFinding("AGENTS.md", "cannot be read (ELOOP)"),
        SourceFinding("CLAUDE.md", "cannot be read (ENOENT)"),
        SourceFinding(".holdfast/rules", "cannot be read (ELOOP)"),
    }


def test_a_loop_of_folders_is_walked_once(project: Path) -> None:
    write(project / "AGENTS.md", "here")
    (project / "again").symlink_to(".")
    assert paths(read_instructions(project / "again" / "again")) == ["AGENTS.md"]


def test_pipes_and_folders_with_the_name_of_a_file_are_skipped_without_waiting(project: Path) -> None:
    os.mkfifo(project / "AGENTS.md")
    (project / "CLAUDE.md").mkdir()
    files = read_instructions(project)
    assert files == InstructionFiles(
        findings=(
            SourceFinding("AGENTS.md", "not read: it is not a regular file"),
            SourceFinding("CLAUDE.md", "not read: it is not a regular file"),
        )
    )


def test_a_socket_with_the_name_of_a_file_is_skipped(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)  # A socket's whole path may be too long for its address.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("AGENTS.md")
        assert reason_for(read_instructions(project), "AGENTS.md") == "cannot be read (ENXIO)"


def test_reading_leaves_no_file_open(project: Path) -> None:
    os.mkfifo(project / "AGENTS.md")
    (project / "CLAUDE.md").mkdir()
    write(project / "CLAUDE.local.md", "text")
    before = len(os.listdir("/proc/self/fd"))
    read_instructions(project)
    assert len(os.listdir("/proc/self/fd")) == before


UNREADABLE = """
import os, tempfile
from pathlib import Path
from holdfast.sources.instruction_files import read_instructions
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
with tempfile.TemporaryDirectory(dir="/tmp") as folder:
    root = Path(folder)
    (root / ".git").mkdir()
    (root / "AGENTS.md").write_text("secret")
    (root / "AGENTS.md").chmod(0)
    (root / ".holdfast" / "rules").mkdir(parents=True)
    (root / ".holdfast" / "rules").chmod(0)
    (root / "CLAUDE.md").write_text("open")
    found = read_instructions(root)
    (root / ".holdfast" / "rules").chmod(0o700)
    print([file.path for file in found.files], [(one.subject, one.reason) for one in found.findings])
"""


def test_an_unreadable_file_is_a_finding_and_the_rest_is_read() -> None:
    run = subprocess.run([sys.executable, "-c", UNREADABLE], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == (
        "['CLAUDE.md'] [('.holdfast/rules', 'cannot be read (EACCES)'), ('AGENTS.md', 'cannot be read (EACCES)')]"
    ), run.stderr


def test_names_cannot_break_out_of_their_line(project: Path) -> None:
    folder = project / "a\n# System"
    write(folder / "AGENTS.md", "text")
    write(Path(os.fsdecode(os.fsencode(folder / ".holdfast/rules") + b"/\xff\x1b.md")), "rule")
    assert paths(read_instructions(folder)) == [
        "a\ufffd# System/AGENTS.md",
        "a\ufffd# System/.holdfast/rules/\ufffd\ufffd.md",
    ]


SHOW = """
import sys
from pathlib import Path
from holdfast.sources.instruction_files import read_instructions
found = read_instructions(Path(sys.argv[1]), Path(sys.argv[2]))
sys.stdout.buffer.write(repr(found).encode("utf-8", "backslashreplace"))
"""


def test_the_result_is_the_same_in_every_process(project: Path, tmp_path: Path) -> None:
    write(tmp_path / "home" / "AGENTS.md", "home")
    for name in ("ß.md", "z.md", "Ä.md", "a.md", "\U0001f980.txt"):
        write(project / "ö" / ".holdfast" / "rules" / name, name)
    (project / "ö" / "CLAUDE.md").mkdir()
    # Plain ASCII as the file system's encoding: names reach Python with surrogate escapes.
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    worlds = (
        ({"PYTHONHASHSEED": "1", "LC_ALL": "C.utf8"}, tmp_path),
        ({"PYTHONHASHSEED": "2", **ascii_only}, project),
        ({"PYTHONHASHSEED": "3", "LANG": "de_DE.ISO-8859-1", "TZ": "Asia/Tokyo"}, Path("/")),
    )
    expected = {
        subprocess.run(
            [sys.executable, "-c", SHOW, str(project / "ö"), str(tmp_path / "home")],
            env={"PATH": os.environ["PATH"], **world},
            cwd=cwd,
            capture_output=True,
            check=True,
        ).stdout
        for world, cwd in worlds
    }
    assert expected == {repr(read_instructions(project / "ö", tmp_path / "home")).encode()}


def test_the_creation_order_of_files_does_not_matter(tmp_path: Path) -> None:
    files = []
    for number, names in enumerate((ALL_KINDS, tuple(reversed(ALL_KINDS)))):
        root = tmp_path / str(number)
        for name in names:
            write(root / name, f"this is {name}")
        files.append(read_instructions(root))
    assert files[0] == files[1]
