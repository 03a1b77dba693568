"""The session-start hook of an agent runtime: the context text that it adds, and its entry in the settings file."""

import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.models import LoadTriggers, ManifestEntry
from holdfast.instructions.recall.boot_stub import render_prompt_index
from holdfast.runtime.instructions.heartbeat import Preload
from holdfast.sources.settings_file import (
    JsonContainer,
    append_part,
    describe_json_error,
    find_container,
    find_root,
    read_json,
    remove_part,
)
from holdfast.types.blocks import Json

if TYPE_CHECKING:
    from holdfast.runtime.instructions.client import ManifestListing

SESSION_START = "SessionStart"
EVENT_BYTES_MAX = 1_000_000

# Claude Code writes a longer context to a file, and shows its model only the beginning.
CONTEXT_CHARACTERS_WARN = 10_000
CONTEXT_CHARACTERS_MAX = 400_000

CONTINUED_SOURCES = frozenset({"resume", "fork"})
"""Sources of a conversation that continues, and still contains the text from its start."""

RESTARTED_SOURCES = frozenset({"clear", "compact"})
"""Sources of a session that had begun before, and has lost the text from its start."""

_FRONT_MATTER = "---\n"
HOOK_TIMEOUT_SECONDS = 30

# Not "resume": a resumed conversation still has the text that the hook added when it began.
HOOK_MATCHER = "startup|clear|compact"
HOOKS_KEY = "hooks"
_SUBCOMMAND = ("instructions", "hook")


class _Event(msgspec.Struct, frozen=True):
    hook_event_name: str = SESSION_START
    source: str = "startup"


class _Output(msgspec.Struct, frozen=True, rename="camel"):
    hook_event_name: str
    additional_context: str


class _Reply(msgspec.Struct, frozen=True, rename="camel"):
    hook_specific_output: _Output


class BootContext(msgspec.Struct, frozen=True):
    """What an agent's context is made of: its boot stub as a document, its units, and its preloads."""

    stub: str
    entries: tuple[ManifestEntry, ...]
    preloads: tuple[Preload, ...] = ()


def read_start_source(raw: bytes) -> str:
    """The source of a session start in a hook event; "startup" for empty input.

    Raises UserError, whose message quotes nothing of the input.
    """
    if len(raw) > EVENT_BYTES_MAX:
        raise UserError(f"the event on standard input has more than {EVENT_BYTES_MAX} bytes")
    if not raw.strip():
        return _Event().source
    try:
        event = msgspec.json.decode(raw, type=_Event)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise UserError("standard input is not a hook event, which is a JSON object with a source") from None
    if event.hook_event_name != SESSION_START:
        raise UserError(f"the event on standard input is not {SESSION_START}; install the hook for that event")
    return event.source


def render_boot_context(content: BootContext, recalling: str) -> str:
    """The context text: identical bytes for identical stub, index and preloads, with the most volatile part last.

    The front matter of the stub is left out: it is for programs, and contains a time.
    """
    # Most stable first: the text becomes part of the agent's cached prefix.
    sections = [strip_front_matter(content.stub), render_prompt_index(content.entries), f"{recalling}\n"]
    if content.preloads:
        texts = (f"### {preload.name}\n\n{preload.text.strip()}\n" for preload in content.preloads)
        sections.append("## Instructions for this task\n\n" + "\n".join(texts))
    context = "\n".join(sections)
    if len(context) > CONTEXT_CHARACTERS_MAX:
        raise UserError(f"stub and preloads have more than {CONTEXT_CHARACTERS_MAX} characters")
    return context


def check_service_address(url: str) -> str:
    """Raises UserError for what is no HTTP address, or has credentials or a query, because models and people see it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UserError("the address of the service cannot be read") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        refused = "a user, password or query"
        raise UserError(f"the address of a service must not contain {refused}; put the key in HOLDFAST_KEY")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UserError("the address of a service begins with http:// or https://, and a host follows")
    return url.rstrip("/")


def manifest_entries(manifest: "ManifestListing") -> tuple[ManifestEntry, ...]:
    """The units of a service's manifest, with the fields that an index shows."""
    entries = []
    for unit in manifest.entries:
        triggers = LoadTriggers(unit.load_triggers.get("intents", ()), unit.load_triggers.get("keywords", ()))
        entries.append(ManifestEntry(unit.name, unit.description, load_triggers=triggers))
    return tuple(entries)


def encode_hook_output(context: str) -> bytes:
    """The hook's output for Claude Code."""
    return msgspec.json.encode(_Reply(_Output(SESSION_START, context)))


def recall_instructions_text(
    agent: str, *, db: str | None = None, url: str | None = None, has_tool: bool = True
) -> str:
    """How an agent recalls instructions, with our tools or with a shell; without `has_tool`, with a shell only.

    A database URL, which may hold a password, is never included.
    """
    tool = "`recall_instruction` is a tool of Holdfast's MCP server."
    if url is not None:
        address = f"{check_service_address(url)}/v1/agents/{quote(agent, safe='')}/recall-instruction"
        otherwise = f'POST `{{"intent": "..."}}` to `{address}`, with the key in HOLDFAST_KEY as a bearer token.'
    elif db is not None and "://" in db:
        return tool
    else:
        words = ["--agent", agent, *(("--db", db) if db else ())]
        otherwise = f'run `holdfast instructions recall "INTENT" {shlex.join(words)}` in a shell.'
    if not has_tool:
        return f"To recall instructions, {otherwise}"
    return f"{tool} Where there is no such tool, {otherwise}"


def strip_front_matter(stub: str) -> str:
    if not stub.startswith(_FRONT_MATTER):
        return stub
    front, _, body = stub.partition(f"\n{_FRONT_MATTER}")
    return body.lstrip("\n") if body else front


def add_hook(text: str, command: str) -> str:
    """The settings with the hook exactly once. Raises UserError for settings of an unexpected shape."""
    text = text if text.strip() else "{}\n"
    _check(text)
    hook: dict[str, Json] = {"type": "command", "command": command, "timeout": HOOK_TIMEOUT_SECONDS}
    group: dict[str, Json] = {"matcher": HOOK_MATCHER, HOOKS_KEY: [hook]}
    installed = _find_hooks(text)
    # Already installed as wanted: leave the file byte for byte as it is.
    if len(installed) == 1 and _value_at(text, installed[0].group_start) == group:
        return text
    text = remove_hook(text)
    root = _require_object(text, find_root(text), "the file")
    hooks = root.find_last(HOOKS_KEY)
    if hooks is None:
        return append_part(text, root, HOOKS_KEY, {SESSION_START: [group]})
    event_hooks = _require_object(text, find_container(text, hooks.value_start), HOOKS_KEY)
    start_hooks = event_hooks.find_last(SESSION_START)
    if start_hooks is None:
        return append_part(text, event_hooks, SESSION_START, [group])
    groups = find_container(text, start_hooks.value_start)
    if groups is None or text[groups.start] != "[":
        raise UserError(f"{HOOKS_KEY}.{SESSION_START} is not a list; fix the settings first")
    return append_part(text, groups, None, group)


def remove_hook(text: str) -> str:
    """The settings without the hook, and without containers that held nothing but the hook."""
    if not text.strip():
        return text
    _check(text)
    # One at a time: every removal shifts the positions of the others.
    while installed := _find_hooks(text):
        text = remove_part(text, installed[0].container, installed[0].index)
    return text


class _InstalledHook(msgspec.Struct, frozen=True):
    """What to delete to remove the hook: one member of a container, and the start of the hook's group."""

    container: JsonContainer
    index: int
    group_start: int


def _find_hooks(text: str) -> list[_InstalledHook]:
    root = find_root(text)
    hooks = root.find_last(HOOKS_KEY) if root else None
    event_hooks = find_container(text, hooks.value_start) if hooks else None
    start_hooks = event_hooks.find_last(SESSION_START) if event_hooks else None
    groups = find_container(text, start_hooks.value_start) if start_hooks else None
    if root is None or hooks is None or event_hooks is None or start_hooks is None or groups is None:
        return []
    installed: list[_InstalledHook] = []
    for group_index, group in enumerate(groups.parts):
        members = find_container(text, group.value_start)
        hook_list = members.find_last(HOOKS_KEY) if members else None
        commands = find_container(text, hook_list.value_start) if hook_list else None
        for index, part in enumerate(commands.parts if commands else ()):
            if commands is None or not _is_our_hook(_value_at(text, part.value_start)):
                continue
            # From the inside out: the innermost container that has other members keeps them and loses only this one.
            containers = ((commands, index), (groups, group_index), (event_hooks, event_hooks.parts.index(start_hooks)))
            outermost = (root, root.parts.index(hooks))
            container, member_index = next((pair for pair in containers if len(pair[0].parts) > 1), outermost)
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


def _check(text: str) -> None:
    try:
        read_json(text)
    except ValueError as error:
        raise UserError(describe_json_error(error)) from None
    _require_object(text, find_root(text), "the file")


def _require_object(text: str, container: JsonContainer | None, name: str) -> JsonContainer:
    if container is None or text[container.start] != "{":
        raise UserError(f"{name} is not an object; fix the settings first")
    return container


def _value_at(text: str, start: int) -> Json:
    container = find_container(text, start)
    return read_json(text[container.start : container.end]) if container else None
