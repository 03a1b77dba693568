"""Reads session hints from a request: ids that clients send in the body or in headers."""

import re
from collections.abc import Mapping

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.gateway.reply import Headers

VALUE_CHARS_MAX = 400
CACHE_KEY = "prompt_cache_key"
OWN_IDS = "holdfast-"
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
_IN_USER_ID = re.compile(r"session_(?P<id>[0-9A-Za-z-]{8,})")


class Clues(msgspec.Struct, frozen=True):
    """`because` names the field that `session` came from; `follows` is the id of the response this one continues."""

    session: str | None = None
    because: str = ""
    follows: str | None = None
    user: str | None = None

    @property
    def is_strong(self) -> bool:
        """Whether the hint identifies one session; a prompt cache key may be shared by a whole application."""
        return self.session is not None and self.because != CACHE_KEY


def clues_in(body: bytes, headers: Headers) -> Clues:
    """Decodes only the members that hold hints. Raises msgspec's error if the body is not a JSON object."""
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return clues_of({name: msgspec.json.decode(members[name]) for name in _MEMBERS if name in members}, headers)


def clues_of(body: Mapping[str, Json], headers: Headers) -> Clues:
    """Ids in the body take precedence over headers, which may be the same for a whole process."""
    user = _text(_member(body.get("metadata"), "user_id")) or _text(body.get("user"))
    follows = _text(body.get("previous_response_id"))
    session, because = _find_in_body(body, user) or _find_in_headers(headers) or (None, "")
    return Clues(session, because, follows, user)


def _find_in_body(body: Mapping[str, Json], user: str | None) -> tuple[str, str] | None:
    if session := _session_in_user_id(user or ""):
        return session, "metadata.user_id"
    for candidate, because in (
        (body.get("session_id"), "session_id"),
        (_member(body.get("metadata"), "session_id"), "metadata.session_id"),
        (_member(body.get("conversation"), "id") or body.get("conversation"), "conversation"),
        (body.get(CACHE_KEY), CACHE_KEY),
    ):
        if (value := _text(candidate)) and not (because == "session_id" and value.startswith(OWN_IDS)):
            return value, because
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
