"""Skill discovery: invalid entries do not stop the rest, where links may lead, and when a file is read again."""

import logging
import os
import socket
from pathlib import Path

import pytest
from tests.support.skill_folders import library_of, names_in, rules_of, write_raw, write_skill

from holdfast.sources.files import read_regular_file
from holdfast.sources.skills import discovery
from holdfast.sources.skills.discovery import SkillLimits, SkillRoot
from holdfast.sources.skills.library import check_skill, load_skills, read_skill_library, skill_roots
from holdfast.sources.skills.skill import SKILL_MODES, SkillMode, SkillReport

unless_root = pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")


def report_of_bad(root: Path, name: str = "bad", mode: SkillMode = "seed") -> SkillReport:
    """The report on one folder, after everything else in its root has loaded."""
    library = library_of(root, mode)
    assert "good" in library.store
    [report] = [candidate for candidate in library.reports if os.path.basename(candidate.path) == name]
    return report


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_skill(tmp_path / "skills", "good")
    return tmp_path / "skills"


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        (b"---\nname: bad\ndescription: \xff\xfe\n---\n", "encoding"),
        (b"---\nname: bad\ndescription: x\0y\n---\n", "yaml"),
        (b"---\nname: bad\ndescription: x\x07y\n---\n", "yaml"),
        (b"---\nname: bad\ndescription: " + b"[" * 60_000 + b"\n---\n", "nesting"),
        (b"---\nname: bad\ndescription: " + b"{a: " * 15_000 + b"\n---\n", "nesting"),
        (b"---\nname: bad\n" + b"- " * 20_000 + b"\n---\n", "yaml"),
        (b"---\na: &a []\nb: &b [" + b"*a, " * 900 + b"]\nc: [" + b"*b, " * 900 + b"]\nname: bad\n---\n", "alias"),
        (b"---\nname: bad\nb: &b " + b"x" * 30_000 + b"\nc: [*b, *b]\n---\n", "alias"),
        (b"---\nname: bad\na: &a [[[[x]]]]\nb: &b [[[[*a]]]]\n---\n", "nesting"),
        (b"---\nname: bad\nb: {? &b [x] : y, ? *b : z}\n---\n", "yaml"),
        (b"---\nname: bad\nmetadata: {<<: 3}\n---\n", "yaml"),
        (b"---\nname: bad\nmetadata: {a: =}\n---\n", "yaml"),
        (b"---\nname: bad\ndescription: !!binary aGk=\n---\n", "tag"),
        (b"---\n%YAML 3.0\n---\nname: bad\n", "yaml"),
        (b"\xff\xfe-\x00-\x00-\x00\n\x00", "opening"),
    ],
)
def test_arbitrary_bytes_do_not_stop_the_rest_from_loading(root: Path, raw: bytes, rule: str) -> None:
    write_raw(root, "bad", raw)
    assert rule in rules_of(report_of_bad(root))


def test_an_impossible_date_is_text(root: Path) -> None:
    write_skill(root, "dated", more="metadata:\n  since: 2024-02-31\n  until: 2024-99-99T99:99:99Z\n")
    skill = library_of(root).store.get("dated")
    assert skill is not None
    assert skill.metadata == {"since": "2024-02-31", "until": "2024-99-99T99:99:99Z"}


@pytest.mark.parametrize("mode", SKILL_MODES)
def test_a_huge_file_is_not_read(root: Path, mode: SkillMode) -> None:
    write_skill(root, "bad")
    with (root / "bad" / "SKILL.md").open("r+b") as file:
        file.truncate(100_000_000)
    assert rules_of(report_of_bad(root, mode=mode)) == ["too-large"]


def test_a_file_at_the_size_limit_is_read(root: Path) -> None:
    raw = b"---\nname: big\ndescription: x\n---\n"
    write_raw(root, "big", raw + b"x" * (discovery.FILE_BYTES_MAX - len(raw)))
    assert names_in(root) == ["big", "good"]
    write_raw(root, "big", raw + b"x" * (discovery.FILE_BYTES_MAX - len(raw) + 1))
    assert names_in(root) == ["good"]


def test_a_special_file_is_not_waited_for(root: Path) -> None:
    for name in ("a-folder", "a-pipe"):
        (root / name).mkdir()
    (root / "a-folder" / "SKILL.md").mkdir()
    os.mkfifo(root / "a-pipe" / "SKILL.md")
    assert rules_of(report_of_bad(root, "a-folder")) == rules_of(report_of_bad(root, "a-pipe")) == ["not-a-file"]


def test_a_socket_is_not_a_skill(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "bad").mkdir()
    monkeypatch.chdir(root / "bad")  # The path of a socket must be short.
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("SKILL.md")
        assert rules_of(report_of_bad(root)) == ["unreadable"]


@unless_root
def test_an_unreadable_file_is_reported(root: Path) -> None:
    write_skill(root, "bad")
    (root / "bad" / "SKILL.md").chmod(0)
    write_skill(root, "closed")
    (root / "closed").chmod(0)
    try:
        assert rules_of(report_of_bad(root)) == rules_of(report_of_bad(root, "closed")) == ["unreadable"]
    finally:
        (root / "closed").chmod(0o700)


def test_a_folder_name_of_any_bytes_is_shown_on_one_line(root: Path) -> None:
    folder = os.path.join(os.fsencode(root), b"a\xff\nb")
    os.mkdir(folder)
    with open(os.path.join(folder, b"SKILL.md"), "wb") as file:
        file.write(b"---\ndescription: x\n---\n")
    for mode in SKILL_MODES:
        [report] = [candidate for candidate in library_of(root, mode).reports if candidate.name != "good"]
        assert report.path.endswith("a\ufffd\ufffdb")
        assert all("\n" not in str(finding) for finding in report.findings)


@pytest.mark.parametrize("name", [".git", ".hidden", "node_modules"])
def test_hidden_and_package_folders_are_skipped(root: Path, name: str) -> None:
    write_skill(root / name, "inner")
    write_skill(root, name, "name: inner\ndescription: x\n")
    assert names_in(root, "lenient") == ["good"]


def test_skills_may_be_grouped_up_to_a_depth(root: Path) -> None:
    write_skill(root / "1" / "2" / "3", "deep")
    write_skill(root / "1" / "2" / "3" / "4", "deeper")
    write_skill(root / "good" / "scripts", "inner")
    assert names_in(root) == ["deep", "good"]


def test_skills_beyond_the_limits_are_not_read_and_reported(tmp_path: Path) -> None:
    for name in "abcde":
        write_skill(tmp_path, name)
    place = SkillRoot(str(tmp_path), "global")
    few = read_skill_library((place,), limits=SkillLimits(skills_max=3))
    assert [skill.name for skill in few.store.list_skills()] == ["a", "b", "c"]
    assert [finding.rule for finding in few.store.findings] == ["limit"]
    assert "over 3 skills" in few.store.findings[0].message
    some = read_skill_library((place,), limits=SkillLimits(entries_max=2))
    assert (len(some.store), [finding.rule for finding in some.store.findings]) == (2, ["limit"])
    assert len(read_skill_library((place,), limits=SkillLimits(file_bytes_max=10)).store) == 0
    assert len(read_skill_library((place,), limits=SkillLimits(depth_max=0)).store) == 0
    (tmp_path / "empty").mkdir()
    assert len(read_skill_library((place,), limits=SkillLimits(skills_max=5, entries_max=6)).store.findings) == 0


def test_a_link_out_of_a_workspace_is_refused_and_reported(root: Path, tmp_path: Path) -> None:
    outside = write_skill(tmp_path / "outside", "bad")
    (root / "bad").symlink_to(outside)
    assert rules_of(report_of_bad(root)) == ["link-refused"]
    write_skill(root, "worse")
    (root / "worse" / "SKILL.md").unlink()
    (root / "worse" / "SKILL.md").symlink_to(outside / "SKILL.md")
    assert rules_of(report_of_bad(root, "worse")) == ["link-refused"]


def test_a_link_out_of_the_users_own_folder_is_followed_and_reported(root: Path, tmp_path: Path) -> None:
    outside = write_skill(tmp_path / "outside", "one")
    (root / "one").symlink_to(outside)
    write_skill(tmp_path / "library", "two")
    (root / "group").symlink_to(tmp_path / "library")
    (root / "three").mkdir()
    write_skill(tmp_path / "outside", "three")
    (root / "three" / "SKILL.md").symlink_to(tmp_path / "outside" / "three" / "SKILL.md")
    library = library_of(root, source="global")
    assert [skill.name for skill in library.store.list_skills()] == ["good", "one", "three", "two"]
    assert [finding.rule for finding in library.store.findings] == ["link-followed"] * 3
    first_skill = library.store.get("one")
    assert first_skill is not None
    assert first_skill.skill_dir == root / "one"


def test_a_link_within_the_folder_is_followed_silently(root: Path) -> None:
    write_skill(root / ".store", "linked-1.2", "name: linked\ndescription: x\n")
    (root / "linked").symlink_to(".store/linked-1.2")
    (root / "again").symlink_to("good")
    (root / "loop").symlink_to(".")
    (root / "broken").symlink_to("nowhere")
    (root / "file").symlink_to("good/SKILL.md")
    (root / "endless").symlink_to("endless")
    write_skill(root, "other")
    (root / "other" / "SKILL.md").rename(root / "other" / "real.md")
    (root / "other" / "SKILL.md").symlink_to("real.md")
    library = library_of(root)
    assert [skill.name for skill in library.store.list_skills()] == ["good", "linked", "other"]
    assert library.store.findings == ()


def test_a_broken_link_in_place_of_a_file_is_not_a_skill(root: Path) -> None:
    (root / "bad").mkdir()
    (root / "bad" / "SKILL.md").symlink_to("nowhere")
    assert rules_of(report_of_bad(root)) == ["unreadable"]


def test_the_skill_folder_of_a_workspace_may_not_lead_out_of_it(tmp_path: Path) -> None:
    write_skill(tmp_path / "private", "pdf")
    write_skill(tmp_path / "work" / "shared", "own")
    (tmp_path / "work" / ".holdfast").mkdir()
    (tmp_path / "work" / ".claude").mkdir()
    (tmp_path / "work" / ".holdfast" / "skills").symlink_to(tmp_path / "private")
    (tmp_path / "work" / ".claude" / "skills").symlink_to("../shared")
    library = read_skill_library(skill_roots(None, tmp_path / "work", also=(".claude/skills",)))
    assert [skill.name for skill in library.store.list_skills()] == ["own"]
    assert [finding.message for finding in library.store.findings] == ["it is a link that leads out of the workspace"]


def test_a_root_that_is_a_link_is_read_under_its_own_path(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    [skill] = load_skills(global_dir=None, workspace_dir=tmp_path / "link").list_skills()
    assert skill.skill_dir == tmp_path / "link" / "good"


def test_an_invalid_root_path_is_reported(tmp_path: Path) -> None:
    library = read_skill_library((SkillRoot(str(tmp_path / "a\0b"), "global"),))
    assert [finding.rule for finding in library.store.findings] == ["unreadable"]
    assert rules_of(check_skill(str(tmp_path / "a\0b"))) == ["not-found"]


def test_unchanged_files_are_not_read_again(root: Path) -> None:
    write_skill(root, "bad", "name: bad\n")
    library = library_of(root)
    file = root / "good" / "SKILL.md"
    before = file.stat()
    file.write_bytes(file.read_bytes().replace(b"Steps", b"Stops"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    again = library.reload()
    assert again.store is library.store
    assert again.reports == library.reports
    write_skill(root, "good", body="another, longer body")
    third = again.reload()
    skill = third.store.get("good")
    assert skill is not None
    assert skill.body == "another, longer body"
    assert third.reload().store is third.store


def test_a_change_of_time_or_size_alone_is_noticed(root: Path) -> None:
    file = root / "good" / "SKILL.md"
    library = library_of(root)
    before = file.stat()
    raw = file.read_bytes()
    file.write_bytes(raw.replace(b"Steps", b"Stops"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    by_time = library.reload()
    assert by_time.store != library.store
    file.write_bytes(raw + b"x")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert by_time.reload().store != by_time.store


def test_an_added_or_removed_skill_is_noticed(root: Path) -> None:
    library = library_of(root)
    write_skill(root, "new")
    more = library.reload()
    assert [skill.name for skill in more.store.list_skills()] == ["good", "new"]
    (root / "good" / "SKILL.md").unlink()
    assert [skill.name for skill in more.reload().store.list_skills()] == ["new"]


def test_an_invalid_skill_is_logged_once_and_again_when_it_changes(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_skill(root, "bad", "name: bad\n")
    library = library_of(root).reload().reload()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    write_skill(root, "bad", "name: badder\ndescription: x")
    assert not library.reload().store.get("bad")
    assert len(caplog.records) == 2


def test_one_folder_may_belong_to_the_user_and_to_a_workspace(root: Path) -> None:
    roots = (SkillRoot(str(root), "global"), SkillRoot(str(root), "workspace"))
    library = read_skill_library(roots)
    again = library.reload()
    sources = [[report.skill and report.skill.source for report in each.reports] for each in (library, again)]
    assert sources == [["global", "workspace"]] * 2
    assert again.store is library.store


def test_another_mode_reads_everything_again(root: Path) -> None:
    write_skill(root, "other", "name: Other\ndescription: x\n")
    library = library_of(root)
    lenient = read_skill_library(library.roots, "lenient", before=library)
    assert [skill.name for skill in lenient.store.list_skills()] == ["Other", "good"]


def test_a_file_that_grows_while_it_is_read_is_read_completely(tmp_path: Path) -> None:
    file = Path("/proc/self/status")
    if not file.exists():
        pytest.skip("no files here that hide their size")
    read = read_regular_file(file, 1_000_000)
    assert read is not None
    assert b"VmRSS" in read.raw
    short = read_regular_file(file, 100)
    assert short is not None
    assert len(short.raw) == 100
