"""How the hook of a session's start gets into the settings of a runtime, and out of them again."""

import os
import shlex
from collections.abc import Callable
from pathlib import Path, PurePath

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.errors import UserError
from holdfast.runtime.session_start import SESSION_START
from holdfast.sources.confined import (
    EscapeError,
    Located,
    PathError,
    locate,
    opened_place,
    read_regular,
    roots_of,
    write_atomically,
)
from holdfast.sources.json_text import Held, held_at, put_last, read_json, root_of, without_part

SETTINGS_BYTES_MAX = 4_000_000
TIMEOUT_SECONDS = 30
MATCHER = "startup|clear|compact"
HOOKS = "hooks"
_WORDS = ("instructions", "hook")


class Changed(msgspec.Struct, frozen=True):
    """`before` is None where there was no file."""

    before: str | None
    after: str

    @property
    def is_same(self) -> bool:
        return (self.before or "") == self.after


def with_hook(text: str, command: str) -> str:
    """The settings with the hook once, and all else as it was. Raises UserError for settings of another shape."""
    text = text if text.strip() else "{}\n"
    _check(text)
    wanted = _group(command)
    found = _ours(text)
    if len(found) == 1 and _value_at(text, found[0].group_start) == wanted:
        return text
    text = without_hook(text)
    root = _object(text, root_of(text), "the file")
    hooks = root.last(HOOKS)
    if hooks is None:
        return put_last(text, root, HOOKS, {SESSION_START: [wanted]})
    inner = _object(text, held_at(text, hooks.value_start), HOOKS)
    starts = inner.last(SESSION_START)
    if starts is None:
        return put_last(text, inner, SESSION_START, [wanted])
    groups = held_at(text, starts.value_start)
    if groups is None or text[groups.start] != "[":
        raise UserError(f"{HOOKS}.{SESSION_START} is no list: mend the settings first")
    return put_last(text, groups, None, wanted)


def without_hook(text: str) -> str:
    """The settings without the hook, and without what holds nothing else."""
    if not text.strip():
        return text
    _check(text)
    while found := _ours(text):
        text = without_part(text, found[0].held, found[0].index)
    return text


def change_settings(path: Path, change: Callable[[str], str], *, write: bool) -> Changed:
    """Replaced whole or not at all; links are followed that stay in the project, or in the folder that was named."""
    try:
        located = _located(path)
        before = _read(located)
        told = None if before is None else before.decode()
        changed = Changed(told, change(told or ""))
        if write and not changed.is_same:
            _write(located, changed.after.encode(), before)
    except UnicodeError:
        raise UserError(f"{path} is not JSON in UTF-8; it is left as it is") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (EscapeError, PathError) as error:
        raise UserError(f"the settings cannot be used: {error}") from None
    return changed


class _Ours(msgspec.Struct, frozen=True):
    """What is taken out with the hook: one part of something, and the group that the hook is in."""

    held: Held
    index: int
    group_start: int


def _ours(text: str) -> list[_Ours]:
    root = root_of(text)
    hooks = root.last(HOOKS) if root else None
    inner = held_at(text, hooks.value_start) if hooks else None
    starts = inner.last(SESSION_START) if inner else None
    groups = held_at(text, starts.value_start) if starts else None
    if root is None or hooks is None or inner is None or starts is None or groups is None:
        return []
    found: list[_Ours] = []
    for place, group in enumerate(groups.parts):
        members = held_at(text, group.value_start)
        listed = members.last(HOOKS) if members else None
        commands = held_at(text, listed.value_start) if listed else None
        for index, one in enumerate(commands.parts if commands else ()):
            if commands is None or not _is_ours(_value_at(text, one.value_start)):
                continue
            around = ((commands, index), (groups, place), (inner, inner.parts.index(starts)))
            held, at = next((one for one in around if len(one[0].parts) > 1), (root, root.parts.index(hooks)))
            found.append(_Ours(held, at, group.value_start))
    return found


def _is_ours(hook: Json) -> bool:
    command = hook.get("command") if isinstance(hook, dict) else None
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        return False
    names = [PurePath(word).name for word in words]
    return any(tuple(names[at : at + 3]) == ("holdfast", *_WORDS) for at in range(len(names)))


def _group(command: str) -> dict[str, Json]:
    hook: dict[str, Json] = {"type": "command", "command": command, "timeout": TIMEOUT_SECONDS}
    return {"matcher": MATCHER, HOOKS: [hook]}


def _check(text: str) -> None:
    try:
        read_json(text)
    except ValueError:
        raise UserError("it is not JSON; it is left as it is") from None
    _object(text, root_of(text), "the file")


def _object(text: str, held: Held | None, what: str) -> Held:
    if held is None or text[held.start] != "{":
        raise UserError(f"{what} is no object: mend the settings first")
    return held


def _value_at(text: str, start: int) -> Json:
    held = held_at(text, start)
    return read_json(text[held.start : held.end]) if held else None


def _located(path: Path) -> Located:
    """Below the working folder where it is there, else in the folder that was named."""
    whole, here = Path(os.path.abspath(path)), Path.cwd()
    root = here if whole.is_relative_to(here) else whole.parent
    return locate(roots_of(root), str(whole), writing=True)


def _read(located: Located) -> bytes | None:
    try:
        with opened_place(located) as (folder, name):
            raw = read_regular(folder, name, SETTINGS_BYTES_MAX + 1)
    except PathError as error:
        if str(error).endswith("does not exist"):
            return None
        raise
    if len(raw) > SETTINGS_BYTES_MAX:
        raise UserError(f"it has more than {SETTINGS_BYTES_MAX} bytes; it is left as it is")
    return raw


def _write(located: Located, content: bytes, before: bytes | None) -> None:
    with opened_place(located, make_folders=True) as (folder, name):

        def still() -> bool:
            try:
                return read_regular(folder, name, SETTINGS_BYTES_MAX + 1) == before
            except FileNotFoundError:
                return before is None

        if not write_atomically(folder, name, content, still=still):
            raise UserError("it was changed meanwhile; try again")
