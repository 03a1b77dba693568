"""The index of a project's files: which files are read or excluded, and which chunks are found."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.main import command
from holdfast.errors import UserError
from holdfast.knowledge.curation import (
    PRESET_BYTES_MAX,
    SLICE_BYTES_MAX,
    FileSlice,
    find_definition,
    read_preset,
    render_preset,
)
from holdfast.knowledge.rag_index import RagIndex, read_rag_index, render_chunks, update_rag_index
from holdfast.runtime.volatile_context import curation_folder, rag_folder
from holdfast.sources.project_files import is_ignored, parse_ignore_rules, walk_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def write(project: Path, **files: str) -> None:
    for name, text in files.items():
        path = project / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def found(project: Path, question: str) -> list[str]:
    files = read_rag_index(rag_folder(project))
    assert files is not None
    return [f"{chunk.path}:{chunk.first_line}-{chunk.last_line}" for chunk in RagIndex(files).query(project, question)]


def run(*words: str) -> Result:
    return CliRunner().invoke(command, words)


def test_chunk_is_found_by_its_words_with_path_lines_and_digest(project: Path) -> None:
    body = "\n".join(f"line {number}" for number in range(1, 61))
    write(project, a_dot_txt=f"{body}\nthe lighthouse keeper sleeps\n{body}\n", b_dot_txt="nothing\n")
    assert update_rag_index(rag_folder(project), project).chunks == 5
    assert found(project, "Who is the lighthouse keeper?") == ["a.txt:41-80"]
    shown = run("rag", "query", "lighthouse", "--workspace", str(project)).output
    assert shown.startswith("a.txt:41-80  0.70  sha256 ")
    assert "the lighthouse keeper sleeps" in shown
    assert "No passage matches." in run("rag", "query", "zebra", "--workspace", str(project)).output


def test_only_changed_files_are_read_again(project: Path) -> None:
    write(project, a_dot_txt="alpha\n", b_dot_txt="beta\n", c_dot_txt="gamma\n")
    first = update_rag_index(rag_folder(project), project)
    assert (first.files, first.read, first.unchanged) == (3, 3, 0)
    raw = (rag_folder(project).path / "index.jsonl").read_bytes()
    assert update_rag_index(rag_folder(project), project).read == 0
    assert (rag_folder(project).path / "index.jsonl").read_bytes() == raw
    (project / "a.txt").write_text("delta and more\n")
    (project / "c.txt").unlink()
    again = update_rag_index(rag_folder(project), project)
    assert (again.files, again.read, again.unchanged, again.removed) == (2, 1, 1, 1)
    assert found(project, "delta") == ["a.txt:1-1"]


def test_file_changed_since_indexing_is_not_returned(project: Path) -> None:
    write(project, a_dot_txt="alpha one\n", b_dot_txt="alpha two\n")
    update_rag_index(rag_folder(project), project)
    (project / "a.txt").write_text("alpha three\n")
    assert found(project, "alpha") == ["b.txt:1-1"]


def test_ignored_hidden_and_foreign_files_are_excluded(project: Path, tmp_path: Path) -> None:
    write(
        project,
        a_dot_txt="word\n",
        build__x_dot_txt="word\n",
        node_modules__x_dot_js="word\n",
        keep__y_dot_log="word\n",
    )
    write(project, _dot_env="word\n", _dot_gitignore="build/\n*.log\n!y.log\n", sub__z_dot_log="word\n")
    (tmp_path / "outside.txt").write_text("word\n")
    (project / "link.txt").symlink_to(tmp_path / "outside.txt")
    (project / "binary").write_bytes(b"word\0")
    update_rag_index(rag_folder(project), project)
    files = read_rag_index(rag_folder(project))
    assert files is not None
    assert [file.path for file in files] == ["a.txt", "keep/y.log"]


def test_chunk_with_a_possible_secret_is_not_indexed_or_returned(project: Path) -> None:
    secret = "AKIAIOSFODNN7EXAMPLE"
    write(project, a_dot_txt=f"deploy with {secret}\n", b_dot_txt="deploy with care\n")
    done = run("rag", "index", "--workspace", str(project))
    assert "1 passage left out because of possible secrets" in done.output
    assert secret.encode() not in (rag_folder(project).path / "index.jsonl").read_bytes()
    assert found(project, "deploy") == ["b.txt:1-1"]


def test_unreadable_index_is_rebuilt(project: Path) -> None:
    write(project, a_dot_txt="alpha\n")
    rag_folder(project).replace("index.jsonl", b'{"version": 1, "files": [{"path"')
    assert read_rag_index(rag_folder(project)) is None
    result = run("rag", "query", "alpha", "--workspace", str(project))
    assert isinstance(result.exception, UserError)
    assert "holdfast rag index" in str(result.exception)
    assert update_rag_index(rag_folder(project), project).files == 1


def test_result_stays_within_its_cap_and_sources_stay_unchanged(project: Path) -> None:
    for number in range(9):
        write(project, **{f"f{number}_dot_txt": "harbour " * 400})
    before = {path: path.stat().st_mtime_ns for path in project.iterdir() if path.is_file()}
    update_rag_index(rag_folder(project), project)
    files = read_rag_index(rag_folder(project))
    assert files is not None
    rendered = render_chunks(RagIndex(files).query(project, "harbour", limit=9))
    assert rendered.count("## f") == 1
    assert len(rendered.encode()) <= 6_000
    assert render_chunks(()) == ""
    assert {path: path.stat().st_mtime_ns for path in before} == before


names = st.sampled_from(("a", "b", "ab", "a.py", "b.txt", "x y"))
IGNORE_LINES = "\n".join(
    (
        "a\n*.py\n/a\na/\nb/*\n**/b\na/**\n!a.py\na/**/b\n[ab]\n[!a]*\n?\n#a\n\\#a\nb/a.py\n*\n!*/\n/*\n!/a\n**\n/**/",
        "a/**/\na/*/b\na**\n**a\n[a-c]\n[]a]\n[!]a]\n[^a]\na//b\n./a\n!b/\n!a/b/c\nx y\nx\\ y\na\\\n*[a\n!\n/",
        "\n[a-\n[[]\n\\!a\n*.*\nb.t?t\n**/a/**\n!**/a.py\n**/*.py\na ",
    )
)
patterns = st.lists(
    st.sampled_from(IGNORE_LINES.split("\n")),
    max_size=4,
)


@given(st.lists(st.lists(names, min_size=1, max_size=3), min_size=1, max_size=6), patterns, patterns)
def test_ignored_files_match_those_git_ignores(
    tmp_path_factory: pytest.TempPathFactory, paths: list[list[str]], top: list[str], inner: list[str]
) -> None:
    project = tmp_path_factory.mktemp("ignored")
    for parts in paths:
        path = project.joinpath(*parts)
        if not path.is_dir() and not any(above.is_file() for above in path.parents):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("x")
    (project / ".gitignore").write_text("\n".join(top))
    for folder in (project / "a", project / "b"):
        if folder.is_dir():
            (folder / ".gitignore").write_text("\n".join(inner))
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    subprocess.run(["git", "init", "-q", str(project)], check=True, env=environ)
    listed = subprocess.run(
        ["git", "-C", str(project), "ls-files", "-oz", "--exclude-standard"],
        check=True,
        env=environ,
        capture_output=True,
    )
    theirs = {name for name in listed.stdout.decode().split("\0") if name and not name.endswith(".gitignore")}
    assert {file.path for file in walk_project(project)} == theirs


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_text_parses_as_ignore_rules(text: str, path: str) -> None:
    assert is_ignored(path, parse_ignore_rules(text), is_folder=False) in (True, False)


@pytest.mark.parametrize("line", ["*a" * 20 + "b", "**/a/" * 20 + "b", "a?*" * 30 + "b", "[a]*" * 60 + "b", "?" * 500])
def test_a_hostile_rule_takes_linear_time(line: str) -> None:
    rules = parse_ignore_rules("\n".join([line] * 20))
    started = time.process_time()
    for path in ("a" * 250, "/".join("a" * 120)):
        assert not is_ignored(path, rules, is_folder=False)
    assert time.process_time() - started < 2


def test_definition_ends_with_its_nesting_depth() -> None:
    script = ["export async function load(x) {", "  if (x) {", "    return 1", "  }", "}", "const y = 2", ""]
    assert find_definition(script, "load") == (1, 5)
    assert find_definition(script, "y") == (6, 6)
    assert find_definition(script, "loa") is None


def test_slices_and_their_sum_are_capped_and_missing_ones_reported(project: Path) -> None:
    write(project, long_dot_txt="x" * (SLICE_BYTES_MAX * 2), a_dot_txt="one\ntwo\nthree\n")
    rendered = render_preset(
        project, "all", [FileSlice("a.txt", lines="2-9"), FileSlice("gone.txt"), FileSlice("../secret")]
    )
    assert "## a.txt lines 2-3 of 3" in rendered
    assert rendered.count("(cannot be read)") == 2
    assert "(there is no definition of 'f')" in render_preset(project, "all", [FileSlice("a.txt", symbol="f")])
    many = render_preset(project, "all", [FileSlice("long.txt")] * 5)
    assert "(cut here)" in many
    assert "(3 more do not fit)" in many
    assert len(many.encode()) <= PRESET_BYTES_MAX + 100


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"files = 3", "cannot be read"),
        (b"files = [", "cannot be read"),
        (b'files = [{path = "a", colour = "red"}]', "cannot be read"),
        (b'files = [{path = "a", lines = "ten"}]', 'must look like "10-40"'),
    ],
)
def test_unreadable_preset_states_the_reason(project: Path, raw: bytes, message: str) -> None:
    curation_folder(project).replace("one.toml", raw)
    with pytest.raises(UserError, match=message):
        read_preset(curation_folder(project), "one")


@pytest.mark.parametrize("name", ["../one", "", "a/b", "x" * 80])
def test_invalid_name_is_no_preset(project: Path, name: str) -> None:
    with pytest.raises(UserError, match="there is no file preset"):
        read_preset(curation_folder(project), name)
