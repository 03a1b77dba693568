"""The display of a turn in progress, and which stream it is written to."""

import io
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from holdfast.cli.chat.screen import ChatScreen, TurnView, read_piped_messages, shorten_home_path
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, RequestPrepared, ToolCalled, ToolCompleted, ToolFailed
from holdfast.events.payloads.session import TurnCancelled
from holdfast.events.payloads.union import AnyPayload
from holdfast.types.blocks import Block, Text, ToolUse
from holdfast.types.prompt import Plan
from holdfast.types.reply import Reply, ReplyFinished, StopReason, TextDelta, ThinkingDelta
from holdfast.types.usage import Usage


class RecordedScreen:
    """A turn on a screen that is only recorded."""

    def __init__(self, *, interactive: bool = False, colours: bool = False, thinking: bool = False) -> None:
        self.out, self.err = io.StringIO(), io.StringIO()
        self.screen = ChatScreen(self.out, self.err, interactive=interactive, colours=colours)
        self.view = TurnView(self.screen, thinking=thinking)

    def happen(self, *payloads: AnyPayload) -> None:
        for payload in payloads:
            self.view.show_item(Event("e", 0.0, "s", "tool", payload))

    def reply(self, *content: Block) -> None:
        self.view.show_item(ReplyFinished(Reply(content, "tool_use", Usage())))

    @property
    def notes(self) -> list[str]:
        return self.err.getvalue().splitlines()


def completed(stop_reason: StopReason) -> LlmCallCompleted:
    return LlmCallCompleted(
        model="m",
        provider="p",
        usage=Usage(),
        cost_usd=Decimal(0),
        pricing_version="",
        latency_ms=1,
        stop_reason=stop_reason,
        produced_tool_calls=0,
        produced_thinking_blocks=0,
        request_id="r",
    )


def test_reply_text_goes_to_stdout_as_it_arrives_and_ends_with_a_newline() -> None:
    screen = RecordedScreen()
    screen.view.show_item(TextDelta(0, "Hel"))
    screen.view.show_item(TextDelta(0, ""))
    screen.view.show_item(TextDelta(0, "lo"))
    assert screen.out.getvalue() == "Hello"
    screen.reply(Text("Hello"))
    screen.reply(Text("Hello"))
    assert screen.out.getvalue() == "Hello\n"


def test_thinking_is_shown_only_on_request_and_separate_from_the_reply() -> None:
    hidden, visible = RecordedScreen(), RecordedScreen(colours=True, thinking=True)
    for screen in (hidden, visible):
        screen.view.show_item(ThinkingDelta(0, "hm"))
        screen.view.show_item(TextDelta(1, "Yes."))
    assert hidden.out.getvalue() == "Yes."
    assert visible.out.getvalue() == "\033[2mhm\033[0m\nYes."


def test_a_call_is_one_line_from_start_to_end() -> None:
    screen = RecordedScreen()
    screen.reply(ToolUse("t", "read_file", '{"path":"a"}'))
    screen.happen(ToolCalled("t", "read_file", "", 0, "read"))
    assert screen.err.getvalue() == "  read_file a"
    screen.happen(ToolCompleted("t", True, 12, 3))
    assert screen.err.getvalue() == "  read_file a → 12 bytes, 3 ms\n"


def test_concurrent_calls_have_a_line_each_in_order_of_completion() -> None:
    screen = RecordedScreen()
    screen.reply(ToolUse("t", "read_file", '{"path":"a"}'), ToolUse("u", "run_command", '{"command":"ls"}'))
    screen.happen(ToolCalled("t", "read_file", "", 0, "read"), ToolCalled("u", "run_command", "", 0, "execute"))
    screen.happen(ToolCompleted("u", False, 2_000, 1_500), ToolFailed("t", "not_found", "there is\nno a", 1))
    screen.happen(ToolFailed("x", "user_denied", "The user did not allow this call.", 0))
    assert screen.notes == [
        "  run_command ls → 2.0 kB, 1.5 s, failed",
        "  read_file a → not found: there is no a",
        "  a tool → user denied",
    ]


def test_the_reason_of_an_interrupted_reply_or_turn_is_shown() -> None:
    screen = RecordedScreen()
    screen.happen(completed("max_tokens"), completed("refusal"), completed("end_turn"))
    screen.happen(TurnCancelled("step_limit", 1, 0), TurnCancelled("user_cancel", 1, 0))
    assert screen.notes == [
        "  the reply was cut off at the limit of output tokens",
        "  the model refused to answer",
        "  stopped: the turn reached its limit of model calls",
    ]


def test_the_plan_of_the_last_request_is_available() -> None:
    screen = RecordedScreen()
    for note in ("first", "second"):
        screen.happen(RequestPrepared(Plan(notes=(note,)), "", 0, (), "", 0))
    assert screen.view.plan == Plan(notes=("second",))


def test_on_a_terminal_everything_is_shown_in_one_place() -> None:
    screen = RecordedScreen(interactive=True, colours=True)
    screen.screen.stream_text("Hi")
    screen.screen.show_note("aside")
    screen.screen.show_error("bad")
    screen.screen.show_change(["+new", "-old", " same"], whole=True)
    assert screen.err.getvalue() == ""
    assert screen.out.getvalue() == (
        "Hi\n\033[2m  aside\033[0m\n\033[31mbad\033[0m\n\033[32m  +new\033[0m\n\033[31m  -old\033[0m\n   same\n"
    )


def test_without_a_terminal_there_are_no_confirmations() -> None:
    screen = RecordedScreen()
    screen.screen.stream_text("Hi")
    assert screen.screen.read_answer("Sure? ") is None
    assert screen.out.getvalue() == "Hi\n"


def test_a_long_change_is_shortened_until_all_of_it_is_requested() -> None:
    screen = RecordedScreen()
    screen.screen.show_change(["+x"] * 50, whole=False)
    assert screen.notes[-1] == "  ... 10 more lines"
    screen.screen.show_change(["+x"] * 50, whole=True)
    assert screen.err.getvalue().count("+x") == 90


def test_piped_lines_are_messages() -> None:
    assert list(read_piped_messages(io.StringIO("a\n\n  \nb\\\nc\nd"))) == ["a", "b\nc", "d"]


def test_a_path_in_the_home_is_abbreviated() -> None:
    home = os.environ["HOME"]
    assert [shorten_home_path(path) for path in (home, f"{home}/a", f"{home}x", "/b")] == ["~", "~/a", f"{home}x", "/b"]


def test_ctrl_c_without_a_terminal_cancels_and_ends_with_130(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "holdfast", "chat", "--simulate"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=tmp_path, text=True, **pipes) as process:  # type: ignore[call-overload]  # by name
        process.stdin.write("count to 1000\n")
        process.stdin.flush()
        first_bytes = process.stdout.read(5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (first_bytes, process.returncode) == ("1 2 3", 130)
    assert "cancelled; the conversation so far is kept" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("text", ["\x1b]0;title\x07", "\u202eevil", "\x9b31m"])
def test_control_characters_of_a_model_reach_no_terminal(text: str) -> None:
    screen = RecordedScreen(interactive=True)
    screen.screen.stream_text(f"a{text}b")
    assert screen.out.getvalue().isprintable()
