"""API keys: creation, verification, and which scope may use which route."""

import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from holdfast.errors import UserError
from holdfast.events.records import BUDGET_USD_MAX, KeyRow
from holdfast.service.http.routes import AccessRule, ApiError

# 256 random bits; the id is public and only has to be unique.
SECRET_BYTES = 32
ID_BYTES = 8

# Bounds the input to the pattern; a real key has 84 characters.
KEY_CHARS_MAX = 200
NAME_CHARS_MAX = 200
REQUESTS_A_MINUTE_MAX = 1_000_000
MODELS_MAX = 50
GATEWAY_SCOPES = ("gateway", "admin")  # An admin key may use the gateway too.
_KEY = re.compile(r"hf_(?P<id>[0-9a-f]{16})_(?P<secret>[0-9a-f]{64})")
_AGENT = re.compile(r"agent:[^\s/]{1,200}")
_ENTITY = re.compile(r"[a-z][a-z0-9+.-]*:[!-~]{1,400}")
_MODEL_PATTERN = re.compile(r"[!-~]{1,200}")
KeyState = Literal["usable", "revoked", "expired"]


class NewKey(msgspec.Struct, frozen=True):
    """A new key; the only time its secret is available in clear."""

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
    """Raises UserError for an invalid scope, name, entity or expiry."""
    if scope not in ("admin", "read", "gateway") and not _AGENT.fullmatch(scope):
        raise UserError(
            f"unknown scope {scope[:80]!a}; use admin, read, gateway, or agent:<id> without spaces and slashes"
        )
    if entity is not None and (scope != "admin" or not _ENTITY.fullmatch(entity)):
        raise UserError("an entity must be a URI such as acme:user/ann, and needs a key of scope admin")
    _check_name(name)
    if expires_at is not None and expires_at <= at:
        raise UserError("the expiry time is in the past; choose a later one")
    key_id, secret = random_bytes(ID_BYTES).hex(), random_bytes(SECRET_BYTES).hex()
    row = KeyRow(key_id, hash_secret(secret), scope, at, name, entity, expires_at)
    return NewKey(f"hf_{key_id}_{secret}", row)


def assign_account(row: KeyRow, *, user: str | None, team: str | None) -> KeyRow:
    """Assigns the key to a user and a team. Raises UserError for an invalid name."""
    for name in (user, team):
        if name is not None and not (name.isprintable() and 0 < len(name) <= NAME_CHARS_MAX):
            raise UserError(f"user and team must be printable text of at most {NAME_CHARS_MAX} characters")
    return msgspec.structs.replace(row, user_id=user, team_id=team)


def assign_limits(
    row: KeyRow,
    *,
    budget_usd_a_day: float | None,
    requests_a_minute: int | None,
    budget_usd_a_month: float | None = None,
    models: Sequence[str] = (),
) -> KeyRow:
    """Sets the limits of a gateway key. Raises UserError for an invalid limit."""
    for budget, period in ((budget_usd_a_day, "day"), (budget_usd_a_month, "month")):
        if budget is not None and not 0 <= budget <= BUDGET_USD_MAX:
            raise UserError(f"a budget must be between 0 and {BUDGET_USD_MAX:,} dollars a {period}")
    if len(models) > MODELS_MAX or not all(_MODEL_PATTERN.fullmatch(pattern) for pattern in models):
        raise UserError(f"models are at most {MODELS_MAX} names or patterns such as claude-*, without spaces")
    if requests_a_minute is not None and not 1 <= requests_a_minute <= REQUESTS_A_MINUTE_MAX:
        raise UserError(f"requests a minute must be between 1 and {REQUESTS_A_MINUTE_MAX:,}")
    limits = (budget_usd_a_day, requests_a_minute, budget_usd_a_month, " ".join(models) or None)
    if any(limit is not None for limit in limits) and row.scope not in GATEWAY_SCOPES:
        raise UserError(f"limits are for the gateway, which a key of scope {row.scope} may not use")
    names = ("budget_usd_a_day", "requests_a_minute", "budget_usd_a_month", "models")
    return msgspec.structs.replace(row, **dict(zip(names, limits, strict=True)))


def rename_key(row: KeyRow, name: str | None) -> KeyRow:
    """Raises UserError for an invalid name."""
    _check_name(name)
    return msgspec.structs.replace(row, name=name)


def _check_name(name: str | None) -> None:
    if name is not None and not (name.isprintable() and 0 < len(name) <= NAME_CHARS_MAX):
        raise UserError(f"a name must be printable text of at most {NAME_CHARS_MAX} characters")


def hash_secret(secret: str) -> str:
    """A fast hash is enough: the secret has 256 random bits, so there is nothing to brute-force."""
    return hashlib.sha256(secret.encode()).hexdigest()


def get_key_state(row: KeyRow, at: float) -> KeyState:
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if row.expires_at is not None and row.expires_at <= at else "usable"


def verify_key(authorization: str | None, find: Callable[[str], KeyRow | None], at: float) -> KeyRow | None:
    """The row of the key in an Authorization value; None if there is none. Raises ApiError for an invalid key."""
    if authorization is None:
        return None
    scheme, _, key = authorization.partition(" ")
    parts = _KEY.fullmatch(key.strip()) if scheme.lower() == "bearer" and len(key) <= KEY_CHARS_MAX else None
    row = find(parts["id"]) if parts else None
    # Unknown, revoked and expired keys get the same response in the same time, so that guessing reveals nothing.
    stored_digest = row.digest if row else "0" * 64
    is_equal = hmac.compare_digest(stored_digest, hash_secret(parts["secret"] if parts else ""))
    if row is None or not is_equal or get_key_state(row, at) != "usable":
        raise ApiError(401, "invalid_key", "unknown, revoked or expired key")
    return row


def make_key_required_error() -> ApiError:
    return ApiError(401, "key_required", "send a key as `Authorization: Bearer KEY`")


def check_allowed(rule: AccessRule, scope: str | None, *, denied: str = "not_allowed") -> None:
    """Raises ApiError unless a key of this scope may use a route with this rule; scope None means no key."""
    if rule == "open" or scope == "admin":
        return
    if scope is None:
        raise make_key_required_error()
    if rule != "caller" and (rule, scope) != ("read", "read"):
        raise ApiError(403, denied, f"a key of scope {scope} may not do this")
