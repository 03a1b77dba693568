"""What a person is shown before a tool writes or executes, and what their answer means."""

import os
from pathlib import Path

import msgspec

from holdfast.cli.chat_texts import arguments_of, difference, visible
from holdfast.engine.builtin.texts import as_lf, file_text
from holdfast.engine.confirm import Confirmation, ConfirmationRequest
from holdfast.sources.confined import EscapeError, PathError, locate, opened_place, read_regular, roots_of

COMPARED_BYTES_MAX = 2_000_000


def judged_lines(request: ConfirmationRequest, workspace: Path) -> list[str]:
    """The change or the command whole, line by line; nothing in it can hide."""
    arguments = arguments_of(request.arguments_json) or {}
    match request.tool_name, arguments:
        case "run_command", {"command": str(command)}:
            first, *rest = visible(command)
            return [f"$ {first}", *(f"  {line}" for line in rest)]
        case "write_file", {"path": str(path), "content": str(content)}:
            return _seen(_replacement(workspace, path, as_lf(content)))
        case "edit_file", {"path": str(path), "old_text": str(old), "new_text": str(new)}:
            return _seen(_edit(workspace, path, as_lf(old), as_lf(new)))
        case _:
            return _seen([request.tool_name, *_named(arguments)] if arguments else [request.summary])


def verdict(answer: str | None) -> Confirmation:
    """Whatever is not plainly a yes is a no."""
    match (answer or "").strip().lower():
        case "y" | "yes":
            return True
        case "a" | "always":
            return "session"
        case _:
            return False


def _replacement(workspace: Path, path: str, content: str) -> list[str]:
    before = _text_at(workspace, path)
    if before is None and os.path.lexists(workspace / path):
        return [f"{path}: in place of what cannot be compared", *_marked("+", content)]
    return difference(before, content, path)


def _edit(workspace: Path, path: str, old: str, new: str) -> list[str]:
    before = _text_at(workspace, path)
    if before is not None and old and before.count(old) == 1:
        return difference(before, before.replace(old, new), path)
    # The tool will refuse it; what was meant is shown all the same.
    return [f"{path}: the passage is not there, or not only once", *_marked("-", old), *_marked("+", new)]


def _marked(sign: str, text: str) -> list[str]:
    return [sign + line for line in text.split("\n")]


def _named(arguments: dict[str, object]) -> list[str]:
    """What any other tool is given, whole: a text of several lines on lines of its own, all else behind its name."""
    lines: list[str] = []
    for name, value in arguments.items():
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        lines += [f"{name}:", *text.split("\n")] if "\n" in text else [f"{name}: {text}"]
    return lines


def _seen(lines: list[str]) -> list[str]:
    return [shown for line in lines for shown in visible(line)]


def _text_at(workspace: Path, path: str) -> str | None:
    """What is in the file now; None if there is none, or nothing that can be compared."""
    try:
        with opened_place(locate(roots_of(workspace), path)) as (folder, name):
            raw = read_regular(folder, name, COMPARED_BYTES_MAX + 1)
    except (EscapeError, PathError, OSError):
        return None
    found = file_text(raw) if len(raw) <= COMPARED_BYTES_MAX else None
    return as_lf(found.text) if found else None
