"""The clients of the conformance run, with their pinned versions: one entry each."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from conformance.client import PROGRAMS, Client, Launch, Place
from conformance.model_script import CustomToolCall, ToolCall, Turn
from holdfast.types.json_encoding import encode_json

ANTHROPIC_MODEL = "claude-sonnet-5-5"
OPENAI_MODEL = "gpt-6.1-sol"
ANTHROPIC_SMALL_MODEL = "claude-haiku-5-5"
GEMINI_MODEL = "gemini-3.8-flash"
READ_PROMPT = "Which boats are listed in notes.txt? Look into the file."
WRITE_PROMPT = "Add the boat Kittiwake to notes.txt and check that it is there."
CHILD_PROMPT = "Count the lines of notes.txt in the working folder and report only the number."
_SHELL_COMMANDS = ("cat notes.txt", "echo Kittiwake >> notes.txt", "tail -n 1 notes.txt")
_Call = ToolCall | CustomToolCall


def _turns(read: _Call, write: _Call, check: _Call) -> tuple[Turn, ...]:
    return (
        Turn(READ_PROMPT, (read,), "The notes list Heron and Dunlin."),
        Turn(WRITE_PROMPT, (write, check), "Kittiwake is in the notes now."),
    )


def _claude_code_turns() -> tuple[Turn, ...]:
    read = ToolCall("Bash", {"command": "cat notes.txt", "description": "Read the notes"})
    task = {"description": "Count lines", "prompt": CHILD_PROMPT, "subagent_type": "general-purpose"}
    delegate = ToolCall("Agent", {**task, "run_in_background": False})
    count = ToolCall("Bash", {"command": "wc -l < notes.txt", "description": "Count the lines"})
    write = ToolCall("Bash", {"command": "echo Kittiwake >> notes.txt", "description": "Add a boat"})
    first, second = _turns(read, write, delegate)
    return first, second, Turn(CHILD_PROMPT, (count,), "3", delegated=True)


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


_CODEX_SETTINGS = """\
model = "{model}"
model_provider = "holdfast"

[model_providers.holdfast]
name = "Holdfast"
base_url = "{url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
supports_websockets = true
"""


def _run_in_codex(command: str) -> CustomToolCall:
    """For its newer models Codex offers one tool, which runs JavaScript that calls the others."""
    return CustomToolCall("exec", f"const result = await tools.exec_command({{cmd: {command!r}}}); text(result);")


def _start_codex(place: Place) -> Launch:
    settings = place.home / ".codex" / "config.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text(_CODEX_SETTINGS.format(model=OPENAI_MODEL, url=place.url))
    program = str(place.bin / "codex")
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
    commands = (
        (program, "exec", *options, READ_PROMPT),
        (program, "exec", "resume", "--last", *options, WRITE_PROMPT),
    )
    return Launch(commands, {"OPENAI_API_KEY": "any"})


_FUNCTION_TURNS = _turns(
    ToolCall("read_file", {"path": "notes.txt"}),
    ToolCall("append_line", {"path": "notes.txt", "line": "Kittiwake"}),
    ToolCall("read_file", {"path": "notes.txt"}),
)
"""The turns of the agents in `programs/`, which have these two tools."""


def _start_program(
    file: str, model: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Place], Launch]:
    def start(place: Place) -> Launch:
        command = (str(place.bin / "python"), str(PROGRAMS / file), place.url, model, READ_PROMPT, WRITE_PROMPT)
        return Launch((command,), environment)

    return start


def _start_ai_sdk(place: Place) -> Launch:
    arguments = (str(place.bin.parent), place.url, ANTHROPIC_MODEL, READ_PROMPT, WRITE_PROMPT)
    return Launch((("node", str(PROGRAMS / "ai_sdk_agent.mjs"), *arguments),))


def _start_opencode(place: Place) -> Launch:
    models = {ANTHROPIC_MODEL: {"name": ANTHROPIC_MODEL}, ANTHROPIC_SMALL_MODEL: {"name": ANTHROPIC_SMALL_MODEL}}
    settings = {
        "provider": {"anthropic": {"options": {"baseURL": f"{place.url}/v1", "apiKey": "any"}, "models": models}},
        "model": f"anthropic/{ANTHROPIC_MODEL}",
        "small_model": f"anthropic/{ANTHROPIC_SMALL_MODEL}",
        "permission": {"bash": "allow", "edit": "allow"},
        "autoupdate": False,
        "share": "disabled",
    }
    (place.work / "opencode.json").write_bytes(encode_json(settings))
    program = str(place.bin / "opencode")
    return Launch(((program, "run", READ_PROMPT), (program, "run", "-c", WRITE_PROMPT)))


def _start_gemini_cli(place: Place) -> Launch:
    settings = place.home / ".gemini" / "settings.json"
    settings.parent.mkdir(parents=True)
    settings.write_bytes(encode_json({"security": {"auth": {"selectedType": "gemini-api-key"}}}))
    environment = {
        "GOOGLE_GEMINI_BASE_URL": place.url,
        "GEMINI_API_KEY": "any",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }
    options = ("-y", "-m", GEMINI_MODEL, "--output-format", "json")
    program = str(place.bin / "gemini")
    # Two conversations: `-r latest` sends each function response of the resumed one twice. The API refuses a turn with
    # more responses than calls (google-gemini/gemini-cli#16984 and others), and so does the simulator.
    return Launch(tuple((program, *options, "-p", prompt) for prompt in (READ_PROMPT, WRITE_PROMPT)), environment)


_AIDER_QUESTIONS = tuple(f"Is boat number {number} in notes.txt a bird?" for number in range(1, 4))
_AIDER_TURNS = (
    Turn(READ_PROMPT, (), "The notes list Heron and Dunlin."),
    Turn(WRITE_PROMPT, (), "I add the boat.\n\nnotes.txt\n```\nHeron\nDunlin\nKittiwake\n```\n"),
    *(Turn(question, (), "It has the name of one.") for question in _AIDER_QUESTIONS),
)
"""Aider has no tools: it takes changes from the text, and each turn is one call."""


def _start_aider(place: Place) -> Launch:
    quiet = ("--no-pretty", "--no-check-update", "--no-show-model-warnings", "--analytics-disable")
    options = ("--yes-always", "--no-git", "--edit-format", "whole", "--model", f"anthropic/{ANTHROPIC_MODEL}")
    command = (str(place.bin / "aider"), *quiet, *options, "notes.txt")
    environment = {"ANTHROPIC_API_BASE": place.url, "ANTHROPIC_API_KEY": "any"}
    return Launch((command,), environment, "\n".join((READ_PROMPT, WRITE_PROMPT, *_AIDER_QUESTIONS, "/exit\n")))


_NOTES_PATH = {"file_path": "/notes.txt"}
_DEEPAGENTS_TURNS = (
    *_turns(
        ToolCall("read_file", _NOTES_PATH),
        ToolCall("edit_file", {**_NOTES_PATH, "old_string": "Dunlin\n", "new_string": "Dunlin\nKittiwake\n"}),
        ToolCall("task", {"description": CHILD_PROMPT, "subagent_type": "general-purpose"}),
    ),
    Turn(CHILD_PROMPT, (ToolCall("read_file", _NOTES_PATH),), "3", delegated=True),
)


_SMOLAGENTS_TURNS = tuple(
    Turn(turn.prompt, (*turn.calls, ToolCall("final_answer", {"answer": turn.answer})), turn.answer)
    for turn in _FUNCTION_TURNS
)
"""Its agents give their answer to a tool."""


_SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def _list_mini_swe_agent_turns() -> tuple[Turn, ...]:
    """Its model has one tool, and hands in its answer by printing a line that announces it."""
    read, write, check = (ToolCall("bash", {"command": line}) for line in _SHELL_COMMANDS)
    return tuple(
        Turn(turn.prompt, (*turn.calls, ToolCall("bash", {"command": _SUBMIT}, turn.answer)), turn.answer)
        for turn in _turns(read, write, check)
    )


def _start_mini_swe_agent(place: Place) -> Launch:
    options = ("-y", "-m", f"anthropic/{ANTHROPIC_MODEL}", "-o", str(place.home / "trajectory.json"))
    environment = {
        "ANTHROPIC_API_BASE": place.url,
        "ANTHROPIC_API_KEY": "any",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_SILENT_STARTUP": "1",
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "2",
    }
    # It asks for a new task when it has finished one; an empty line ends it.
    return Launch(((str(place.bin / "mini"), *options, "-t", READ_PROMPT),), environment, f"{WRITE_PROMPT}\n\n")


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
        in_ci=True,
    ),
    Client(
        name="codex",
        registry="npm",
        packages=(("@openai/codex", "0.166.0"),),
        provider="openai",
        turns=_turns(*map(_run_in_codex, _SHELL_COMMANDS)),
        start=_start_codex,
        setting="in `~/.codex/config.toml`: `model_provider` and `[model_providers.holdfast]` with "
        '`base_url = "http://127.0.0.1:8787/openai/v1"`, `wire_api = "responses"`, `supports_websockets = true`',
        in_ci=True,
    ),
    Client(
        name="langchain",
        registry="pypi",
        packages=(("langchain", "1.4.7"), ("langchain-core", "1.7.2"), ("langchain-anthropic", "1.7.7")),
        provider="anthropic",
        turns=_FUNCTION_TURNS,
        start=_start_program("langchain_agent.py", ANTHROPIC_MODEL),
        setting='`ChatAnthropic(base_url="http://127.0.0.1:8787/anthropic")`',
    ),
    Client(
        name="pydantic-ai",
        registry="pypi",
        packages=(("pydantic-ai-slim[anthropic]", "2.66.0"),),
        provider="anthropic",
        turns=_FUNCTION_TURNS,
        start=_start_program("pydantic_ai_agent.py", ANTHROPIC_MODEL),
        setting='`AnthropicModel(name, provider=AnthropicProvider(base_url="http://127.0.0.1:8787/anthropic"))`',
        in_ci=True,
    ),
    Client(
        name="openai-agents",
        registry="pypi",
        packages=(("openai-agents", "0.24.0"),),
        provider="openai",
        turns=_FUNCTION_TURNS,
        start=_start_program("openai_agents_agent.py", OPENAI_MODEL),
        setting='`OpenAIResponsesModel(name, AsyncOpenAI(base_url="http://127.0.0.1:8787/openai/v1"))`',
        in_ci=True,
    ),
    Client(
        name="ai-sdk",
        registry="npm",
        packages=(("ai", "7.0.170"), ("@ai-sdk/anthropic", "4.0.102"), ("zod", "4.6.7")),
        provider="anthropic",
        turns=_FUNCTION_TURNS,
        start=_start_ai_sdk,
        setting='`createAnthropic({baseURL: "http://127.0.0.1:8787/anthropic/v1"})`',
    ),
    Client(
        name="opencode",
        registry="npm",
        packages=(("opencode-ai", "1.18.33"),),
        provider="anthropic",
        turns=_turns(*(ToolCall("bash", {"command": line, "description": "Notes"}) for line in _SHELL_COMMANDS)),
        start=_start_opencode,
        setting='in `opencode.json`: `{"provider": {"anthropic": {"options": '
        '{"baseURL": "http://127.0.0.1:8787/anthropic/v1"}}}}`',
        others=1,
    ),
    Client(
        name="gemini-cli",
        registry="npm",
        packages=(("@google/gemini-cli", "0.61.0"),),
        provider="gemini",
        turns=_turns(*(ToolCall("run_shell_command", {"command": line}) for line in _SHELL_COMMANDS)),
        start=_start_gemini_cli,
        setting="`GOOGLE_GEMINI_BASE_URL=http://127.0.0.1:8787/gemini`",
        others=1,
        in_ci=True,
    ),
    Client(
        name="aider",
        registry="pypi",
        packages=(("aider-chat", "0.86.2"),),
        provider="anthropic",
        turns=_AIDER_TURNS,
        start=_start_aider,
        setting="`ANTHROPIC_API_BASE=http://127.0.0.1:8787/anthropic` or "
        "`OPENAI_API_BASE=http://127.0.0.1:8787/openai/v1`",
        # It repeats its rules at the end of the newest message only, so every call changes the message before; and it
        # lists the files again after the turns in which they were changed.
        breaks=2,
    ),
    Client(
        name="claude-agent-sdk",
        registry="pypi",
        packages=(("claude-agent-sdk", "0.2.183"),),
        provider="anthropic",
        turns=_claude_code_turns(),
        start=_start_program("claude_agent_sdk_agent.py", ANTHROPIC_MODEL),
        setting='`ClaudeAgentOptions(env={"ANTHROPIC_BASE_URL": "http://127.0.0.1:8787/anthropic"})`',
        children=1,
        # Each turn has a call for a title, whose system prompt begins with another `x-anthropic-billing-header`.
        others=1,
        breaks=1,
    ),
    Client(
        name="deepagents",
        registry="pypi",
        packages=(("deepagents", "0.7.32"), ("langchain", "1.4.7"), ("langchain-core", "1.7.2")),
        provider="anthropic",
        turns=_DEEPAGENTS_TURNS,
        start=_start_program("deepagents_agent.py", ANTHROPIC_MODEL),
        setting='`create_deep_agent(model=ChatAnthropic(base_url="http://127.0.0.1:8787/anthropic"))`',
        children=1,
    ),
    Client(
        name="litellm",
        registry="pypi",
        packages=(("litellm", "1.106.2"), ("mcp", "2.3.0")),
        provider="anthropic",
        turns=_FUNCTION_TURNS,
        start=_start_program("litellm_agent.py", ANTHROPIC_MODEL),
        setting='`completion(model="anthropic/...", api_base="http://127.0.0.1:8787/anthropic")`',
    ),
    Client(
        name="google-adk",
        registry="pypi",
        packages=(("google-adk", "2.13.0"),),
        provider="gemini",
        turns=_FUNCTION_TURNS,
        start=_start_program("google_adk_agent.py", GEMINI_MODEL, {"GOOGLE_API_KEY": "any"}),
        setting='`LlmAgent(model=Gemini(model=name, base_url="http://127.0.0.1:8787/gemini"))`',
    ),
    Client(
        name="smolagents",
        registry="pypi",
        packages=(("smolagents[openai]", "1.26.0"),),
        provider="openai",
        turns=_SMOLAGENTS_TURNS,
        start=_start_program("smolagents_agent.py", OPENAI_MODEL),
        setting='`OpenAIModel(model_id=name, api_base="http://127.0.0.1:8787/openai/v1")`',
        in_ci=True,
    ),
    Client(
        name="inspect",
        registry="pypi",
        packages=(("inspect-ai", "0.3.285"), ("anthropic", "2.9.0")),
        provider="anthropic",
        turns=_FUNCTION_TURNS,
        start=_start_program("inspect_agent.py", ANTHROPIC_MODEL),
        setting='`get_model("anthropic/...", base_url="http://127.0.0.1:8787/anthropic")`, or '
        "`ANTHROPIC_BASE_URL=http://127.0.0.1:8787/anthropic`",
        # Its two samples are conversations of their own.
        others=1,
    ),
    Client(
        name="mini-swe-agent",
        registry="pypi",
        packages=(("mini-swe-agent", "2.4.6"), ("litellm", "1.106.2"), ("mcp", "2.3.0")),
        provider="anthropic",
        turns=_list_mini_swe_agent_turns(),
        start=_start_mini_swe_agent,
        setting="`ANTHROPIC_API_BASE=http://127.0.0.1:8787/anthropic` or "
        "`OPENAI_API_BASE=http://127.0.0.1:8787/openai/v1`",
    ),
)
