"""Checks that the blocks of the README run and print what it shows.

Python and bash blocks must succeed. In a console block each line after a `$` is run and must print the lines
below it: a line `...` matches any lines, `...` within a line any text. A python block that begins with a comment such
as `# agent.py` is a file for the console block after it, which runs it; a command that ends in `&` is a server, whose
port is replaced by a free one and awaited. Commands that install something or need another machine are not run, but the
targets, extras and files they name must exist; where the output of a make target is shown, its recipe is run without
its prerequisites.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.tidy.checks.documents import make_targets, text_of

BLOCK_SECONDS_MAX = 50
START_LINES_MAX = 10
README_SECTIONS = (
    "See it",
    "Build an agent in Python",
    "Find out why the bill is high",
    "Put the gateway in front of an agent you have",
    "Write a test that fails when the cache breaks",
    "More",
)
"""The demo, a start for each kind of user, and links; everything else belongs in docs/."""
SHOWN_ONLY = {"text", "json", "toml", "yaml", "mermaid"}
SETS_UP = re.compile(r"\bmake |\bpip install|\bgit clone|\bpodman |\bsystemctl ")
INDENTED = re.compile(r"(?m)^\n(?: {4}|\t)\S.*$")
SEPARATOR = "ended with status "
FILE_NAME = re.compile(r"# ([\w-]+\.py)\n")
PORT = re.compile(r"--port (\d+) [^\n]*&$", re.MULTILINE)
AWAIT_PORT = (
    "for _ in $(seq 200); do (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null && break; sleep 0.1; done; sleep 0.5"
)


class Block(NamedTuple):
    line: int
    language: str
    text: str


class Step(NamedTuple):
    """A command of a console block, and what the page says it prints."""

    command: str
    shown: str


def broken_blocks(root: Path, page: str = "README.md") -> list[str]:
    lines = runnable_lines(root, page)
    if not lines:
        return [f"{page} is missing or has no block to run"]
    return [trouble for line in lines for trouble in broken_block(root, page, line)]


def runnable_lines(root: Path, page: str) -> list[int]:
    """The lines of the blocks that are run."""
    return [block.line for block in blocks_of(text_of(root, page)) if block.language not in SHOWN_ONLY]


def hidden_blocks(root: Path, page: str) -> list[str]:
    """Blocks that look like code and that nothing runs: indented ones, and commands in a block that is only shown."""
    text = text_of(root, page)
    # What was looked at leaves its lines behind, so that the others keep their numbers.
    prose = re.sub(r"(?ms)^```.*?^```$", lambda block: "```" + "\n" * block[0].count("\n"), text)
    indented = [prose.count("\n", 0, match.start()) + 2 for match in INDENTED.finditer(prose)]
    shown = [block for block in blocks_of(text) if block.language in SHOWN_ONLY and "\n$ " in f"\n{block.text}"]
    return [
        *(f"{page}:{line}: an indented block is not run; use a fence with a language" for line in indented),
        *(f"{page}:{block.line}: commands in a block of {block.language} are not run; use console" for block in shown),
    ]


def long_starts(root: Path) -> list[str]:
    """Starts of the README that are out of order, show no output, or take more than ten lines to type."""
    text = text_of(root, "README.md")
    sections = {title.strip(): body for title, _, body in (part.partition("\n") for part in text.split("\n## ")[1:])}
    if list(sections) != list(README_SECTIONS):
        return [f"README.md: its sections are {', '.join(sections)}; not {', '.join(README_SECTIONS)}"]
    offenders = []
    for title in README_SECTIONS[1:-1]:
        blocks = list(blocks_of(sections[title]))
        steps = [step for block in blocks if block.language == "console" for step in steps_of(block.text)]
        code = [line for block in blocks if block.language == "python" for line in block.text.splitlines()]
        typed = len(steps) + sum(bool(line.strip()) and not line.startswith("#") for line in code)
        if not any(step.shown for step in steps):
            offenders.append(f"README.md: {title!r} shows no output")
        if typed > START_LINES_MAX:
            offenders.append(f"README.md: {title!r} takes {typed} lines to type, at most {START_LINES_MAX}")
    return offenders


def broken_block(root: Path, page: str, line: int) -> list[str]:
    """What is wrong with the block on this line, and with the output block right after it."""
    blocks = list(blocks_of(text_of(root, page)))
    index = next(index for index, block in enumerate(blocks) if block.line == line)
    program, *following = blocks[index : index + 2]
    if program.language == "python" and following and is_file_of(program, following[0]):
        return []
    if program.language == "python" and following and following[0].language == "text":
        return [f"{page}:{line}: {trouble}" for trouble in wrong_prints(root, program, following[0])]
    files = {}
    if index and program.language == "console" and (name := FILE_NAME.match(blocks[index - 1].text)):
        files = {name[1]: blocks[index - 1].text}
    return [f"{page}:{line}: {trouble}" for trouble in troubles(root, program, files)]


def is_file_of(program: Block, following: Block) -> bool:
    """Whether the block is a file that the console block after it runs."""
    name = FILE_NAME.match(program.text)
    return name is not None and following.language == "console" and name[1] in following.text


def blocks_of(text: str) -> Iterator[Block]:
    for match in re.finditer(r"(?ms)^```(\w*)[^\n]*\n(.*?)^```", text):
        yield Block(text.count("\n", 0, match.start()) + 1, match[1], match[2])


def troubles(root: Path, block: Block, files: Mapping[str, str] | None = None) -> list[str]:
    match block.language:
        case language if language in SHOWN_ONLY:
            return []
        case "python":
            return failures(root, [sys.executable, "-c", block.text])
        case "bash" if SETS_UP.search(block.text):
            return missing_parts(root, block.text)
        case "bash":
            return failures(root, ["bash", "-euo", "pipefail", "-c", block.text])
        case "console" if SETS_UP.search(block.text):
            return [*missing_parts(root, block.text), *wrong_recipes(root, block)]
        case "console":
            return wrong_outputs(root, list(steps_of(replace_port(block.text))), files)
        case language:
            return [f"a block of language {language!r} is not run; use python, bash or console"]


def wrong_prints(root: Path, program: Block, shown: Block) -> list[str]:
    """A text block right after a program must be the output of that program."""
    status, output = outcome(root, [sys.executable, "-c", program.text])
    if status:
        return [f"ends with status {status}:\n{output}"]
    return [] if output.strip() == shown.text.strip() else [f"the program prints\n{output}"]


def missing_parts(root: Path, text: str) -> list[str]:
    """Targets, extras and files that set-up commands name and that do not exist."""
    offenders = []
    targets = make_targets(root)
    for target in re.findall(r"\bmake ([\w-]+)", text):
        if target not in targets:
            offenders.append(f"the Makefile has no target {target!r}")
    project = tomllib.loads(text_of(root, "pyproject.toml"))["project"]
    for names in re.findall(r"\bpip install [^\n#]*?\[([\w, -]+)\]", text):
        for extra in re.split(r", *", names):
            if extra not in project.get("optional-dependencies", {}):
                offenders.append(f"pyproject.toml has no extra {extra!r}")
    for name in re.findall(r"\bpip install [^\n#]*?-[rc] +([\w./-]+)", text):
        if not (root / name).is_file():
            offenders.append(f"there is no file {name!r}")
    offenders += [
        f"there is no {name!r}" for name in re.findall(r"\bdeploy/[\w./*-]+", text) if not any(root.glob(name))
    ]
    return offenders


def wrong_recipes(root: Path, block: Block) -> list[str]:
    """The output of a make target, where the page shows it: its recipe is run without its prerequisites."""
    offenders = []
    for step in steps_of(block.text):
        target = re.fullmatch(r"make ([\w-]+)", step.command)
        if target and step.shown:
            offenders += wrong_outputs(root, [Step(recipe(root, target[1]), step.shown)])
    return offenders


def recipe(root: Path, target: str) -> str:
    match = re.search(rf"(?m)^{target}:.*\n((?:\t.*\n)+)", text_of(root, "Makefile"))
    lines = match[1].splitlines() if match else []
    return " && ".join(line.lstrip("\t@").replace("$(BIN)/", "") for line in lines)


def failures(root: Path, command: list[str]) -> list[str]:
    status, output = outcome(root, command)
    return [f"ends with status {status}:\n{output}"] if status else []


def replace_port(text: str) -> str:
    """The block with a free port in place of its server's; without it the gateway is expected at its default port."""
    if not (server := PORT.search(text)):
        return text
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    return f"$ export HOLDFAST_GATEWAY_URL=http://127.0.0.1:{port}\n" + text.replace(server[1], port)


def wrong_outputs(root: Path, steps: list[Step], files: Mapping[str, str] | None = None) -> list[str]:
    if not steps:
        return ["no line of the block begins with `$ `"]
    script = "\n".join(f"{step.command}{await_server(step)}\nprintf '\\n{SEPARATOR}%d\\n' $?" for step in steps)
    _, output = outcome(root, ["bash", "-c", script], files)
    parts = re.split(rf"\n{re.escape(SEPARATOR)}(\d+)\n", output)
    if len(parts) != 2 * len(steps) + 1:
        return [f"ends before its last command has:\n{output}"]
    offenders = []
    for step, printed, status in zip(steps, parts[::2], parts[1::2], strict=False):
        if status != "0" and not step.shown:
            offenders.append(f"`{step.command}` ends with status {status}:\n{printed}")
        elif step.shown and not shows(step.shown, printed):
            offenders.append(f"`{step.command}` prints\n{printed}\nand not\n{step.shown}")
    return offenders


def await_server(step: Step) -> str:
    server = PORT.search(step.command)
    return f"\n{AWAIT_PORT.format(port=server[1])}" if server else ""


def steps_of(text: str) -> Iterator[Step]:
    for part in re.split(r"(?m)^\$ ", text)[1:]:
        command, _, shown = part.replace("\\\n", "\0").partition("\n")
        yield Step(command.replace("\0", "\\\n"), shown.replace("\0", "\\\n"))


def shows(shown: str, printed: str) -> bool:
    """Whether a text with `...` matches the output; trailing spaces are ignored."""
    pattern = ""
    for line in shown.strip("\n").splitlines():
        parts = [re.escape(part) for part in line.rstrip().split("...")]
        pattern += "(?:.*\n)*?" if line.strip() == "..." else "[^\n]*".join(parts) + " *\n"
    return re.fullmatch(pattern, printed.strip("\n") + "\n") is not None


def outcome(root: Path, command: list[str], files: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Status and output of a command in a folder with these files and the examples, with an empty home."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        work, home = Path(folder, "here"), Path(folder, "home")
        work.mkdir()
        home.mkdir()
        (work / "examples").symlink_to(root / "examples")
        for name, text in (files or {}).items():
            (work / name).write_text(text)
        environment = {
            # Without the options of the test run that this is part of.
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            # Plugins that come with other packages of the tests take three seconds to load; no reader has them.
            "PYTEST_ADDOPTS": " ".join(f"-p no:{name}" for name in ("schemathesis", "langsmith_plugin", "anyio")),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(root / "src"),
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "NO_COLOR": "1",
        }
        # A process group of its own: processes that a block leaves in the background end with the block.
        process = subprocess.Popen(
            command,
            cwd=work,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=BLOCK_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            status = -signal.SIGKILL
        finally:
            end_group(process)
        output.seek(0)
        return status, output.read()


def end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
