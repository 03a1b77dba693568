"""Describes a request as digests, and finds the ids of sessions that clients send."""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.events.payloads.calls import ReplyTrace
from holdfast.gateway.http.headers import Headers
from holdfast.gateway.recording.request_start import RequestStart
from holdfast.providers.adapter import WireRequest
from holdfast.providers.json_splice import UNREADABLE, decode_json_or_none
from holdfast.types.blocks import Block, Json, Role, Text, is_thinking, parse_tool_call
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.reply import Reply

# Only the start of the system text: volatile lines usually come later.
HEAD_CHARS = 40
DIGEST_CHARS = 16

# Shorter texts in a tool call, such as paths and commands, may be the first message of an unrelated conversation.
DELEGATED_CHARS_MIN = 24
DELEGATED_TEXTS_PER_REPLY_MAX = 32
VALUE_CHARS_MAX = 400
CACHE_KEY = "prompt_cache_key"

OWN_SESSION_PREFIX = "holdfast-"
"""Prefix of the session ids that a rewrite adds. They are derived from the first message, so they are no hint."""

# Session headers of known clients, such as Claude Code, Codex and Helicone.
_HEADERS = (
    b"x-claude-code-session-id",
    b"x-session-id",
    b"session-id",
    b"session_id",
    b"conversation_id",
    b"x-session-affinity",
    b"x-conversation-id",
    b"helicone-session-id",
)

_MEMBERS = ("metadata", "user", "previous_response_id", "session_id", "conversation", CACHE_KEY)
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_IN_USER_ID = re.compile(r"session_(?P<id>[0-9A-Za-z-]{8,})")


class SessionHints(msgspec.Struct, frozen=True):
    """`source` names the field that `session` came from; `previous_response_id` the response this request continues."""

    session: str | None = None
    source: str = ""
    previous_response_id: str | None = None
    user: str | None = None

    @property
    def is_strong(self) -> bool:
        """Whether the hint identifies one session; a prompt cache key may be shared by a whole application."""
        return self.session is not None and self.source != CACHE_KEY


class RequestFingerprint(msgspec.Struct, frozen=True):
    """A request as digests: one of its head, and one per block of its history.

    Conversations in different scopes never match. `restored_scope` is the scope of conversations restored after a
    restart, whose provider account is no longer known; the first request that continues one takes it over. `opening`
    has the texts of the first message, which for a sub-agent are those that its parent passed to a tool. `newest_reply`
    is the last block of the newest reply in it, which begins at block `reply_start`; `at` is when it was sent.
    """

    scope: str
    head: str
    blocks: tuple[str, ...]
    hints: SessionHints
    restored_scope: str = ""
    opening: tuple[str, ...] = ()
    newest_reply: str = ""
    reply_start: int = 0
    at: float = 0.0

    @property
    def scopes(self) -> tuple[str, ...]:
        return (self.scope, self.restored_scope) if self.restored_scope else (self.scope,)


class ReplyFingerprint(msgspec.Struct, frozen=True):
    """A response as digests of its blocks, and of the texts that it passes to tools. `id` is the provider's."""

    id: str = ""
    blocks: tuple[str, ...] = ()
    delegated: tuple[str, ...] = ()

    def to_trace(self) -> ReplyTrace:
        return ReplyTrace(self.blocks, self.delegated)


def decode_session_hints(body: bytes, headers: Headers) -> SessionHints:
    """Decodes only the members that hold hints. Raises msgspec's error if the body is not a JSON object."""
    members = _decode_members(body)
    return find_session_hints(
        {name: msgspec.json.decode(members[name]) for name in _MEMBERS if name in members}, headers
    )


def find_session_hints(body: Mapping[str, Json], headers: Headers) -> SessionHints:
    """Ids in the body take precedence over headers, which may be the same for a whole process."""
    user = _text(_member(body.get("metadata"), "user_id")) or _text(body.get("user"))
    previous = _text(body.get("previous_response_id"))
    session, source = _find_in_body(body, user) or _find_in_headers(headers) or (None, "")
    return SessionHints(session, source, previous, user)


def _find_in_body(body: Mapping[str, Json], user: str | None) -> tuple[str, str] | None:
    if session := _session_in_user_id(user or ""):
        return session, "metadata.user_id"
    for candidate, source in (
        (body.get("session_id"), "session_id"),
        (_member(body.get("metadata"), "session_id"), "metadata.session_id"),
        (_member(body.get("conversation"), "id") or body.get("conversation"), "conversation"),
        (body.get(CACHE_KEY), CACHE_KEY),
    ):
        if (value := _text(candidate)) and not (source == "session_id" and value.startswith(OWN_SESSION_PREFIX)):
            return value, source
    return None


def _session_in_user_id(user_id: str) -> str | None:
    """Claude Code puts its session id into the user id, as a suffix or as a JSON member."""
    if user_id.startswith("{"):
        try:
            members = msgspec.json.decode(user_id)
        except msgspec.MsgspecError:
            return None
        return _text(_member(members, "session_id"))
    match = _IN_USER_ID.search(user_id)
    return match["id"] if match else None


def _find_in_headers(headers: Headers) -> tuple[str, str] | None:
    for wanted in _HEADERS:
        for name, value in headers:
            if name == wanted and value:
                return value[:VALUE_CHARS_MAX].decode("latin-1"), f"the header {wanted.decode()}"
    return None


def _member(value: Json | None, name: str) -> Json | None:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: Json | None) -> str | None:
    return value[:VALUE_CHARS_MAX] if isinstance(value, str) and value else None


def describe_request(
    wire: WireRequest,
    body: bytes,
    headers: Headers,
    *,
    scope: str,
    restored_scope: str,
    previous_response_id: str = "",
    start: RequestStart | None = None,
    at: float = 0.0,
) -> RequestFingerprint:
    """`previous_response_id` is the response that the request continues although its body no longer names it.

    With `start`, `wire` and `body` hold only what follows it.
    """
    try:
        hints = decode_session_hints(body, headers)
    except UNREADABLE:
        hints = find_session_hints({}, headers)
    if previous_response_id:
        hints = msgspec.structs.replace(hints, previous_response_id=previous_response_id)
    if hints.session is not None:
        hints = msgspec.structs.replace(hints, session=short_digest(hints.session.encode("utf-8", "surrogatepass")))
    head, blocks, opening = _head_digest(wire), _block_digests(wire), _opening_digests(wire)
    # A reply in the start is one that this process knows.
    newest_reply, reply_start = _find_newest_reply(wire, blocks)
    if start is not None:
        head, blocks, opening = start.request.head, (*start.blocks, *blocks), start.request.opening
        reply_start += len(start.blocks)
    return RequestFingerprint(scope, head, blocks, hints, restored_scope, opening, newest_reply, reply_start, at)


def describe_reply(reply: Reply) -> ReplyFingerprint:
    blocks = (_digest_block("assistant", block) for block in reply.content if not is_thinking(block))
    calls = (call for block in reply.content if (call := parse_tool_call(block)) is not None)
    delegated = tuple(_digest_text(text) for call in calls for text in _iter_long_texts(call.arguments_json))
    return ReplyFingerprint(reply.id, tuple(blocks), delegated[:DELEGATED_TEXTS_PER_REPLY_MAX])


def _iter_long_texts(arguments_json: str) -> Iterator[str]:
    """All texts in the arguments of a call that are long enough to identify the conversation they were passed to."""
    values: list[object] = [decode_json_or_none(arguments_json)]
    while values:
        match values.pop():
            case str(text) if len(text) >= DELEGATED_CHARS_MIN:
                yield text
            case list(items):
                values += items
            case dict(members):
                values += members.values()
            case _:
                pass


def _opening_digests(wire: WireRequest) -> tuple[str, ...]:
    entries = wire.prompt.entries
    texts = (block.text for block in entries[0].content if isinstance(block, Text)) if entries else ()
    return tuple(_digest_text(text) for text in texts if len(text) >= DELEGATED_CHARS_MIN)


def _digest_text(text: str) -> str:
    return short_digest(text.strip().encode("utf-8", "surrogatepass"))


def short_digest(data: bytes) -> str:
    return sha256_hex(data)[:DIGEST_CHARS]


def _head_digest(wire: WireRequest) -> str:
    """Digest over what is stable even in a badly ordered prompt: model, tool names, start of the system text."""
    tools = sorted(tool.name for tool in wire.prompt.tools)
    texts = (text.text for segment in wire.prompt.segments for text in segment.system)
    return short_digest(msgspec.json.encode((wire.parameters.model, tools, next(texts, "")[:HEAD_CHARS])))


def _block_digests(wire: WireRequest) -> tuple[str, ...]:
    entries = wire.prompt.entries
    return tuple(_digest_block(entry.role, block) for entry in entries for block in entry.content)


def _find_newest_reply(wire: WireRequest, digests: Sequence[str]) -> tuple[str, int]:
    """The digest of the last block of the newest reply, and at which block of the history that reply begins."""
    digest, start = "", len(digests)
    for entry in reversed(wire.prompt.entries):
        if entry.role != "assistant" and digest:
            break
        start -= len(entry.content)
        if entry.role == "assistant" and not digest:
            spoken = [digests[start + index] for index, block in enumerate(entry.content) if not is_thinking(block)]
            digest = spoken[-1] if spoken else ""
    return digest, start


def _digest_block(role: Role, block: Block) -> str:
    # Clients strip white space from a reply before they send it back, as aider does.
    content = block.text.strip() if isinstance(block, Text) else block
    return short_digest(msgspec.json.encode((role, content)))
