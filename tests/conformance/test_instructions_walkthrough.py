"""The walkthrough of docs/instructions.md, from an AGENTS.md to a session that recalls a unit, in at most six commands.

The model is the scripted simulator. What Claude Code would start is started from its settings files; where Claude Code
is installed, by `make clients` or npm, it is the real one.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import anthropic
import pytest
from conformance.clients import ANTHROPIC_MODEL, CLIENTS
from conformance.model_script import ScriptedModel, ToolCall, Turn
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from holdfast.testing.server_thread import serve_provider

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
PAGE = Path(__file__).parents[2] / "docs" / "instructions.md"
COMMANDS_MAX = 6
PROMPT = "Fix the failing test and commit"
INTENT = "run the tests before I commit"
TOOL = "recall_instruction"
RULE = "Run the whole suite before every commit"


def documented_commands() -> list[str]:
    section = PAGE.read_text().partition("## Ten minutes to a Claude Code session")[2]
    block = re.search(r"```bash\n(.*?)```", section, re.S)
    assert block is not None
    return block[1].strip().split("\n")


def environment(home: Path) -> dict[str, str]:
    own = {"HOME": str(home), "HOLDFAST_HOME": str(home / "holdfast"), "OPENBLAS_NUM_THREADS": "1"}
    passed = ("PATH", "LANG", "PYTHONPATH")
    return {name: os.environ[name] for name in passed if name in os.environ} | own


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project after every command of the page but the last, which starts the client."""
    work = tmp_path / "work"
    work.mkdir()
    example = re.search(r"```markdown\n(.*?)```", PAGE.read_text(), re.S)
    assert example is not None
    (work / "AGENTS.md").write_text(example[1])
    *commands, last = documented_commands()
    assert len(commands) + 1 <= COMMANDS_MAX
    assert last.startswith("claude ")
    for line in commands:
        words = shlex.split(line)
        assert words[0] == "holdfast"
        run = subprocess.run(
            [sys.executable, "-P", "-m", "holdfast", *words[1:]],
            cwd=work,
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert run.returncode == 0, (line, run.stdout, run.stderr)
    return work


def run_hook(project: Path, home: Path) -> str:
    """The text that the hook in Claude Code's settings adds to a new session."""
    settings = json.loads((project / ".claude" / "settings.json").read_text())
    words = shlex.split(settings["hooks"]["SessionStart"][0]["hooks"][0]["command"])
    event = json.dumps({"hook_event_name": "SessionStart", "source": "startup"})
    started = subprocess.run(
        words, input=event, cwd=project, env=environment(home), capture_output=True, text=True, check=True
    )
    text: str = json.loads(started.stdout)["hookSpecificOutput"]["additionalContext"]
    return text


async def test_what_the_settings_start_gives_a_scripted_model_its_unit(project: Path, tmp_path: Path) -> None:
    context = run_hook(project, tmp_path)
    assert "- testing: " in context
    server = json.loads((project / ".mcp.json").read_text())["mcpServers"]["holdfast"]
    words = StdioServerParameters(
        command=server["command"], args=server["args"], env=environment(tmp_path), cwd=project
    )
    model = ScriptedModel((Turn(PROMPT, (ToolCall(TOOL, {"intent": INTENT}),), "Done."),))
    connection: Any = Client(stdio_client(words))
    async with connection as client:
        tools = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
            for tool in (await client.list_tools()).tools
        ]
        with serve_provider(model) as url:
            api: Any = anthropic.Anthropic(base_url=url, api_key="any")
            messages: list[Any] = [{"role": "user", "content": PROMPT}]
            options = {"model": ANTHROPIC_MODEL, "max_tokens": 500, "system": context, "tools": tools}
            reply = api.messages.create(messages=messages, **options)
            (call,) = [block for block in reply.content if block.type == "tool_use"]
            result = await client.call_tool(call.name, call.input)
            text = result.content[0].text
            messages += [
                {"role": "assistant", "content": [block.model_dump() for block in reply.content]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": text}]},
            ]
            assert api.messages.create(messages=messages, **options).content[0].text == "Done."
    assert RULE in text


def find_claude_code() -> Path | None:
    program = next(client for client in CLIENTS if client.name == "claude-code").bin / "claude"
    return program if program.exists() else None


@pytest.mark.skipif(find_claude_code() is None, reason="Claude Code is not installed; `make clients` installs it")
@pytest.mark.timeout(300)
def test_claude_code_recalls_a_unit(project: Path, tmp_path: Path) -> None:
    # It connects to MCP servers in the background: the model waits first, as it would while it reads files.
    wait = ToolCall("Bash", {"command": "sleep 20", "description": "Wait"})
    recall = ToolCall(f"mcp__holdfast__{TOOL}", {"intent": INTENT})
    model = ScriptedModel((Turn(PROMPT, (wait, recall), "Done."),))
    with serve_provider(model) as url:
        own = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "any", "IS_SANDBOX": "1", "ENABLE_TOOL_SEARCH": "false"}
        quiet = dict.fromkeys(("DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING"), "1")
        options = ("--output-format", "json", "--dangerously-skip-permissions", "--model", ANTHROPIC_MODEL)
        run = subprocess.run(
            [str(find_claude_code()), "-p", PROMPT, *options],
            cwd=project,
            env=environment(tmp_path) | own | quiet,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["result"] == "Done."
    bodies = [json.loads(request.body) for request in model.requests]
    assert json.dumps(bodies[0]).count("# Agent Boot Stub") == 1
    assert "- testing: " in json.dumps(bodies[0])
    assert RULE in json.dumps(bodies[-1]["messages"][-1])
