"""The session-start hook: the context text that an agent runtime adds to a conversation when it begins."""

import shlex
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.index_lines import standing_index
from holdfast.instructions.values import Entry, Triggers
from holdfast.runtime.heartbeats import Preload
from holdfast.runtime.instruction_client import ListedManifest

SESSION_START = "SessionStart"
EVENT_BYTES_MAX = 1_000_000
# Claude Code writes a longer context to a file, and shows its model only the beginning.
CONTEXT_CHARACTERS_WARN = 10_000
CONTEXT_CHARACTERS_MAX = 400_000

GOING_ON = frozenset({"resume", "fork"})
"""Sources of a conversation that continues, and still contains the text from its start."""
BEGUN_AGAIN = frozenset({"clear", "compact"})
"""Sources of a session that had begun before, and has lost the text from its start."""

_FRONT_MATTER = "---\n"


class _Event(msgspec.Struct, frozen=True):
    hook_event_name: str = SESSION_START
    source: str = "startup"


class _Output(msgspec.Struct, frozen=True, rename="camel"):
    hook_event_name: str
    additional_context: str


class _Reply(msgspec.Struct, frozen=True, rename="camel"):
    hook_specific_output: _Output


class Told(msgspec.Struct, frozen=True):
    """What an agent's context is made of: its boot stub as a document, its units, and its preloads."""

    stub: str
    entries: tuple[Entry, ...]
    preloads: tuple[Preload, ...] = ()


def read_source(raw: bytes) -> str:
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


def context_of(content: Told, recalling: str) -> str:
    """The context text: identical bytes for identical stub, index and preloads, with the most volatile part last.

    The front matter of the stub is left out: it is for programs, and contains a time.
    """
    # Most stable first: the text becomes part of the agent's cached prefix.
    parts = [_without_front_matter(content.stub), standing_index(content.entries), f"{recalling}\n"]
    if content.preloads:
        parts.append(f"## Instructions for this task\n\n{_preload_sections(content.preloads)}")
    context = "\n".join(parts)
    if len(context) > CONTEXT_CHARACTERS_MAX:
        raise UserError(f"stub and preloads have more than {CONTEXT_CHARACTERS_MAX} characters")
    return context


def service_address(url: str) -> str:
    """Raises UserError for an address with credentials or a query, because it is shown to models and people."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UserError("the address of the service cannot be read") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError(
            "the address of a service must not contain a user, password or query; put the key in HOLDFAST_KEY"
        )
    return url.rstrip("/")


def listed_entries(manifest: ListedManifest) -> tuple[Entry, ...]:
    """The units of a service's manifest, with the fields that an index shows."""
    return tuple(
        Entry(
            unit.name,
            unit.description,
            load_triggers=Triggers(unit.load_triggers.get("intents", ()), unit.load_triggers.get("keywords", ())),
        )
        for unit in manifest.entries
    )


def hook_reply(context: str | None) -> bytes:
    """The hook's output for Claude Code; an empty object if there is no context."""
    return b"{}" if context is None else msgspec.json.encode(_Reply(_Output(SESSION_START, context)))


def how_to_recall(agent: str, *, db: str | None = None, url: str | None = None) -> str:
    """How an agent recalls instructions, with our tools or with a shell.

    A database URL, which may hold a password, is never included.
    """
    tool = "`recall_instruction` is a tool of Holdfast's MCP server."
    if url is not None:
        address = f"{service_address(url)}/v1/agents/{quote(agent, safe='')}/recall-instruction"
        otherwise = f'POST `{{"intent": "..."}}` to `{address}`, with the key in HOLDFAST_KEY as a bearer token.'
    elif db is not None and "://" in db:
        return tool
    else:
        words = ["--agent", agent, *(("--db", db) if db else ())]
        otherwise = f'run `holdfast instructions recall "INTENT" {shlex.join(words)}` in a shell.'
    return f"{tool} Where there is no such tool, {otherwise}"


def _without_front_matter(stub: str) -> str:
    if not stub.startswith(_FRONT_MATTER):
        return stub
    front, _, body = stub.partition(f"\n{_FRONT_MATTER}")
    return body.lstrip("\n") if body else front


def _preload_sections(preloads: Sequence[Preload]) -> str:
    return "\n".join(f"### {preload.name}\n\n{preload.text.strip()}\n" for preload in preloads)
