"""`holdfast --help` groups the commands, every command has an example that works, and shells complete them."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.support.commands import run_command, run_in_process

from holdfast.cli.main import COMMANDS, GROUPS, command

ROOT = Path(__file__).parents[2]


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
    done = run_command(cwd=None, **environ)
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


def commands_in(text: str) -> set[str]:
    """The command lines of a page: in code spans, in blocks without a language, and after a prompt."""
    lines = re.findall(r"`(holdfast [a-z][^`\n]*)`", text)
    lines += re.findall(r"(?m)^(?: {4}|\$ )(holdfast [a-z].*)$", text)
    return {re.split(r"\s#|\s{2,}|[|&;>]", line)[0].strip() for line in lines}


def missing_parts(line: str) -> list[str]:
    """Subcommands and options of a command line that do not exist."""
    current, context = click.Command("none"), click.Context(command)
    words = line.replace("[", " ").replace("]", " ").split()[1:]
    current = command.get_command(context, words[0]) or current
    rest = words[1:]
    while isinstance(current, click.Group) and rest and re.fullmatch(r"[a-z-]+", rest[0]) and rest[0][0] != "-":
        if (child := current.get_command(context, rest[0])) is None:
            return [rest[0]]
        current, rest = child, rest[1:]
    known = {option for parameter in current.get_params(context) for option in parameter.opts}
    if words[0] not in COMMANDS:
        return [words[0]]
    return [word for word in rest if word.startswith("--") and word.partition("=")[0].rstrip(",.") not in known]


def test_commands_that_the_docs_name_exist_with_their_options() -> None:
    wrong = [
        f"{page.relative_to(ROOT)}: {line}: {', '.join(missing)}"
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
        if "decisions" not in page.parts
        for line in sorted(commands_in(page.read_text()))
        if (missing := missing_parts(line))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("holdfast audit --since 7d", []),
        ("holdfast db prune --older-than 90d --dry-run", []),
        ("holdfast db purge", ["purge"]),
        ("holdfast audti", ["audti"]),
        ("holdfast report --until=now --sinse 7d", ["--sinse"]),
        ("holdfast db info [--check]", []),
    ],
)
def test_missing_command_or_option_is_found(line: str, missing: list[str]) -> None:
    assert missing_parts(line) == missing
