"""How a chat is shown and what is typed: streamed text, dim notes, one question at a time."""

import io
import os
import shutil
import signal
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

from holdfast.cli.chat_texts import shortened_lines, streamed

PROMPT = "> "
CONTINUED = ". "
INDENT = "  "
LOOK_SECONDS = 0.25

_DIM, _RED, _GREEN, _PLAIN = "\033[2m", "\033[31m", "\033[32m", "\033[0m"

Answer = Callable[[int, FrameType | None], object] | signal.Handlers
"""What a signal does: a function that is called, or nothing, or what it does by itself."""


class Screen:
    """All that a person sees goes through here. Where nobody sits, answers go to `out` and all else to `beside`."""

    def __init__(self, out: TextIO, beside: TextIO, *, interactive: bool, colours: bool) -> None:
        self._out = out
        self._beside = out if interactive else beside
        self._colours = colours
        self._open: TextIO | None = None  # Where a line has begun and not ended.
        self.interactive = interactive

    @property
    def width(self) -> int:
        return shutil.get_terminal_size().columns if self.interactive else 80

    def stream(self, text: str, *, dim: bool = False) -> None:
        """A part of what a model says; its control characters are not passed on."""
        shown = streamed(text)
        if not shown:
            return
        self._end_line_elsewhere(self._out)
        self._write(self._out, self._styled(shown, _DIM) if dim else shown)
        self._open = None if shown.endswith("\n") else self._out

    def begin_note(self, text: str) -> None:
        """The start of a line that `end_note` ends, unless something else is shown in between."""
        self.end_line()
        self._write(self._beside, self._styled(INDENT + text, _DIM))
        self._open = self._beside

    def end_note(self, text: str) -> None:
        self._write(self._beside, self._styled(text, _DIM))
        self.end_line()

    def note(self, text: str) -> None:
        self.begin_note(text)
        self.end_line()

    def tell(self, *lines: str) -> None:
        """What was asked for."""
        self.end_line()
        for line in lines:
            self._write(self._out, line + "\n")

    def complain(self, text: str) -> None:
        self.end_line()
        self._write(self._beside, self._styled(text, _RED) + "\n")

    def change(self, lines: Sequence[str], *, whole: bool) -> None:
        """What somebody is to judge, added and removed lines in colour."""
        self.end_line()
        for line in lines if whole else shortened_lines(lines):
            style = _GREEN if line.startswith("+") else _RED if line.startswith("-") else ""
            self._write(self._beside, self._styled(INDENT + line, style) + "\n")

    def end_line(self) -> None:
        if self._open is not None:
            self._write(self._open, "\n")
            self._open = None

    def ask(self, question: str) -> str | None:
        """One line of answer; None for Ctrl-C, Ctrl-D, and where nobody sits."""
        self.end_line()
        if not self.interactive:
            return None
        # What was typed before the question was seen is no answer to it.
        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        try:
            return _typed(question)
        except (KeyboardInterrupt, EOFError):
            self._write(self._out, "\n")
            return None

    def _end_line_elsewhere(self, stream: TextIO) -> None:
        if self._open is not stream:
            self.end_line()

    def _styled(self, text: str, style: str) -> str:
        return f"{style}{text}{_PLAIN}" if self._colours and style else text

    def _write(self, stream: TextIO, text: str) -> None:
        stream.write(text)
        stream.flush()


def terminal_screen(environ: Mapping[str, str]) -> Screen:
    """The screen of this process: a terminal if somebody types and looks, else plain text."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # What cannot be read or shown here is no reason to end.
            stream.reconfigure(errors="replace")
    if interactive:
        import readline

        # Answers to questions are no messages: what goes into the history is put there by name.
        readline.set_auto_history(False)
    colours = interactive and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return Screen(sys.stdout, sys.stderr, interactive=interactive, colours=colours)


def messages_typed(screen: Screen) -> Iterator[str]:
    """What the person says, message by message, until Ctrl-D. A line that ends in a backslash goes on."""
    while (line := _line(screen, PROMPT)) is not None:
        while line.endswith("\\") and (more := _line(screen, CONTINUED)) is not None:
            line = f"{line[:-1]}\n{more}"
        if line.strip():
            remember(line)
            yield line


def messages_piped(source: TextIO) -> Iterator[str]:
    """A message a line; a line that ends in a backslash goes on."""
    lines = (line.rstrip("\n") for line in source)
    for line in lines:
        while line.endswith("\\") and (more := next(lines, None)) is not None:
            line = f"{line[:-1]}\n{more}"
        if line.strip():
            yield line


def remember(message: str) -> None:
    """The message can be called up again with the arrow keys."""
    import readline

    readline.add_history(message.encode("utf-8", "replace").decode().replace("\0", ""))


@contextmanager
def interrupts(answer: Answer) -> Iterator[None]:
    """What Ctrl-C does in here."""
    with _signals(answer, signal.SIGINT):
        yield


@contextmanager
def hang_ups() -> Iterator[None]:
    """End in good order where the terminal is closed or the process is told to end."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with _signals(leave, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Whoever leaves in good order is not told again to leave."""
    with _signals(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextmanager
def _signals(answer: Answer, *numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, answer) for number in numbers}
    try:
        yield
    finally:
        for number, answered in before.items():
            signal.signal(number, answered)


def _line(screen: Screen, prompt: str) -> str | None:
    """A line; Ctrl-C drops what was typed and asks again, Ctrl-D is None."""
    screen.end_line()
    while True:
        try:
            return _typed(prompt)
        except KeyboardInterrupt:
            screen.tell("", f"{INDENT}Ctrl-D or /exit leaves")
        except EOFError:
            screen.tell("")
            return None


def _typed(prompt: str) -> str:
    """A line; raises KeyboardInterrupt for Ctrl-C, also for one that comes just as the prompt does."""
    with interrupts(signal.default_int_handler), _looked_after():
        return input(prompt)


@contextmanager
def _looked_after() -> Iterator[None]:
    """Look for signals now and then: one that comes between the prompt and the wait for a key would wait as well."""
    with _signals(lambda number, frame: None, signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, LOOK_SECONDS, LOOK_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def home_relative(path: str) -> str:
    """The path with `~` for the user's home."""
    home = os.path.expanduser("~")
    return "~" + path[len(home) :] if path == home or path.startswith(home + os.sep) else path
