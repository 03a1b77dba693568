"""Requests to Anthropic and its replies are byte for byte those of the golden files."""

from pathlib import Path

import msgspec
import pytest
from tests.support import wire_values as values
from tests.support.goldens import check_golden

from holdfast.providers.anthropic import anthropic
from holdfast.types.blocks import (
    Base64Source,
    FileSource,
    Image,
    Json,
    Opaque,
    RedactedThinking,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UrlSource,
)
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.reply import Reply, ReplyFinished
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.usage import Usage

HERE = Path(__file__).parent / "anthropic"

READ_FILE = ToolSpec(
    "read_file",
    "Reads a file of the workspace.",
    '{"properties":{"path":{"type":"string"}},"required":["path"],"type":"object"}',
)
RUN = ToolSpec("run", "Runs a command.", '{"properties":{"command":{"type":"string"}},"type":"object"}')
WEB_SEARCH = ToolSpec("web_search", "", "{}", '{"type":"web_search_20260301","name":"web_search","max_uses":3}')
TOOLS = Segment("tools", Stability.FROZEN, "tools", tools=(READ_FILE, RUN))
ROLE = Segment("role", Stability.FROZEN, "system", system=(Text("You mend programs."),))
PROJECT = Segment("project", Stability.EPOCH, "system", system=(Text('Tests run with "make test".\n'),))

SONNET = Parameters("claude-sonnet-5-5", 4096)
DONE = Reply(
    (Text("It prints a greeting."),),
    "end_turn",
    Usage(input=12, cache_read=2800, cache_write_5m=980, cache_write_1h=20, output=7),
    "claude-sonnet-5-5",
    "msg_01",
)


class Case(msgspec.Struct, frozen=True):
    prompt: Prompt
    plan: Plan = Plan()
    parameters: Parameters = SONNET
    reply: Reply = DONE


def history(*passages: HistoryEntry) -> Segment:
    return Segment("history", Stability.GROWING, "messages", entries=passages)


def user(*content: Text | Image | ToolResult | Opaque) -> HistoryEntry:
    return HistoryEntry("user", content)


def assistant(*content: Text | ToolUse | Thinking | RedactedThinking | Opaque) -> HistoryEntry:
    return HistoryEntry("assistant", content)


def call(number: int, path: str) -> ToolUse:
    # Spaces stay: what the model wrote is sent back unchanged.
    return ToolUse(f"toolu_{number}", "read_file", f'{{"path": "{path}"}}')


def result(number: int, text: str, *, is_error: bool = False) -> ToolResult:
    return ToolResult(f"toolu_{number}", (Text(text),), is_error)


ASK = user(Text("What does hello.py do?"))

CASES = {
    "first_call": Case(
        Prompt((TOOLS, ROLE, PROJECT, history(ASK))),
        Plan((Breakpoint(1), Breakpoint(3), Breakpoint(4))),
        msgspec.structs.replace(SONNET, stream=True),
    ),
    "tool_loop": Case(
        Prompt(
            (
                TOOLS,
                ROLE,
                history(
                    ASK,
                    assistant(Text("I will read it."), call(1, "hello.py")),
                    user(result(1, "print('hello')\n")),
                    assistant(call(2, "nowhere.py")),
                    user(result(2, "there is no such file", is_error=True)),
                ),
            )
        ),
        Plan((Breakpoint(1), Breakpoint(2), Breakpoint(7))),
    ),
    "parallel_tools": Case(
        Prompt(
            (
                TOOLS,
                ROLE,
                history(
                    ASK,
                    assistant(call(1, "a.py"), call(2, "b.py"), call(3, "c.py")),
                    user(result(1, "a"), result(2, "b"), result(3, "c"), Text("Go on.")),
                ),
            )
        ),
        Plan((Breakpoint(10),)),
        reply=msgspec.structs.replace(
            DONE, content=(Text("Both."), call(4, "d.py"), call(5, "é.py")), stop_reason="tool_use"
        ),
    ),
    "volatile_text": Case(
        Prompt(
            (
                TOOLS,
                ROLE,
                history(
                    HistoryEntry("user", (Text("Today is Monday."),), "environment", Stability.VOLATILE),
                    ASK,
                    assistant(call(1, "hello.py")),
                    user(result(1, "print('hello')\n")),
                    HistoryEntry("user", (Text("Branch: main"),), "git", Stability.VOLATILE, ephemeral=True),
                ),
            )
        ),
        Plan((Breakpoint(6),)),
    ),
    "no_volatile_text": Case(Prompt((TOOLS, ROLE, history(ASK))), Plan((Breakpoint(1), Breakpoint(2)))),
    "no_tools": Case(Prompt((ROLE, PROJECT, history(ASK))), Plan((Breakpoint(1),))),
    "no_system": Case(Prompt((history(ASK),)), Plan((Breakpoint(0),))),
    "thinking": Case(
        Prompt((history(ASK, assistant(Thinking("Hm.", "c2ln"), call(1, "x")), user(result(1, "y"))),)),
        Plan((Breakpoint(3),)),
        Parameters("claude-sonnet-5-5", 4096, thinking_json='{"type":"adaptive"}'),
        msgspec.structs.replace(DONE, content=(Thinking("Easy.", "c2lnMg=="), Text("Done."))),
    ),
    "redacted_thinking": Case(
        Prompt((history(ASK, assistant(RedactedThinking("c2VhbGVk"), Text("So.")), ASK),)),
        Plan((Breakpoint(2),)),
        reply=msgspec.structs.replace(DONE, content=(RedactedThinking("c2VhbGVk"), Text("Done."))),
    ),
    "images": Case(
        Prompt(
            (
                history(
                    user(
                        Image(Base64Source("image/png", "iVBORw0KGgo=")),
                        Image(UrlSource("https://example.org/a.png")),
                        Image(FileSource("file_011")),
                        Text("Compare these."),
                    ),
                    assistant(call(1, "d.png")),
                    user(ToolResult("toolu_1", (Image(Base64Source("image/gif", "R0lGOD==")),))),
                ),
            )
        ),
        Plan((Breakpoint(2), Breakpoint(5))),
    ),
    "betas": Case(
        Prompt((history(ASK),)),
        parameters=Parameters(
            "claude-sonnet-5-5",
            1,
            betas=("context-management-2025-06-27", "compact-2026-01-12"),
            stop_sequences=("END", "\n\n"),
            temperature=0.5,
            tool_choice_json='{"type":"none"}',
            extra=(("metadata", '{"user_id": "u1"}'), ("service_tier", '"auto"')),
        ),
        reply=msgspec.structs.replace(DONE, stop_reason="stop_sequence", stop_sequence="END"),
    ),
    "breakpoints_of_both_ttls": Case(
        Prompt((Segment("tools", Stability.FROZEN, "tools", tools=(READ_FILE, WEB_SEARCH)), ROLE, history(ASK))),
        Plan((Breakpoint(1, "1h"), Breakpoint(2, "1h"), Breakpoint(3, "5m"))),
    ),
    "unknown_block": Case(
        Prompt(
            (
                history(
                    user(
                        Opaque("document", b'{"type":"document", "source":{"type":"file","file_id":"f1"}}'),
                        Opaque("hologram", b'{"depth":3.0,"type":"hologram"}'),
                    ),
                    HistoryEntry("system", (Text("Answer in French."),)),
                ),
            )
        ),
        Plan((Breakpoint(0),)),
        reply=msgspec.structs.replace(
            DONE, content=(Opaque("hologram", b'{"depth":3.0,"type":"hologram"}'), Text("Voilà."))
        ),
    ),
}


def to_json(value: object) -> Json:
    """The value as JSON, with bytes as the text they are."""
    match msgspec.to_builtins(value, builtin_types=(bytes,)):
        case dict() as members:
            return {str(name): to_json(member) for name, member in members.items()}
        case list() | tuple() as items:
            return [to_json(item) for item in items]
        case bytes() as raw:
            return raw.decode()
        case None | bool() | int() | float() | str() as plain:
            return plain
        case other:
            raise TypeError(type(other))


@pytest.mark.parametrize("name", CASES)
def test_requests_and_replies_match_the_golden_bytes(name: str) -> None:
    case = CASES[name]
    agreed = {
        "request": to_json(case),
        "endpoint": to_json(anthropic.endpoint(case.parameters)),
        "body": anthropic.encode_request(case.prompt, case.plan, case.parameters).decode(),
        "reply_body": anthropic.encode_reply(case.reply).decode(),
        "stream": [event.decode() for event in anthropic.encode_stream(case.reply)],
    }
    check_golden(HERE / f"{name}.json", msgspec.json.format(msgspec.json.encode(agreed), indent=2) + b"\n")


@pytest.mark.parametrize("name", CASES)
def test_golden_bytes_decode_to_their_case(name: str) -> None:
    case = CASES[name]
    agreed = msgspec.json.decode((HERE / f"{name}.json").read_bytes())
    read = anthropic.decode_request(agreed["body"].encode(), dict(agreed["endpoint"]["headers"]))
    deltas = list(anthropic.make_stream_decoder().feed("".join(agreed["stream"]).encode()))

    assert values.messages_of(read.prompt) == values.messages_of(case.prompt)
    assert (read.prompt.tools, read.plan, read.parameters) == (case.prompt.tools, case.plan, case.parameters)
    assert anthropic.decode_reply(agreed["reply_body"].encode()) == case.reply
    assert deltas[-1] == ReplyFinished(case.reply)


def test_betas_are_sent_in_the_header_and_never_in_the_body() -> None:
    agreed = msgspec.json.decode((HERE / "betas.json").read_bytes())
    assert ["anthropic-beta", "context-management-2025-06-27,compact-2026-01-12"] in agreed["endpoint"]["headers"]
    assert "beta" not in agreed["body"]
    assert "compact-2026" not in agreed["body"]


def test_every_golden_file_belongs_to_a_case() -> None:
    assert {path.stem for path in HERE.glob("*.json")} == set(CASES)
