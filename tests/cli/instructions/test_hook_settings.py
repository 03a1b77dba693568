"""`holdfast instructions hook --install`: edits a runtime's settings and changes nothing else in them."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from tests.support.library_projects import LibraryProject, is_insertion

from holdfast.cli.main import command
from holdfast.errors import UserError
from holdfast.runtime.instructions.hook import add_hook, remove_hook
from holdfast.sources.settings_file import edit_settings_file

OTHER = '{"type": "command", "command": "echo holdfast instructions"}'


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def settings(project: Path) -> Path:
    (project / ".claude").mkdir()
    return project / ".claude" / "settings.json"


def run(*words: str) -> Result:
    return CliRunner().invoke(command, ["instructions", "hook", *words])


def hooks(text: str) -> list[Any]:
    groups = json.loads(text)["hooks"]["SessionStart"]
    assert isinstance(groups, list)
    return groups


def test_an_installed_hook_gives_a_session_the_agents_context(project: Path, tmp_path: Path) -> None:
    shop = LibraryProject(tmp_path)
    with shop.library:
        shop.write()
        shop.library.publish(shop.folder)
    assert run("--install", "--db", "../kept.db", "--agent", "main").output == (
        ".claude/settings.json: the hook is installed\n"
    )
    (group,) = hooks((project / ".claude" / "settings.json").read_text())
    assert group["matcher"] == "startup|clear|compact"
    (hook,) = group["hooks"]
    assert (hook["type"], hook["timeout"]) == ("command", 30)
    completed = subprocess.run(
        hook["command"],
        shell=True,
        input=b'{"hook_event_name": "SessionStart", "source": "startup"}',
        capture_output=True,
        check=False,
        env=os.environ | {"HOLDFAST_HOME": str(tmp_path / "home")},
    )
    assert (completed.returncode, completed.stderr) == (0, b"")
    context = json.loads(completed.stdout)["hookSpecificOutput"]["additionalContext"]
    assert context.startswith("# Agent Boot Stub\n")
    assert "--agent main --db ../kept.db" in context


def test_the_hook_is_set_once_however_often_it_is_installed(settings: Path) -> None:
    run("--install")
    first, file = settings.read_bytes(), settings.stat().st_ino
    assert run("--install").output == ".claude/settings.json: the hook is already installed\n"
    assert (settings.read_bytes(), settings.stat().st_ino) == (first, file)


def test_only_the_given_options_are_written_and_another_choice_replaces_them(settings: Path) -> None:
    CliRunner().invoke(command, ["instructions", "hook", "--install"], env={"HOLDFAST_AGENT": "ann"})
    assert hooks(settings.read_text())[0]["hooks"][0]["command"].endswith("holdfast instructions hook")
    run("--install", "--agent", "two words", "--strict", "--plain", "--profile", "generic", "--url", "https://host")
    (group,) = hooks(settings.read_text())
    words = shlex.split(group["hooks"][0]["command"])
    assert words[words.index("hook") :] == [
        *("hook", "--agent", "two words", "--url", "https://host", "--profile", "generic", "--plain", "--strict")
    ]


def test_the_program_is_called_by_its_name_where_that_suffices(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    run("--install")
    assert hooks(settings.read_text())[0]["hooks"][0]["command"] == shlex.join(
        [sys.executable, "-P", "-m", "holdfast", "instructions", "hook"]
    )
    (tmp_path / "holdfast").touch(mode=0o755)
    run("--install")
    assert hooks(settings.read_text())[0]["hooks"][0]["command"] == "holdfast instructions hook"


FORMATTINGS = {
    "two spaces": '{\n  "model": "opus",\n  "env": {"A": "1"}\n}\n',
    "four spaces": '{\n    "model": "opus"\n}',
    "tabs": '{\n\t"model": "opus",\n\t"hooks": {\n\t\t"Stop": []\n\t}\n}\n',
    "CRLF": '{\r\n  "a": [1,\r\n 2]\r\n}\r\n',
    "two on a line": '{\n  "a": 1, "b": 2}',
    "one line": '{"b":1, "a":1.50e3,"hooks":{"Stop":[],"SessionStart":[' + OTHER + "]}}",
    "spaces around": '\n\n {  "a" : "\\u00fc\\/ü" , "a" : 2 }  \n',
    "large numbers": '{"n": 123456789012345678901234567890, "f": 1.10}',
    "half a pair": '{"n": "\\ud800"}',
    "others at the start": '{\n  "hooks": {\n    "SessionStart": [\n      {"hooks": [' + OTHER + "]}\n    ]\n  }\n}\n",
    "another shape of group": '{"hooks": {"SessionStart": [3, {"hooks": 4}, {"hooks": [5, {"command": 6}]}, []]}}',
    "a command of many parts": '{"hooks": {"SessionStart": [{"hooks": [{"command": "echo \'open"}]}]}}',
}


@pytest.mark.parametrize("text", FORMATTINGS.values(), ids=FORMATTINGS.keys())
def test_every_other_byte_remains_and_uninstalling_restores_the_file(settings: Path, text: str) -> None:
    settings.write_bytes(text.encode())
    assert run("--install").exit_code == 0
    installed = settings.read_bytes().decode()
    assert is_insertion(text, installed)
    assert json.loads(installed)["hooks"]["SessionStart"][-1]["matcher"] == "startup|clear|compact"
    assert installed.count("\r\n") == (installed.count("\n") if "\r\n" in text else 0)
    assert run("--uninstall").output == ".claude/settings.json: the hook is removed\n"
    assert settings.read_bytes() == text.encode()
    assert run("--uninstall").output == ".claude/settings.json: the hook is not installed\n"


def test_added_text_follows_the_existing_formatting() -> None:
    added = add_hook('{\n\t"hooks": {\n\t\t"Stop": []\n\t}\n}\n', "holdfast instructions hook")
    assert added.startswith('{\n\t"hooks": {\n\t\t"Stop": [],\n\t\t"SessionStart": [\n\t\t\t{\n\t\t\t\t"matcher"')
    assert added.endswith("\n\t\t\t}\n\t\t]\n\t}\n}\n")
    assert add_hook('{"hooks": {}}', "x").startswith('{"hooks": {\n  "SessionStart": [\n    {\n')


@pytest.mark.parametrize("text", ["", "  \n", "{}", "{ }\n", '{\n  "hooks": {}\n}', '{"hooks": {"SessionStart": []}}'])
def test_in_empty_settings_the_hook_is_the_only_entry(settings: Path, text: str) -> None:
    settings.write_text(text)
    run("--install")
    assert len(hooks(settings.read_text())) == 1
    run("--uninstall")
    assert settings.read_text().strip() == "{}"


def test_a_hook_among_others_is_removed_alone() -> None:
    our_hook = '{"type": "command", "command": "/opt/bin/holdfast instructions hook --agent a"}'
    among = f'[{{"hooks": [{OTHER}, {our_hook}, {OTHER}]}}, {{"hooks": [{our_hook}]}}]'
    remaining = f'[{{"hooks": [{OTHER}, {OTHER}]}}]'
    alone = f'[{{"hooks": [{our_hook}]}}]'
    assert remove_hook(f'{{"hooks": {{"SessionStart": {among}, "Stop": []}}}}') == (
        f'{{"hooks": {{"SessionStart": {remaining}, "Stop": []}}}}'
    )
    assert remove_hook(f'{{"hooks": {{"SessionStart": {alone}, "Stop": []}}}}') == '{"hooks": {"Stop": []}}'
    assert remove_hook(f'{{"a": 1, "hooks": {{"SessionStart": {alone}}}, "b": 2}}') == '{"a": 1, "b": 2}'


REFUSED = {
    "comments": b'{\n  // mine\n  "a": 1\n}',
    "a comma too many": b'{"a": 1,}',
    "no number": b'{"a": NaN}',
    "a byte order mark": b'\xef\xbb\xbf{"a": 1}',
    "no UTF-8": b'{"a": "\xff"}',
    "nested too deeply": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a list": b"[]",
    "a text": b'"hooks"',
    "hooks as a list": b'{"hooks": []}',
    "starts as an object": b'{"hooks": {"SessionStart": {}}}',
    "starts as a text": b'{"hooks": {"SessionStart": "x"}}',
    "more than is read": b'{"a": "' + b"x" * 4_000_000 + b'"}',
}


@pytest.mark.parametrize("raw", REFUSED.values(), ids=REFUSED.keys())
def test_settings_that_cannot_be_changed_safely_are_not_changed(settings: Path, raw: bytes) -> None:
    settings.write_bytes(raw)
    completed = run("--install")
    assert isinstance(completed.exception, UserError)
    assert ".claude/settings.json" in str(completed.exception)
    assert len(str(completed.exception)) < 200
    assert settings.read_bytes() == raw


def test_a_dry_run_shows_the_difference_and_changes_nothing(settings: Path, project: Path) -> None:
    settings.write_text('{\n  "model": "opus"\n}')
    diff_lines = run("--install", "--dry-run").output.splitlines()
    assert diff_lines[:2] == ["--- .claude/settings.json", "+++ .claude/settings.json"]
    assert [line for line in diff_lines if line.startswith("-")][1:] == ['-  "model": "opus"']
    assert '+  "model": "opus",' in diff_lines
    assert "\\ No newline at end of file" in diff_lines
    assert settings.read_text() == '{\n  "model": "opus"\n}'
    assert run("--install", "--dry-run", "--settings", "new/settings.json").exit_code == 0
    assert not (project / "new").exists()


def test_another_settings_file_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "settings.local.json"
    assert run("--install", "--settings", str(file)).exit_code == 0
    assert len(hooks(file.read_text())) == 1
    missing = run("--install", "--settings", str(tmp_path / "none" / "settings.json"))
    assert isinstance(missing.exception, UserError)
    assert "cannot be used" in str(missing.exception)


def test_a_link_within_the_project_is_followed_and_one_that_leads_out_is_refused(
    settings: Path, tmp_path: Path
) -> None:
    (tmp_path / "project" / "shared.json").write_text("{}")
    settings.symlink_to("../shared.json")
    assert run("--install").exit_code == 0
    assert settings.is_symlink()
    assert len(hooks((tmp_path / "project" / "shared.json").read_text())) == 1
    settings.unlink()
    (tmp_path / "outside.json").write_text("{}")
    settings.symlink_to(tmp_path / "outside.json")
    completed = run("--install")
    assert isinstance(completed.exception, UserError)
    assert "leads out" in str(completed.exception)
    assert (tmp_path / "outside.json").read_text() == "{}"


def test_the_files_mode_is_preserved_and_no_temporary_file_remains(settings: Path) -> None:
    settings.write_text("{}")
    settings.chmod(0o640)
    run("--install")
    assert settings.stat().st_mode & 0o777 == 0o640
    assert os.listdir(settings.parent) == ["settings.json"]


@pytest.mark.parametrize("before", ["{}", None])
def test_concurrent_changes_by_another_program_are_preserved(settings: Path, before: str | None) -> None:
    if before is not None:
        settings.write_text(before)

    def change(text: str) -> str:
        settings.write_text('{"theirs": 1}')
        return add_hook(text, "holdfast instructions hook")

    with pytest.raises(UserError, match="another program changed it meanwhile"):
        edit_settings_file(settings, change, write=True)
    assert settings.read_text() == '{"theirs": 1}'
    assert os.listdir(settings.parent) == ["settings.json"]


@pytest.mark.parametrize(
    "words",
    [
        ("--wake-token", "abc.letmein.def"),
        ("--db", "postgresql://ann:letmein@host/db"),
        ("--url", "https://ann:letmein@host"),
    ],
)
def test_no_secret_is_written_into_settings(project: Path, words: tuple[str, str]) -> None:
    completed = run("--install", *words)
    assert isinstance(completed.exception, UserError)
    assert "letmein" not in str(completed.exception)
    assert not (project / ".claude").exists()


def test_install_and_uninstall_exclude_each_other() -> None:
    assert run("--install", "--uninstall").exit_code == 2
    assert run("--install", "--nonsense").exit_code == 2
