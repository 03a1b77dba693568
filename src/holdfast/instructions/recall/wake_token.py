"""Verify wake tokens: single-use JWTs (HS256 or EdDSA) in which the trigger states why it starts a heartbeat."""

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from holdfast.errors import InstructionError
from holdfast.instructions.units.signatures import decode_base64url

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


def verify_wake_token(token: str, trust: WakeIssuer, *, now: float) -> WakeClaims:
    """Verify signature, issuer, audience and times. The caller must check `sub` and that `jti` is unused.

    Raises InstructionError `wake_token_invalid`.
    """
    # Loaded here, because only a heartbeat needs it, and every start of a session would wait 40 ms for it.
    import jwt  # noqa: PLC0415

    if len(token) > WAKE_TOKEN_CHARACTERS_MAX:
        raise _refused(f"it is longer than {WAKE_TOKEN_CHARACTERS_MAX} characters")
    # The times are checked below, against the caller's clock.
    options: jwt.types.Options = {
        "enforce_minimum_key_length": True,
        "verify_exp": False,
        "verify_iat": False,
        "verify_nbf": False,
    }
    try:
        # The header may choose between the keys of the issuer, but never how a key is used.
        algorithm = str(jwt.get_unverified_header(token).get("alg"))
        key = _load_keys(trust).get(algorithm)
        if key is None:
            raise _refused("it is not signed with HS256 or EdDSA by a key of the trusted issuer")
        claims = jwt.decode(
            token, key, algorithms=[algorithm], issuer=trust.issuer, audience=trust.audience, options=options
        )
        wake = msgspec.convert(claims, WakeClaims)
    except jwt.InvalidSignatureError as error:
        raise _refused("its signature is not from the trusted issuer") from error
    except (jwt.InvalidIssuerError, jwt.InvalidAudienceError) as error:
        raise _refused("its issuer or audience does not match") from error
    except msgspec.ValidationError as error:
        raise _refused("it lacks a claim: iss, aud, sub, wake_reason, heartbeat_id, iat, exp, jti") from error
    except (jwt.PyJWTError, ValueError, RecursionError) as error:
        raise _refused("it is not a JWT, or has a header that is not supported") from error
    valid_from = max(wake.iat, wake.nbf if wake.nbf is not None else wake.iat)
    if not valid_from - CLOCK_SKEW_SECONDS <= now < wake.exp + CLOCK_SKEW_SECONDS:
        raise _refused("it is not valid now")
    if not 0 < wake.exp - wake.iat <= WAKE_TOKEN_SECONDS_MAX:
        raise _refused(f"it is valid for more than {WAKE_TOKEN_SECONDS_MAX} seconds")
    if not (0 < len(wake.jti) <= 200 and 0 < len(wake.heartbeat_id) <= 200):
        raise _refused("jti and heartbeat_id must have 1 to 200 characters")
    return wake


def _load_keys(trust: WakeIssuer) -> dict[str, str | Ed25519PublicKey]:
    """The issuer's keys by the algorithm that each is for; with both, an issuer can change from one to the other."""
    keys: dict[str, str | Ed25519PublicKey] = {"HS256": trust.secret} if trust.secret else {}
    if trust.public_key and (raw := decode_base64url(trust.public_key)):
        keys["EdDSA"] = Ed25519PublicKey.from_public_bytes(raw)
    return keys


def _refused(reason: str) -> InstructionError:
    return InstructionError("wake_token_invalid", f"the wake token is refused: {reason}")
