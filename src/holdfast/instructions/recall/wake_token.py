"""Verify wake tokens: single-use JWTs (HS256 or EdDSA) in which the trigger states why it starts a heartbeat."""

import hashlib
import hmac
from typing import Literal

import msgspec

from holdfast.instructions.errors import InstructionError
from holdfast.instructions.units.signatures import decode_base64url, is_valid_signature

WAKE_TOKEN_CHARACTERS_MAX = 8_000
# The clocks of trigger and service may differ by this much.
CLOCK_SKEW_SECONDS = 30
WAKE_TOKEN_SECONDS_MAX = 3_600


class WakeIssuer(msgspec.Struct, frozen=True):
    """The trusted issuer: its HS256 secret, its raw Ed25519 public key in base64url, or both."""

    issuer: str
    audience: str
    secret: str | None = None
    public_key: str | None = None


class WakeClaims(msgspec.Struct, frozen=True):
    """The claims of a wake token; `sub` is the agent."""

    iss: str
    aud: str | tuple[str, ...]
    sub: str
    wake_reason: str
    heartbeat_id: str
    iat: float
    exp: float
    jti: str
    nbf: float | None = None


class _Header(msgspec.Struct, frozen=True):
    alg: Literal["HS256", "EdDSA"]


def verify_wake_token(token: str, trust: WakeIssuer, *, now: float) -> WakeClaims:
    """Verify signature, issuer, audience and times. The caller must check `sub` and that `jti` is unused.

    Raises InstructionError `wake_token_invalid`.
    """
    parts = token.split(".")
    is_readable = len(token) <= WAKE_TOKEN_CHARACTERS_MAX and token.isascii()
    raw = [decode_base64url(part) for part in parts] if is_readable else []
    if len(raw) != 3 or any(part is None for part in raw):
        raise _refused("it is not a JWT")
    header, claims, signature = (part or b"" for part in raw)
    try:
        algorithm = msgspec.json.decode(header, type=_Header).alg
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _refused("it is signed with neither HS256 nor EdDSA") from error
    if not _is_signed(algorithm, f"{parts[0]}.{parts[1]}".encode(), signature, trust):
        raise _refused("its signature is not from the trusted issuer")
    try:
        wake = msgspec.json.decode(claims, type=WakeClaims)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _refused("it lacks a claim: iss, aud, sub, wake_reason, heartbeat_id, iat, exp, jti") from error
    audiences = (wake.aud,) if isinstance(wake.aud, str) else wake.aud
    if wake.iss != trust.issuer or trust.audience not in audiences:
        raise _refused("its issuer or audience does not match")
    valid_from = max(wake.iat, wake.nbf if wake.nbf is not None else wake.iat)
    if not valid_from - CLOCK_SKEW_SECONDS <= now < wake.exp + CLOCK_SKEW_SECONDS:
        raise _refused("it is not valid now")
    if not 0 < wake.exp - wake.iat <= WAKE_TOKEN_SECONDS_MAX:
        raise _refused(f"it is valid for more than {WAKE_TOKEN_SECONDS_MAX} seconds")
    if not (0 < len(wake.jti) <= 200 and 0 < len(wake.heartbeat_id) <= 200):
        raise _refused("jti and heartbeat_id must have 1 to 200 characters")
    return wake


def _is_signed(algorithm: str, message: bytes, signature: bytes, trust: WakeIssuer) -> bool:
    if algorithm == "HS256":
        # compare_digest takes the same time whatever differs, so that the signature cannot be guessed byte by byte.
        expected = hmac.digest((trust.secret or "").encode(), message, hashlib.sha256)
        return bool(trust.secret) and hmac.compare_digest(expected, signature)
    key = decode_base64url(trust.public_key) if trust.public_key else None
    return key is not None and is_valid_signature(key, signature, message)


def _refused(reason: str) -> InstructionError:
    return InstructionError("wake_token_invalid", f"the wake token is refused: {reason}")
