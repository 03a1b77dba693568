"""Installs the session-start hook in the settings file of an agent runtime, and removes it again.

All other text of the file stays byte for byte as it was.
"""

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
# Not "resume": a resumed conversation still has the text that the hook added when it began.
MATCHER = "startup|clear|compact"
HOOKS = "hooks"
_SUBCOMMAND = ("instructions", "hook")


class Changed(msgspec.Struct, frozen=True):
    """`before` is None if there was no file."""

    before: str | None
    after: str

    @property
    def is_same(self) -> bool:
        return (self.before or "") == self.after


def with_hook(text: str, command: str) -> str:
    """The settings with the hook exactly once. Raises UserError for settings of an unexpected shape."""
    text = text if text.strip() else "{}\n"
    _check(text)
    group = _group(command)
    installed = _find_hooks(text)
    # Already installed as wanted: leave the file byte for byte as it is.
    if len(installed) == 1 and _value_at(text, installed[0].group_start) == group:
        return text
    text = without_hook(text)
    root = _require_object(text, root_of(text), "the file")
    hooks = root.last(HOOKS)
    if hooks is None:
        return put_last(text, root, HOOKS, {SESSION_START: [group]})
    event_hooks = _require_object(text, held_at(text, hooks.value_start), HOOKS)
    start_hooks = event_hooks.last(SESSION_START)
    if start_hooks is None:
        return put_last(text, event_hooks, SESSION_START, [group])
    groups = held_at(text, start_hooks.value_start)
    if groups is None or text[groups.start] != "[":
        raise UserError(f"{HOOKS}.{SESSION_START} is not a list; fix the settings first")
    return put_last(text, groups, None, group)


def without_hook(text: str) -> str:
    """The settings without the hook, and without containers that held nothing but the hook."""
    if not text.strip():
        return text
    _check(text)
    # One at a time: every removal shifts the positions of the others.
    while installed := _find_hooks(text):
        text = without_part(text, installed[0].container, installed[0].index)
    return text


def change_settings(path: Path, change: Callable[[str], str], *, write: bool) -> Changed:
    """Apply `change` to the file, which is replaced atomically.

    Symbolic links are followed if they stay within the project, or within the folder of `path` outside of it.
    """
    try:
        located = _locate_settings(path)
        old_bytes = _read(located)
        old_text = None if old_bytes is None else old_bytes.decode()
        settings_change = Changed(old_text, change(old_text or ""))
        if write and not settings_change.is_same:
            _write(located, settings_change.after.encode(), old_bytes)
    except UnicodeError:
        raise UserError(f"{path} is not JSON in UTF-8; it is left as it is") from None
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (EscapeError, PathError) as error:
        raise UserError(f"the settings cannot be used: {error}") from None
    return settings_change


class _InstalledHook(msgspec.Struct, frozen=True):
    """What to delete to remove the hook: one member of a container, and the start of the hook's group."""

    container: Held
    index: int
    group_start: int


def _find_hooks(text: str) -> list[_InstalledHook]:
    root = root_of(text)
    hooks = root.last(HOOKS) if root else None
    event_hooks = held_at(text, hooks.value_start) if hooks else None
    start_hooks = event_hooks.last(SESSION_START) if event_hooks else None
    groups = held_at(text, start_hooks.value_start) if start_hooks else None
    if root is None or hooks is None or event_hooks is None or start_hooks is None or groups is None:
        return []
    installed: list[_InstalledHook] = []
    for group_index, group in enumerate(groups.parts):
        members = held_at(text, group.value_start)
        hook_list = members.last(HOOKS) if members else None
        commands = held_at(text, hook_list.value_start) if hook_list else None
        for index, part in enumerate(commands.parts if commands else ()):
            if commands is None or not _is_our_hook(_value_at(text, part.value_start)):
                continue
            # From the inside out: the innermost container that has other members keeps them and loses only this one.
            containers = ((commands, index), (groups, group_index), (event_hooks, event_hooks.parts.index(start_hooks)))
            container, member_index = next(
                (pair for pair in containers if len(pair[0].parts) > 1), (root, root.parts.index(hooks))
            )
            installed.append(_InstalledHook(container, member_index, group.value_start))
    return installed


def _is_our_hook(hook: Json) -> bool:
    command = hook.get("command") if isinstance(hook, dict) else None
    try:
        words = shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        return False
    # By file name and position, so that a hook is recognised wherever the command is installed and however it is run.
    names = [PurePath(word).name for word in words]
    return any(tuple(names[at : at + 3]) == ("holdfast", *_SUBCOMMAND) for at in range(len(names)))


def _group(command: str) -> dict[str, Json]:
    hook: dict[str, Json] = {"type": "command", "command": command, "timeout": TIMEOUT_SECONDS}
    return {"matcher": MATCHER, HOOKS: [hook]}


def _check(text: str) -> None:
    try:
        read_json(text)
    except ValueError:
        raise UserError("it is not JSON; it is left as it is") from None
    _require_object(text, root_of(text), "the file")


def _require_object(text: str, container: Held | None, name: str) -> Held:
    if container is None or text[container.start] != "{":
        raise UserError(f"{name} is not an object; fix the settings first")
    return container


def _value_at(text: str, start: int) -> Json:
    container = held_at(text, start)
    return read_json(text[container.start : container.end]) if container else None


def _locate_settings(path: Path) -> Located:
    """Confined to the working folder if the file is inside it, else to the file's own folder."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    root = here if absolute.is_relative_to(here) else absolute.parent
    return locate(roots_of(root), str(absolute), writing=True)


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
        # Checked just before the file is replaced: an edit that another program made meanwhile must not be lost.
        def is_unchanged() -> bool:
            try:
                return read_regular(folder, name, SETTINGS_BYTES_MAX + 1) == before
            except FileNotFoundError:
                return before is None

        if not write_atomically(folder, name, content, still=is_unchanged):
            raise UserError("another program changed it meanwhile; try again")
