"""The clients of the conformance run, with their pinned versions: one entry each."""

from conformance.client import Client, Launch, Place
from conformance.model_script import ToolCall, Turn

ANTHROPIC_MODEL = "claude-sonnet-5-5"
OPENAI_MODEL = "gpt-6.1-sol"
READ_PROMPT = "Which boats are listed in notes.txt? Look into the file."
WRITE_PROMPT = "Add the boat Kittiwake to notes.txt and check that it is there."
CHILD_PROMPT = "Count the lines of notes.txt in the working folder and report only the number."


def _turns(read: ToolCall, write: ToolCall, check: ToolCall) -> tuple[Turn, ...]:
    return (
        Turn(READ_PROMPT, (read,), "The notes list Heron and Dunlin."),
        Turn(WRITE_PROMPT, (write, check), "Kittiwake is in the notes now."),
    )


def _shell_turns(name: str, argument: str, **others: object) -> tuple[Turn, ...]:
    """The turns of a client whose model runs shell commands."""
    commands = ("cat notes.txt", "echo Kittiwake >> notes.txt", "tail -n 1 notes.txt")
    read, write, check = (ToolCall(name, {argument: command, **others}) for command in commands)
    return _turns(read, write, check)


def _start_claude_code(place: Place) -> Launch:
    program = str(place.bin / "claude")
    options = ("--output-format", "json", "--dangerously-skip-permissions", "--model", ANTHROPIC_MODEL)
    environment = {
        "ANTHROPIC_BASE_URL": place.url,
        "ANTHROPIC_API_KEY": "any",
        "IS_SANDBOX": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }
    commands = ((program, "-p", READ_PROMPT, *options), (program, "-p", "-c", WRITE_PROMPT, *options))
    return Launch(commands, environment)


def _claude_code_turns() -> tuple[Turn, ...]:
    read = ToolCall("Bash", {"command": "cat notes.txt", "description": "Read the notes"})
    task = {"description": "Count lines", "prompt": CHILD_PROMPT, "subagent_type": "general-purpose"}
    delegate = ToolCall("Agent", {**task, "run_in_background": False})
    count = ToolCall("Bash", {"command": "wc -l < notes.txt", "description": "Count the lines"})
    write = ToolCall("Bash", {"command": "echo Kittiwake >> notes.txt", "description": "Add a boat"})
    first, second = _turns(read, write, delegate)
    return first, second, Turn(CHILD_PROMPT, (count,), "3", delegated=True)


CLIENTS: tuple[Client, ...] = (
    Client(
        name="claude-code",
        registry="npm",
        packages=(("@anthropic-ai/claude-code", "2.1.325"),),
        provider="anthropic",
        turns=_claude_code_turns(),
        start=_start_claude_code,
        setting="`ANTHROPIC_BASE_URL=http://127.0.0.1:8787/anthropic`",
        children=1,
    ),
)
