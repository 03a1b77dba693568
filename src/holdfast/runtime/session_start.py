"""What a runtime is given for the start of a session: the text that stands before all that is said in it."""

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
CONTEXT_CHARACTERS_WARN = 10_000
"""What is longer Claude Code puts into a file, and tells its model the start of it."""
CONTEXT_CHARACTERS_MAX = 400_000

GOING_ON = frozenset({"resume", "fork"})
"""The conversation is there already, and in it what it was begun with."""
BEGUN_AGAIN = frozenset({"clear", "compact"})
"""The session has begun before, and lost what it was begun with."""

_FRONT = "---\n"


class _Event(msgspec.Struct, frozen=True):
    hook_event_name: str = SESSION_START
    source: str = "startup"


class _Output(msgspec.Struct, frozen=True, rename="camel"):
    hook_event_name: str
    additional_context: str


class _Reply(msgspec.Struct, frozen=True, rename="camel"):
    hook_specific_output: _Output


class Told(msgspec.Struct, frozen=True):
    """What there is to tell an agent: its stub as a document, its units, and the texts that its trigger has loaded."""

    stub: str
    entries: tuple[Entry, ...]
    preloads: tuple[Preload, ...] = ()


def read_source(raw: bytes) -> str:
    """By what a session begins; a runtime that says nothing has started it. Raises UserError, and quotes nothing."""
    if len(raw) > EVENT_BYTES_MAX:
        raise UserError(f"the event on standard input has more than {EVENT_BYTES_MAX} bytes")
    if not raw.strip():
        return _Event().source
    try:
        event = msgspec.json.decode(raw, type=_Event)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise UserError("what is on standard input is no event of a hook: a JSON object with a source") from None
    if event.hook_event_name != SESSION_START:
        raise UserError(f"the event on standard input is not {SESSION_START}: set the hook for that one")
    return event.source


def context_of(told: Told, recalling: str) -> str:
    """The same bytes as long as stub, index and preloads say the same; what differs most stands last.

    The front matter of the stub is for programs, and has a time in it.
    """
    parts = [_body(told.stub), standing_index(told.entries), f"{recalling}\n"]
    if told.preloads:
        parts.append(f"## Instructions for this task\n\n{_texts(told.preloads)}")
    context = "\n".join(parts)
    if len(context) > CONTEXT_CHARACTERS_MAX:
        raise UserError(f"stub and preloads have more than {CONTEXT_CHARACTERS_MAX} characters")
    return context


def service_address(url: str) -> str:
    """Raises UserError for one with more in it than where the service is: it is shown to models and people."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise UserError("the address of the service cannot be read") from None
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise UserError("the address of a service has no user, password or query in it: the key is in HOLDFAST_KEY")
    return url.rstrip("/")


def listed_entries(manifest: ListedManifest) -> tuple[Entry, ...]:
    """The units that a service lists, with what an index says of them."""
    return tuple(
        Entry(
            one.name,
            one.description,
            load_triggers=Triggers(one.load_triggers.get("intents", ()), one.load_triggers.get("keywords", ())),
        )
        for one in manifest.entries
    )


def hook_reply(context: str | None) -> bytes:
    """As Claude Code reads it; an empty object where there is nothing to be told."""
    return b"{}" if context is None else msgspec.json.encode(_Reply(_Output(SESSION_START, context)))


def how_to_recall(agent: str, *, db: str | None = None, url: str | None = None) -> str:
    """For an agent that has our tools, and for one that has a shell. An address with a password in it is never told."""
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


def _body(stub: str) -> str:
    if not stub.startswith(_FRONT):
        return stub
    front, _, body = stub.partition(f"\n{_FRONT}")
    return body.lstrip("\n") if body else front


def _texts(preloads: Sequence[Preload]) -> str:
    return "\n".join(f"### {one.name}\n\n{one.text.strip()}\n" for one in preloads)
