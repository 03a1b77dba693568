"""Terminal input and output of a chat: typed messages, signals, streamed text, notes, and each turn as it runs.

A person's input is read by prompt_toolkit, which is imported only where somebody sits at a terminal.
"""

import io
import os
import re
import shutil
import signal
import sys
import termios
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from holdfast.cli.chat.format import (
    clean_streamed_text,
    format_compaction,
    format_tool_call,
    format_tool_outcome,
    truncate_lines,
)
from holdfast.cli.chat.markdown import MarkdownStream
from holdfast.events.log import Event
from holdfast.events.payloads.calls import LlmCallCompleted, RequestPrepared, ToolCalled, ToolCompleted, ToolFailed
from holdfast.events.payloads.compaction import ContextCompacted
from holdfast.events.payloads.session import TurnCancelled
from holdfast.events.payloads.union import AnyPayload
from holdfast.ledger.requests.format import strip_control_characters
from holdfast.types.blocks import ToolUse
from holdfast.types.prompt import Plan
from holdfast.types.reply import Delta, Reply, ReplyFinished, TextDelta, ThinkingDelta

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completer
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

PROMPT = "> "
CONTINUATION_PROMPT = ". "
INDENT = "  "
OUTCOME_CHARACTERS = 30  # Room after a tool call for its outcome.
ERROR_CHARACTERS_MAX = 200
# A first column, and the spaces after it.
_LABEL = re.compile(r"\s*\S+(?: \S+)*?\s{2,}")
_DIM, _RED, _GREEN, _PLAIN = "\033[2m", "\033[31m", "\033[32m", "\033[0m"
SignalHandler = Callable[[int, FrameType | None], object] | signal.Handlers
"""A signal handler: a function, SIG_IGN or SIG_DFL."""


class ChatScreen:
    """All output of a chat goes through here. Without a terminal, replies go to `out` and the rest to `beside`."""

    def __init__(
        self,
        out: TextIO,
        beside: TextIO,
        *,
        interactive: bool,
        colours: bool,
        keyboard: "Keyboard | None" = None,
    ) -> None:
        self._out = out
        self._beside = out if interactive else beside
        self._colours = colours
        self._open: TextIO | None = None  # The stream with an unfinished line.
        # Markdown is for people; a terminal that cannot move its cursor gets the text as it is.
        self._markdown = MarkdownStream(colours=colours) if keyboard and not keyboard.is_dumb else None
        self.interactive = interactive
        self.keyboard = keyboard

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns if self.interactive else 80

    def stream_text(self, text: str, *, dim: bool = False) -> None:
        """Print a part of the model's reply, without control characters; as Markdown where somebody reads it."""
        shown = clean_streamed_text(text)
        if not shown:
            return
        if self._markdown and not dim:
            if self._markdown.is_empty:
                self.end_line()
            self._write(self._out, self._markdown.feed(shown, width=self.width))
            return
        self._end_line_elsewhere(self._out)
        self._write(self._out, self._styled(shown, _DIM) if dim else shown)
        self._open = None if shown.endswith("\n") else self._out

    def begin_note(self, text: str) -> None:
        """Start a line that `end_note` completes, unless other output comes in between."""
        self.end_line()
        self._write(self._beside, self._styled(INDENT + text, _DIM))
        self._open = self._beside

    def end_note(self, text: str) -> None:
        self._write(self._beside, self._styled(text, _DIM))
        self.end_line()

    def show_note(self, text: str) -> None:
        self.end_line()
        for line in self._wrap(INDENT + text):
            self._write(self._beside, self._styled(line, _DIM) + "\n")

    def show_command(self, text: str, *, label: str = "") -> None:
        """Print a command that can be copied: in one piece, however long it is."""
        self.end_line()
        self._write(self._beside, f"{label or INDENT}{self._styled(text, '' if label else _DIM)}\n")

    def show_lines(self, *lines: str) -> None:
        """Print the output of a command."""
        self.end_line()
        for line in lines:
            for part in self._wrap(line):
                self._write(self._out, part + "\n")

    def show_error(self, text: str) -> None:
        self.end_line()
        for line in self._wrap(text):
            self._write(self._beside, self._styled(line, _RED) + "\n")

    def show_change(self, lines: Sequence[str], *, whole: bool) -> None:
        """Print a change that the user must confirm, with added and removed lines in colour."""
        self.end_line()
        for line in lines if whole else truncate_lines(lines):
            style = _GREEN if line.startswith("+") else _RED if line.startswith("-") else ""
            self._write(self._beside, self._styled(INDENT + line, style) + "\n")

    def end_line(self) -> None:
        if self._markdown:
            self._write(self._out, self._markdown.finish(width=self.width))
        if self._open is not None:
            self._write(self._open, "\n")
            self._open = None

    def read_answer(self, question: str) -> str | None:
        """Read a one-line answer; None for Ctrl-C, Ctrl-D and without a terminal."""
        self.end_line()
        return self.keyboard.read_answer(question) if self.keyboard else None

    def _wrap(self, line: str) -> list[str]:
        """The line, cut between words where somebody reads it; what continues is aligned with its last column."""
        if not self.interactive or len(line) <= self.width:
            return [line]
        label = _LABEL.match(line)
        # Below the second column of `usage  description`, if that leaves enough room, or below the first word.
        indent = label.end() if label and label.end() <= self.width // 2 else len(line) - len(line.lstrip()) or 2
        # A word that is longer than a line, such as an address or a path, is left whole so that it can be copied.
        return textwrap.wrap(
            line,
            self.width,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
            replace_whitespace=False,
            expand_tabs=False,
        )

    def _end_line_elsewhere(self, stream: TextIO) -> None:
        if self._open is not stream:
            self.end_line()

    def _styled(self, text: str, style: str) -> str:
        return f"{style}{text}{_PLAIN}" if self._colours and style else text

    def _write(self, stream: TextIO, text: str) -> None:
        stream.write(text)
        stream.flush()


def open_terminal_screen(environ: Mapping[str, str]) -> ChatScreen:
    """The screen of this process; interactive if both stdin and stdout are terminals."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A character that the locale cannot encode must not end the chat.
            stream.reconfigure(errors="replace")
    colours = interactive and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    keyboard = Keyboard(colours=colours, is_dumb=environ.get("TERM") == "dumb") if interactive else None
    return ChatScreen(sys.stdout, sys.stderr, interactive=interactive, colours=colours, keyboard=keyboard)


class Keyboard:
    """Reads what a person types: messages, with a history and completion of commands and paths, and answers.

    Ctrl-R searches the history; so does Up after the beginning of an earlier message.
    """

    def __init__(self, *, colours: bool, is_dumb: bool) -> None:
        from prompt_toolkit.history import InMemoryHistory

        self.commands: Mapping[str, Sequence[str]] = {}  # What can follow each slash command.
        self.folder = "."
        self.history = InMemoryHistory()
        self.is_dumb = is_dumb
        # A terminal that cannot move its cursor shows lines as they are typed.
        self._ask_message: Callable[[str], str] = input
        self._ask_answer: Callable[[str], str] = input
        if not is_dumb:
            self._ask_message, self._ask_answer = self._open_prompts(colours=colours)

    def read_messages(self, screen: ChatScreen) -> Iterator[str]:
        """Read messages until Ctrl-D; Ctrl-C discards what was typed and prompts again."""
        while True:
            screen.end_line()
            try:
                with handle_interrupt(signal.default_int_handler):
                    message = self._ask_message(PROMPT)
                    while message.endswith("\\"):
                        message = f"{message[:-1]}\n{self._ask_message(CONTINUATION_PROMPT)}"
            except KeyboardInterrupt:
                screen.show_lines(*[""] * self.is_dumb, f"{INDENT}Ctrl-D or /exit ends the chat")
            except EOFError:
                screen.show_lines(*[""] * self.is_dumb)
                return
            else:
                if message.strip():
                    yield message

    def read_answer(self, question: str) -> str | None:
        """Read a one-line answer; None for Ctrl-C and Ctrl-D."""
        from prompt_toolkit.application import get_app_session
        from prompt_toolkit.input.typeahead import clear_typeahead

        # Discard keys typed before the question appeared: they are no answer to it.
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        clear_typeahead(get_app_session().input)
        try:
            with handle_interrupt(signal.default_int_handler):
                return self._ask_answer(question)
        except (KeyboardInterrupt, EOFError):
            return None

    def _open_prompts(self, *, colours: bool) -> "tuple[Callable[[str], str], Callable[[str], str]]":
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import ColorDepth
        from prompt_toolkit.shortcuts import CompleteStyle

        depth = None if colours else ColorDepth.DEPTH_1_BIT
        messages: PromptSession[str] = PromptSession(
            prompt_continuation=CONTINUATION_PROMPT,
            history=self.history,
            enable_history_search=True,
            key_bindings=_message_keys(),
            completer=_message_completer(self),
            complete_while_typing=False,
            # Below the line when Tab is pressed; a menu would keep eight rows free below every prompt.
            complete_style=CompleteStyle.READLINE_LIKE,
            color_depth=depth,
        )
        # A session of its own: answers do not belong in the history of messages.
        answers: PromptSession[str] = PromptSession(color_depth=depth)
        return messages.prompt, answers.prompt


def _message_completer(keyboard: Keyboard) -> "Completer":
    """Completes a slash command, then its argument; elsewhere the last word as a path of the chat's folder."""
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
    from prompt_toolkit.document import Document

    paths = PathCompleter(get_paths=lambda: [keyboard.folder])

    class MessageCompleter(Completer):
        def get_completions(self, document: Document, complete_event: CompleteEvent) -> "Iterator[Completion]":
            before = document.text_before_cursor
            command, space, argument = before.partition(" ")
            if before.startswith("/") and (space or "/" not in command[1:]):
                # The arguments of one command at a time: all of them together are more than a screen.
                candidates = keyboard.commands.get(command, ()) if space else keyboard.commands
                typed = argument if space else command
                for word in candidates:
                    if word.startswith(typed):
                        yield Completion(word, start_position=-len(typed))
            elif before and not before[-1].isspace():
                # Only a word that has begun: after a space Tab would list the whole folder.
                for path in paths.get_completions(Document(before.split()[-1]), complete_event):
                    # What is shown of a folder ends in a slash; what is inserted should too, so that Tab can go on.
                    slash = "/" if path.display_text.endswith("/") else ""
                    yield Completion(path.text + slash, start_position=path.start_position, display=path.display)

    return MessageCompleter()


def _message_keys() -> "KeyBindings":
    """Enter sends the message; after a backslash, or with Alt, it starts another line."""
    from prompt_toolkit.filters import is_searching
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter", filter=~is_searching)
    def send(event: "KeyPressEvent") -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def start_line(event: "KeyPressEvent") -> None:
        event.current_buffer.newline(copy_margin=False)

    return keys


def read_piped_messages(source: TextIO) -> Iterator[str]:
    """Read one message per line. A line that ends in a backslash continues on the next one."""
    lines = (line.rstrip("\n") for line in source)
    for line in lines:
        while line.endswith("\\") and (more := next(lines, None)) is not None:
            line = f"{line[:-1]}\n{more}"
        if line.strip():
            yield line


@contextmanager
def handle_interrupt(answer: SignalHandler) -> Iterator[None]:
    """Handle Ctrl-C with `answer` inside this context."""
    with _signals(answer, signal.SIGINT):
        yield


@contextmanager
def hide_typing() -> Iterator[None]:
    """Do not echo what is typed: it would be printed into a reply. It waits for the next prompt."""
    if not sys.stdin.isatty():
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    hidden = [*before]
    hidden[3] &= ~termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, hidden)
    try:
        yield
    finally:
        # The terminal may be gone.
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSANOW, before)


@contextmanager
def exit_on_hangup() -> Iterator[None]:
    """Exit cleanly when the terminal is closed (SIGHUP) or the process is terminated (SIGTERM)."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _signals(leave, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def ignore_signals() -> Iterator[None]:
    """Ignore further signals while the chat shuts down."""
    with _signals(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _signals(answer: SignalHandler, *numbers: signal.Signals) -> Iterator[None]:
    previous = {number: signal.signal(number, answer) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def shorten_home_path(path: str) -> str:
    """The path with `~` for the user's home."""
    home = os.path.expanduser("~")
    return "~" + path[len(home) :] if path == home or path.startswith(home + os.sep) else path


class TurnView:
    """Shows one turn; `plan` is the cache plan of its last request."""

    def __init__(self, screen: ChatScreen, *, thinking: bool) -> None:
        self._screen = screen
        self._thinking = thinking
        self._last_was_thinking = False
        self._calls: dict[str, str] = {}
        self._is_single_call = False
        self._open_call_id: str | None = None
        self.plan: Plan | None = None

    def show_item(self, item: Delta | Event) -> None:
        match item:
            case TextDelta(text=text):
                self._stream(text, thinking=False)
            case ThinkingDelta(text=text):
                if self._thinking:
                    self._stream(text, thinking=True)
            case ReplyFinished(reply=reply):
                self._finish(reply)
            case Event(payload=payload):
                self._show_event(payload)
            case _:
                pass

    def _stream(self, text: str, *, thinking: bool) -> None:
        if thinking != self._last_was_thinking:
            self._screen.end_line()
        self._last_was_thinking = thinking
        self._screen.stream_text(text, dim=thinking)

    def _finish(self, reply: Reply) -> None:
        self._screen.end_line()
        calls = [block for block in reply.content if isinstance(block, ToolUse)]
        self._is_single_call = len(calls) == 1
        width = self._screen.width - OUTCOME_CHARACTERS
        self._calls = {call.id: format_tool_call(call.name, call.arguments_json, width) for call in calls}

    def _show_event(self, payload: AnyPayload) -> None:
        match payload:
            case RequestPrepared(plan=plan):
                self.plan = plan
            case LlmCallCompleted() as call:
                if call.stop_reason == "max_tokens":
                    self._screen.show_note("the reply was cut off at the limit of output tokens")
                elif call.stop_reason == "refusal":
                    self._screen.show_note("the model refused to answer")
            case ContextCompacted() as compaction:
                self._screen.show_note(format_compaction(compaction))
            case ToolCalled() as call if self._is_single_call:
                # Parallel calls would interleave on the line, so only a single call gets its line before it ends.
                self._open_call_id = call.tool_use_id
                self._screen.begin_note(self._calls.get(call.tool_use_id, strip_control_characters(call.tool_name)))
            case ToolCompleted() as done:
                result = format_tool_outcome(done.output_size_bytes, done.latency_ms)
                self._end_call(done.tool_use_id, result if done.success else f"{result}, failed")
            case ToolFailed() as failed:
                denied = failed.error_class == "user_denied"
                reason = "" if denied else f": {failed.error_message[:ERROR_CHARACTERS_MAX]}"
                self._end_call(
                    failed.tool_use_id, strip_control_characters(f"{failed.error_class.replace('_', ' ')}{reason}")
                )
            case TurnCancelled(reason="step_limit"):
                self._screen.show_note("stopped: the turn reached its limit of model calls")
            case _:
                pass

    def _end_call(self, tool_use_id: str, result: str) -> None:
        if self._open_call_id == tool_use_id:
            self._screen.end_note(f" → {result}")
        else:
            self._screen.show_note(f"{self._calls.get(tool_use_id, 'a tool')} → {result}")
        self._open_call_id = None
