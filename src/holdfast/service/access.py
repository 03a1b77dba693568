"""Who asks, and whether they may: keys are made, read, compared and judged here."""

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from holdfast.errors import UserError
from holdfast.events.access import KeyRow
from holdfast.service.failures import RefusedError
from holdfast.service.routes import Rule

SECRET_BYTES = 32
ID_BYTES = 8
KEY_CHARS_MAX = 200
NAME_CHARS_MAX = 200

_KEY = re.compile(r"hf_(?P<id>[0-9a-f]{16})_(?P<secret>[0-9a-f]{64})")
_AGENT = re.compile(r"agent:[^\s/]{1,200}")
_ENTITY = re.compile(r"[a-z][a-z0-9+.-]*:[!-~]{1,400}")

State = Literal["usable", "revoked", "expired"]


class NewKey(msgspec.Struct, frozen=True):
    """The one time that a key is seen whole."""

    key: str
    row: KeyRow


def make_key(
    scope: str,
    *,
    at: float,
    random_bytes: Callable[[int], bytes],
    name: str | None = None,
    entity: str | None = None,
    expires_at: float | None = None,
) -> NewKey:
    """Raises UserError for a scope, a name or an entity that there cannot be."""
    if scope not in ("admin", "read", "gateway") and not _AGENT.fullmatch(scope):
        raise UserError(
            f"{scope[:80]!a} is no scope: use admin, read, gateway, or agent:<id> without spaces and slashes"
        )
    if entity is not None and (scope != "admin" or not _ENTITY.fullmatch(entity)):
        raise UserError("an entity is a URI such as acme:user/ann, and belongs to a key of scope admin")
    if name is not None and not (name.isprintable() and 0 < len(name) <= NAME_CHARS_MAX):
        raise UserError(f"a name is printable text of at most {NAME_CHARS_MAX} characters")
    if expires_at is not None and expires_at <= at:
        raise UserError("a key that has expired already opens nothing; name a later time")
    key_id, secret = random_bytes(ID_BYTES).hex(), random_bytes(SECRET_BYTES).hex()
    row = KeyRow(key_id, digest_of(secret), scope, at, name, entity, expires_at)
    return NewKey(f"hf_{key_id}_{secret}", row)


def on_account(row: KeyRow, *, user: str | None, team: str | None) -> KeyRow:
    """The key with whom it was made for. Raises UserError for a name that there cannot be."""
    for name in (user, team):
        if name is not None and not (name.isprintable() and 0 < len(name) <= NAME_CHARS_MAX):
            raise UserError(f"a user and a team are printable text of at most {NAME_CHARS_MAX} characters")
    return msgspec.structs.replace(row, user_id=user, team_id=team)


def digest_of(secret: str) -> str:
    """The secret is as long as the digest and drawn by chance: there is nothing that slowness would protect."""
    return hashlib.sha256(secret.encode()).hexdigest()


def state_of(row: KeyRow, at: float) -> State:
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= at else "usable"


def holder_of(authorization: str | None, find: Callable[[str], KeyRow | None], at: float) -> KeyRow | None:
    """The row of the key that a request carries; None where it carries none. Raises RefusedError for a bad one."""
    if authorization is None:
        return None
    kind, _, key = authorization.partition(" ")
    parts = _KEY.fullmatch(key.strip()) if kind.lower() == "bearer" and len(key) <= KEY_CHARS_MAX else None
    row = find(parts["id"]) if parts else None
    # Unknown, revoked and expired keys are told alike: whoever guesses learns nothing.
    kept = row.digest if row else "0" * 64
    same = hmac.compare_digest(kept, digest_of(parts["secret"] if parts else ""))
    if row is None or not same or state_of(row, at) != "usable":
        raise RefusedError(401, "invalid_key", "this key is not known, or no longer valid")
    return row


def key_required() -> RefusedError:
    return RefusedError(401, "key_required", "send a key as `Authorization: Bearer KEY`")


def check_allowed(rule: Rule, scope: str | None, path: Mapping[str, str], *, denied: str = "not_allowed") -> None:
    """Raises RefusedError unless a key of this scope may use a route of this rule; None is no key."""
    if rule == "open" or scope == "admin":
        return
    if scope is None:
        raise key_required()
    if rule == "read" and scope == "read":
        return
    if rule == "caller":
        return
    if rule == "agent" and scope == f"agent:{path.get('agent_id', '')}":
        return
    raise RefusedError(403, denied, f"a key of scope {scope} may not do this")
