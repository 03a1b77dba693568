"""A wake token is believed only if the issuer's key signed all of it, in a way that the service understands."""

import base64
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InstructionError
from holdfast.instructions.recall.wake_token import WAKE_TOKEN_CHARACTERS_MAX, WakeIssuer, verify_wake_token

SECRET = "a secret of the control plane, 32+"
PRIVATE_KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
NOW = 1_800_000_000.0


def encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


PUBLIC_KEY = encode(PRIVATE_KEY.public_key().public_bytes_raw())
BOTH = WakeIssuer("control-plane", "holdfast", SECRET, PUBLIC_KEY)
CLAIMS: dict[str, Any] = {
    "iss": "control-plane",
    "aud": "holdfast",
    "sub": "agent",
    "wake_reason": "manual",
    "heartbeat_id": "run_1",
    "iat": NOW,
    "exp": NOW + 300,
    "jti": "once",
}


def sign(header: object, claims: object = CLAIMS, secret: str = SECRET) -> str:
    """A token made without the library that verifies it; the header says how it is signed."""
    message = f"{encode(json.dumps(header).encode())}.{encode(json.dumps(claims).encode())}"
    algorithm = header.get("alg") if isinstance(header, dict) else None
    if algorithm == "EdDSA":
        return f"{message}.{encode(PRIVATE_KEY.sign(message.encode()))}"
    hash_name = "sha512" if algorithm == "HS512" else "sha256"
    return f"{message}.{encode(hmac.digest(secret.encode(), message.encode(), hash_name))}"


def refusal_of(token: str, trust: WakeIssuer = BOTH) -> str:
    with pytest.raises(InstructionError) as refusal:
        verify_wake_token(token, trust, now=NOW)
    assert refusal.value.code == "wake_token_invalid"
    return str(refusal.value).removeprefix("the wake token is refused: ")


@pytest.mark.parametrize("algorithm", ["HS256", "EdDSA"])
def test_a_token_of_either_key_gives_its_claims(algorithm: str) -> None:
    claims = verify_wake_token(sign({"alg": algorithm, "typ": "JWT"}), BOTH, now=NOW)
    assert (claims.sub, claims.wake_reason, claims.jti) == ("agent", "manual", "once")


def test_an_audience_may_be_one_of_several() -> None:
    token = sign({"alg": "HS256"}, CLAIMS | {"aud": ["elsewhere", "holdfast"]})
    assert verify_wake_token(token, BOTH, now=NOW).aud == ("elsewhere", "holdfast")


@pytest.mark.parametrize(
    ("algorithm", "trust"),
    [
        ("HS256", WakeIssuer("control-plane", "holdfast", public_key=PUBLIC_KEY)),
        ("EdDSA", WakeIssuer("control-plane", "holdfast", secret=SECRET)),
        ("EdDSA", WakeIssuer("control-plane", "holdfast", secret=SECRET, public_key="not a key")),
        ("HS256", WakeIssuer("control-plane", "holdfast", secret="")),
        ("none", BOTH),
        ("None", BOTH),
        ("HS512", BOTH),
        ("", BOTH),
        (None, BOTH),
        (5, BOTH),
    ],
)
def test_an_algorithm_without_a_key_of_the_issuer_is_refused(algorithm: object, trust: WakeIssuer) -> None:
    assert "HS256" in refusal_of(sign({"alg": algorithm}), trust)


def test_a_public_key_is_not_a_secret() -> None:
    """A holder of the public key must not be able to sign with it as if it were the secret of HS256."""
    trust = WakeIssuer("control-plane", "holdfast", public_key=PUBLIC_KEY)
    for secret in (PUBLIC_KEY, base64.urlsafe_b64decode(f"{PUBLIC_KEY}=").decode("latin-1")):
        assert refusal_of(sign({"alg": "HS256"}, secret=secret), trust)


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "HS256", "crit": ["exp"]},
        {"alg": "HS256", "crit": ["http://example.com/unknown"], "http://example.com/unknown": True},
        {"alg": "HS256", "crit": []},
        {"alg": "HS256", "crit": "exp"},
        {"alg": "HS256", "b64": False},
        {"alg": "HS256", "b64": False, "crit": ["b64"]},
        ["HS256"],
        {},
    ],
    ids=str,
)
def test_a_header_that_must_be_understood_and_is_not_is_refused(header: object) -> None:
    assert refusal_of(sign(header))


def test_a_short_secret_is_refused_even_if_it_signed() -> None:
    short = "x" * 31
    trust = WakeIssuer("control-plane", "holdfast", secret=short)
    assert "not a JWT, or" in refusal_of(sign({"alg": "HS256"}, secret=short), trust)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"iss": "somebody"}, "issuer or audience"),
        ({"aud": "elsewhere"}, "issuer or audience"),
        ({"aud": ["elsewhere"]}, "issuer or audience"),
        ({"exp": NOW - 30}, "not valid now"),
        ({"iat": NOW + 31}, "not valid now"),
        ({"nbf": NOW + 31}, "not valid now"),
        ({"exp": NOW + 3_601}, "valid for more than 3600 seconds"),
        ({"exp": float("nan")}, "not valid now"),
        ({"exp": float("inf")}, "valid for more than"),
        ({"iat": NOW - 10, "exp": NOW - 20}, "valid for more than"),
        ({"exp": "soon"}, "lacks a claim"),
        ({"wake_reason": 7}, "lacks a claim"),
        ({"jti": ""}, "1 to 200 characters"),
        ({"heartbeat_id": "h" * 201}, "1 to 200 characters"),
    ],
    ids=str,
)
def test_claims_that_do_not_hold_are_refused_with_the_reason(changed: dict[str, object], reason: str) -> None:
    assert reason in refusal_of(sign({"alg": "HS256"}, CLAIMS | changed))


@pytest.mark.parametrize("claim", sorted(CLAIMS))
def test_every_claim_is_required(claim: str) -> None:
    assert refusal_of(sign({"alg": "HS256"}, {name: value for name, value in CLAIMS.items() if name != claim}))


def test_clocks_may_differ_by_30_seconds() -> None:
    token = sign({"alg": "HS256"}, CLAIMS | {"exp": NOW + 10})
    assert verify_wake_token(token, BOTH, now=NOW - 30)
    assert verify_wake_token(token, BOTH, now=NOW + 39)


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b",
        "a.b.c",
        "ünïcode.a.b",
        "\ud800.a.b",
        "x" * (WAKE_TOKEN_CHARACTERS_MAX + 1),
        f"{encode(b'[' * 5_000)}.a.b",
        encode(b'{"alg":' + b"9" * 5_000 + b"}") + ".a.b",
    ],
    ids=range(8),
)
def test_what_is_no_token_is_refused_not_raised(token: str) -> None:
    assert refusal_of(token)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_one_changed_character_makes_a_token_invalid(data: st.DataObject) -> None:
    token = sign({"alg": data.draw(st.sampled_from(["HS256", "EdDSA"]))})
    position = data.draw(st.integers(0, len(token) - 1))
    character = data.draw(st.sampled_from("ABCabc019_-.=!"))
    changed = f"{token[:position]}{character}{token[position + 1 :]}"
    if changed != token:
        assert refusal_of(changed)
