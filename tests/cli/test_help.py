"""`holdfast --help` groups the commands, every command has an example that works, and shells complete them."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.support.commands import run_command, run_in_process

from holdfast.cli.main import COMMANDS, GROUPS, command


def test_help_groups_the_commands_by_what_people_want() -> None:
    output = CliRunner().invoke(command, ["--help"]).output
    positions = [output.index(f"\n{title}:\n") for title in GROUPS]
    assert positions == sorted(positions)
    for group in GROUPS.values():
        assert f"  Example: {next(iter(group.values())).example}\n" in output


def test_help_fits_80_columns() -> None:
    lines = CliRunner().invoke(command, ["--help"], terminal_width=80).output.splitlines()
    assert max(map(len, lines)) <= 80


def parse(words: list[str]) -> None:
    """Parse a command line as far as it goes without running anything; raises a usage error."""
    current: click.Command = command
    context = click.Context(command)
    while words:
        assert isinstance(current, click.Group)
        name, *words = words
        found = current.get_command(context, name)
        assert found is not None, name
        current = found
        if isinstance(current, click.Group) and words and not words[0].startswith("-"):
            context = click.Context(current, parent=context, info_name=name)
            continue
        with contextlib.suppress(click.exceptions.Exit):  # Raised by --help.
            current.make_context(name, words, parent=context)
        return


@pytest.mark.parametrize("name", COMMANDS)
def test_example_of_a_command_can_be_parsed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = COMMANDS[name].example.split()
    monkeypatch.chdir(tmp_path)
    for word in words:
        if Path(word).suffix in (".json", ".jsonl", ".md"):
            Path(word).write_text("{}")
    assert (program, words[0]) == ("holdfast", name)
    parse(words)
    assert f"Example:\n    {COMMANDS[name].example}\n" in CliRunner().invoke(command, [name, "--help"]).output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed_or_installed(shell: str, tmp_path: Path) -> None:
    printed = run_in_process("completion", shell)
    assert printed.returncode == 0
    assert "_HOLDFAST_COMPLETE" in printed.stdout
    installed = run_in_process("completion", shell, "--install", HOME=str(tmp_path))
    [file] = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert str(file) in installed.stdout
    assert file.read_text() == printed.stdout.removesuffix("\n")


def test_unknown_shell_is_an_error() -> None:
    assert run_in_process("completion", "tcsh").returncode == 2


@pytest.mark.parametrize(
    ("words", "position", "expected"),
    [("holdfast re", 1, {"recovery", "replay", "report"}), ("holdfast db pr", 2, {"prune"})],
)
def test_shell_completes_commands(words: str, position: int, expected: set[str]) -> None:
    environ = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
    done = run_command(**environ)
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == expected


def test_completing_a_command_imports_no_command() -> None:
    program = """
import atexit, sys
from holdfast.cli.main import command
atexit.register(lambda: print(sorted(name for name in sys.modules if name.startswith("holdfast.cli."))))
command.main(prog_name="holdfast", standalone_mode=False)
"""
    environ = {"_HOLDFAST_COMPLETE": "bash_complete", "COMP_WORDS": "holdfast re", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1] == "['holdfast.cli.format', 'holdfast.cli.main']"
