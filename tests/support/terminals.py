"""A program in its own terminal, operated like a user would: wait for a text, then type."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

SECONDS_MAX = 30.0
CTRL_C, CTRL_D = "\x03", "\x04"

_OUTPUT = re.compile(r"\x1b\[(?P<number>\d*)(?P<order>[ABCDJK])|\x1b\[[0-9;?]*[A-Za-z]|(?P<character>[\s\S])")


class Terminal:
    """`holdfast` in a pseudo-terminal of 80 columns; `seen` is its raw output."""

    def __init__(self, *words: str, folder: Path, environ: Mapping[str, str]) -> None:
        self._screen, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "holdfast", *words],
            cwd=folder,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", **environ},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inside)
        self._read_upto = 0
        self.seen = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._screen >= 0:
            os.close(self._screen)

    def type(self, text: str) -> None:
        os.write(self._screen, text.encode())

    def enter(self, line: str) -> None:
        self.type(line + "\r")

    def expect(self, text: str) -> str:
        """The output up to the next occurrence of the text, without colours; fails if it never comes."""
        deadline = time.monotonic() + SECONDS_MAX
        while (at := self._plain().find(text, self._read_upto)) < 0:
            assert self._read(deadline), f"{text!r} did not come after {self._plain()[self._read_upto :]!r}"
        start, self._read_upto = self._read_upto, at + len(text)
        return self._plain()[start : self._read_upto]

    def end(self) -> int:
        """Wait for the program to end by itself and return its status; its output is in `seen`."""
        deadline = time.monotonic() + SECONDS_MAX
        while self._read(deadline):
            pass
        return self._process.wait(timeout=max(0.0, deadline - time.monotonic()))

    def hang_up(self) -> int:
        """Close the terminal and wait for the program to end."""
        os.close(self._screen)
        self._screen = -1
        return self._process.wait(timeout=SECONDS_MAX)

    def resize(self, columns: int) -> None:
        """Change the width, as a person who drags the window's edge."""
        fcntl.ioctl(self._screen, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def kill(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def rest(self) -> str:
        return self._plain()[self._read_upto :]

    def _plain(self) -> str:
        """All lines as they stand on an endless screen: what is written over is gone, colours are left out."""
        lines, row, column = [""], 0, 0
        for part in _OUTPUT.finditer(self.seen):
            character, number = part["character"], int(part["number"] or 1)
            if character == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif character == "\r":
                column = 0
            elif part["order"] == "A":
                row = max(row - number, 0)
            elif part["order"] == "C":
                column += number
            elif part["order"] == "D" or character == "\x08":
                column = max(column - number, 0)
            elif part["order"] in ("J", "K"):
                lines[row] = lines[row][:column]
                del lines[row + 1 if part["order"] == "J" else len(lines) :]
            elif character is not None and character != "\x07":
                lines[row] = lines[row].ljust(column)[:column] + character + lines[row][column + 1 :]
                column += 1
        # Spaces before the cursor are not always written; the cursor is only moved.
        lines[row] = lines[row].ljust(column)
        return "\n".join(lines)

    def _read(self, deadline: float) -> bool:
        """Whether more output came in time."""
        if not select.select([self._screen], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        try:
            part = os.read(self._screen, 65_536)
        except OSError:
            return False  # The other side is closed.
        # As terminals do, it says where the cursor is when it is asked.
        if b"\x1b[6n" in part:
            os.write(self._screen, b"\x1b[24;1R")
        self.seen += part.decode(errors="replace")
        return bool(part)
