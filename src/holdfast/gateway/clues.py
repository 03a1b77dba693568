"""What a request says of the session it belongs to, by itself: ids in its body and its headers."""

import re
from collections.abc import Mapping

import msgspec

from holdfast.canonical.blocks import Json
from holdfast.gateway.reply import Headers

VALUE_CHARS_MAX = 400
CACHE_KEY = "prompt_cache_key"
OWN_IDS = "holdfast-"
"""How ids begin that improving adds: they tell conversations apart no better than what was said first."""

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
    """`session` names a session and `because` says what did; `follows` is the reply that this one goes on from."""

    session: str | None = None
    because: str = ""
    follows: str | None = None
    user: str | None = None

    @property
    def is_strong(self) -> bool:
        """A key of a cache may be the same for all that an application says."""
        return self.session is not None and self.because != CACHE_KEY


def clues_in(body: bytes, headers: Headers) -> Clues:
    """Nothing else of the body is looked at. Raises msgspec's error for what is no JSON object."""
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return clues_of({name: msgspec.json.decode(members[name]) for name in _MEMBERS if name in members}, headers)


def clues_of(body: Mapping[str, Json], headers: Headers) -> Clues:
    """The body's own ids come before headers: those may be the same for a whole process."""
    user = _text(_member(body.get("metadata"), "user_id")) or _text(body.get("user"))
    follows = _text(body.get("previous_response_id"))
    named = _named(body, user) or _in_headers(headers)
    session, because = named or (None, "")
    return Clues(session, because, follows, user)


def _named(body: Mapping[str, Json], user: str | None) -> tuple[str, str] | None:
    if found := _session_in(user or ""):
        return found, "metadata.user_id"
    for told, because in (
        (body.get("session_id"), "session_id"),
        (_member(body.get("metadata"), "session_id"), "metadata.session_id"),
        (_member(body.get("conversation"), "id") or body.get("conversation"), "conversation"),
        (body.get(CACHE_KEY), CACHE_KEY),
    ):
        if (value := _text(told)) and not (because == "session_id" and value.startswith(OWN_IDS)):
            return value, because
    return None


def _session_in(user_id: str) -> str | None:
    """Claude Code names its session inside of the user's id, as a suffix or as a member of JSON."""
    if user_id.startswith("{"):
        try:
            members = msgspec.json.decode(user_id)
        except msgspec.MsgspecError:
            return None
        return _text(_member(members, "session_id"))
    found = _IN_USER_ID.search(user_id)
    return found["id"] if found else None


def _in_headers(headers: Headers) -> tuple[str, str] | None:
    for wanted in _HEADERS:
        for name, value in headers:
            if name == wanted and value:
                return value[:VALUE_CHARS_MAX].decode("latin-1"), f"the header {wanted.decode()}"
    return None


def _member(value: Json | None, name: str) -> Json | None:
    return value.get(name) if isinstance(value, dict) else None


def _text(value: Json | None) -> str | None:
    return value[:VALUE_CHARS_MAX] if isinstance(value, str) and value else None
