"""Builds the confirmation shown before a tool writes or executes, and parses the user's answer."""

import os
from pathlib import Path

import msgspec

from holdfast.cli.chat_texts import arguments_of, difference, visible
from holdfast.engine.builtin.texts import as_lf, file_text
from holdfast.engine.confirm import Confirmation, ConfirmationRequest
from holdfast.sources.confined import EscapeError, PathError, locate, opened_place, read_regular, roots_of

COMPARED_BYTES_MAX = 2_000_000


def judged_lines(request: ConfirmationRequest, workspace: Path) -> list[str]:
    """The complete change or command, line by line, with unprintable characters made visible."""
    arguments = arguments_of(request.arguments_json) or {}
    match request.tool_name, arguments:
        case "run_command", {"command": str(command)}:
            # Every line of the command is shown: a second line must not run unseen.
            first, *rest = visible(command)
            return [f"$ {first}", *(f"  {line}" for line in rest)]
        case "write_file", {"path": str(path), "content": str(content)}:
            return _visible_lines(_write_diff(workspace, path, as_lf(content)))
        case "edit_file", {"path": str(path), "old_text": str(old), "new_text": str(new)}:
            return _visible_lines(_edit_diff(workspace, path, as_lf(old), as_lf(new)))
        case _:
            return _visible_lines([request.tool_name, *_argument_lines(arguments)] if arguments else [request.summary])


def verdict(answer: str | None) -> Confirmation:
    """Parse the answer; anything that is not clearly yes is a no."""
    match (answer or "").strip().lower():
        case "y" | "yes":
            return True
        case "a" | "always":
            return "session"
        case _:
            return False


def _write_diff(workspace: Path, path: str, content: str) -> list[str]:
    before = _read_text(workspace, path)
    if before is None and os.path.lexists(workspace / path):
        return [f"{path}: replaces a file that cannot be compared", *_prefix_lines("+", content)]
    return difference(before, content, path)


def _edit_diff(workspace: Path, path: str, old: str, new: str) -> list[str]:
    before = _read_text(workspace, path)
    if before is not None and old and before.count(old) == 1:
        return difference(before, before.replace(old, new), path)
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
    return [shown for line in lines for shown in visible(line)]


def _read_text(workspace: Path, path: str) -> str | None:
    """The current text of the file; None if it does not exist, is not text, or is too large to compare."""
    try:
        with opened_place(locate(roots_of(workspace), path)) as (folder, name):
            raw = read_regular(folder, name, COMPARED_BYTES_MAX + 1)
    except (EscapeError, PathError, OSError):
        return None
    current = file_text(raw) if len(raw) <= COMPARED_BYTES_MAX else None
    return as_lf(current.text) if current else None
