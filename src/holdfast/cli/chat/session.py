"""The state of a running chat: sends a message, shows the turn, and asks the user for confirmations."""

import os
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.catalog.lookup import Models
from holdfast.cli.chat.command import ChatOptions
from holdfast.cli.chat.format import (
    DIFF_LINES_MAX,
    format_file_diff,
    format_near_compaction,
    format_status_line,
    parse_arguments,
    split_visible_lines,
    subtract_usage,
)
from holdfast.cli.chat.screen import ChatScreen, TurnView, handle_interrupt, hide_typing
from holdfast.cli.chat.session_thread import ConfirmationQuestion, TurnEnd, TurnRunner, WarningNotice
from holdfast.clock import system_clock
from holdfast.engine.tools.builtin.files import decode_file, to_lf
from holdfast.engine.tools.permissions import Confirmation, ConfirmationRequest
from holdfast.errors import HoldfastError, ProviderError
from holdfast.events.log import Event, EventLog
from holdfast.events.payloads.calls import LlmCallFailed
from holdfast.ledger.requests.format import strip_control_characters
from holdfast.runtime.config import Config
from holdfast.runtime.session import Session
from holdfast.sources.confined_paths import (
    EscapeError,
    PathError,
    locate_path,
    open_parent,
    read_regular_at,
    resolve_roots,
)
from holdfast.types.prompt import Plan

DIFF_BYTES_MAX = 2_000_000  # A larger file is not compared with what replaces it.
Result = TypeVar("Result")


class ChatSettings(msgspec.Struct, frozen=True):
    """What stays fixed for the whole chat."""

    options: ChatOptions
    workspace: Path
    config: Config
    models: Models
    environ: Mapping[str, str]


class ChatSession:
    """A session, the screen that shows it, and the thread that runs it."""

    def __init__(
        self, settings: ChatSettings, session: Session, turn_runner: TurnRunner, *, log: EventLog, screen: ChatScreen
    ) -> None:
        self.settings = settings
        self.session = session
        self.log = log
        self.screen = screen
        self.turn_runner = turn_runner
        self.plan: Plan | None = None
        self.has_failed = False
        self.was_compaction_near = False

    def run_coroutine(self, coroutine: Coroutine[object, None, Result]) -> Result:
        return self.turn_runner.thread.run_coroutine(coroutine)

    def send_message(self, message: str) -> None:
        """Send the message and show the turn until it ends; Ctrl-C cancels it."""
        view = TurnView(self.screen, thinking=self.settings.options.thinking)
        cost_before, usage_before = self.session.cost, self.session.usage
        estimated: list[Event] = []
        unsubscribe = self.session.subscribe(
            lambda event: estimated.append(event) if _is_output_estimated(event) else None
        )
        with hide_typing(), handle_interrupt(lambda number, frame: self.turn_runner.cancel_turn()):
            self.turn_runner.start_turn(self.session, message)
            over = self._follow(view)
        unsubscribe()
        self.screen.end_line()
        self.plan = view.plan or self.plan
        self._conclude(over)
        # The session's counters are cumulative: the turn is the difference between two readings.
        cost, usage = self.session.cost - cost_before, subtract_usage(usage_before, self.session.usage)
        if usage.tokens_sent or cost:
            cached = self.session.cache.state()
            warm = cached.expires_at - system_clock() if cached.tokens else 0.0
            total = self.session.cost
            self.screen.show_note(
                format_status_line(usage, cost, session_usd=total, warm_seconds=warm, estimated=bool(estimated))
            )

        use = self.session.context_use()
        if use.is_compaction_near and not self.was_compaction_near:
            self.screen.show_note(format_near_compaction(use))
        self.was_compaction_near = use.is_compaction_near

    def ask_yes_no(self, question: str) -> bool:
        """Whether the user answers yes; with --yes, the question is not asked."""
        return self.settings.options.yes or self._ask_confirmation(f"{question} [y]es / [n]o: ", once=True) is True

    def _ask_confirmation(self, question: str, lines: Sequence[str] = (), *, once: bool = False) -> Confirmation:
        """Ask until the answer is understood; Ctrl-C and Ctrl-D are a no. `lines` are shown whole on request.

        With `once`, "always" is no answer.
        """
        while (answer := self.screen.read_answer(question)) is not None:
            if lines and answer.strip().lower() in ("s", "show"):
                self.screen.show_change(lines, whole=True)
            elif (confirmation := parse_confirmation(answer)) is not None and not (once and confirmation == "session"):
                return confirmation
            else:
                self.screen.show_note("please answer with one of the letters in brackets")
        return False

    def show_warnings(self) -> None:
        """Show the warnings logged since the last turn."""
        while not self.turn_runner.notices.empty():
            notice = self.turn_runner.notices.get()
            if isinstance(notice, WarningNotice):
                self.screen.show_note(strip_control_characters(notice.text))

    def _follow(self, view: TurnView) -> TurnEnd:
        while True:
            match self.turn_runner.notices.get():
                case TurnEnd() as over:
                    return over
                case ConfirmationQuestion(request, answer):
                    answer(self._judge(request))
                case WarningNotice(text):
                    self.screen.show_note(strip_control_characters(text))
                case item:
                    view.show_item(item)

    def _judge(self, request: ConfirmationRequest) -> Confirmation:
        if self.settings.options.yes:
            return True
        if not self.screen.interactive:
            self.screen.show_note(
                f"{strip_control_characters(request.tool_name)}: refused without a terminal to ask; --yes allows it"
            )
            return False
        lines = format_confirmation(request, self.settings.workspace)
        self.screen.show_change(lines, whole=False)
        is_cut = len(lines) > DIFF_LINES_MAX
        choices = "[y]es / [n]o / [a]lways this session" + (" / [s]how all" if is_cut else "")
        question = f"  {strip_control_characters(request.tool_name)}: {choices}? "
        return self._ask_confirmation(question, lines if is_cut else ())

    def _conclude(self, over: TurnEnd) -> None:
        if over.cancelled:
            self.screen.show_note("cancelled; the conversation so far is kept")
            if not self.screen.interactive:
                raise KeyboardInterrupt
        elif isinstance(over.error, HoldfastError):
            self.has_failed = True
            self.screen.show_error(strip_control_characters(str(over.error)))
            unreached = isinstance(over.error, ProviderError) and over.error.kind == "network" and not self.session.cost
            if unreached:
                self.screen.show_note("to try things without a network: holdfast chat --simulate")
        elif over.error is not None:
            raise over.error


def _is_output_estimated(event: Event) -> bool:
    """Whether the event is a broken-off call whose output tokens the provider did not report."""
    return isinstance(event.payload, LlmCallFailed) and event.payload.is_output_estimated


def format_confirmation(request: ConfirmationRequest, workspace: Path) -> list[str]:
    """The complete change or command, line by line, with unprintable characters made visible."""
    arguments = parse_arguments(request.arguments_json) or {}
    match request.tool_name, arguments:
        case "run_command", {"command": str(command)}:
            # Every line of the command is shown: a second line must not run unseen.
            first, *rest = split_visible_lines(command)
            return [f"$ {first}", *(f"  {line}" for line in rest)]
        case "write_file", {"path": str(path), "content": str(content)}:
            return _visible_lines(_write_diff(workspace, path, to_lf(content)))
        case "edit_file", {"path": str(path), "old_text": str(old), "new_text": str(new)}:
            return _visible_lines(_edit_diff(workspace, path, to_lf(old), to_lf(new)))
        case _:
            return _visible_lines([request.tool_name, *_argument_lines(arguments)] if arguments else [request.summary])


def parse_confirmation(answer: str) -> Confirmation | None:
    """Parse the answer; None if it is neither yes nor no."""
    match answer.strip().lower():
        case "y" | "yes":
            return True
        case "a" | "always":
            return "session"
        case "n" | "no":
            return False
        case _:
            return None


def _write_diff(workspace: Path, path: str, content: str) -> list[str]:
    before = _read_text(workspace, path)
    if before is None and os.path.lexists(workspace / path):
        return [f"{path}: replaces a file that cannot be compared", *_prefix_lines("+", content)]
    return format_file_diff(before, content, path)


def _edit_diff(workspace: Path, path: str, old: str, new: str) -> list[str]:
    before = _read_text(workspace, path)
    if before is not None and old and before.count(old) == 1:
        return format_file_diff(before, before.replace(old, new), path)
    # The tool will refuse this edit; the user still sees what the model intended.
    return [f"{path}: the old text does not occur exactly once", *_prefix_lines("-", old), *_prefix_lines("+", new)]


def _prefix_lines(sign: str, text: str) -> list[str]:
    return [sign + line for line in text.split("\n")]


def _argument_lines(arguments: dict[str, object]) -> list[str]:
    """All arguments of any other tool; a text of several lines starts on a line of its own."""
    lines: list[str] = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        lines += [f"{name}:", *text.split("\n")] if "\n" in text else [f"{name}: {text}"]
    return lines


def _visible_lines(lines: list[str]) -> list[str]:
    return [shown for line in lines for shown in split_visible_lines(line)]


def _read_text(workspace: Path, path: str) -> str | None:
    """The current text of the file; None if it does not exist, is not text, or is too large to compare."""
    try:
        with open_parent(locate_path(resolve_roots(workspace), path)) as (folder, name):
            raw = read_regular_at(folder, name, DIFF_BYTES_MAX + 1)
    except (EscapeError, PathError, OSError):
        return None
    current = decode_file(raw) if len(raw) <= DIFF_BYTES_MAX else None
    return to_lf(current.text) if current else None
