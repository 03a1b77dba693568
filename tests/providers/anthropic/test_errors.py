"""Classification of Anthropic's errors, and errors encoded in its format."""

import json

import pytest

from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.anthropic import anthropic
from holdfast.providers.errors import MESSAGE_CHARS_MAX, sanitize_message


def error(status: int, message: str = "no", headers: dict[str, str] | None = None) -> ProviderError:
    body = {"type": "error", "error": {"type": "x_error", "message": message}, "request_id": "req_1"}
    return anthropic.decode_error(status, headers or {}, json.dumps(body).encode())


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request"),
        (401, "auth"),
        (402, "invalid_request"),
        (403, "auth"),
        (404, "invalid_request"),
        (408, "network"),
        (409, "invalid_request"),
        (413, "context_overflow"),
        (429, "rate_limit"),
        (499, "invalid_request"),
        (500, "server_error"),
        (503, "server_error"),
        (529, "rate_limit"),
        (599, "server_error"),
        (600, "other"),
        (399, "other"),
        (302, "other"),
    ],
)
def test_the_status_determines_the_kind(status: int, kind: FailureKind) -> None:
    assert error(status).kind == kind
    assert error(status).status == status


@pytest.mark.parametrize(
    "message",
    [
        "prompt is too long: 210000 tokens > 200000 maximum",
        "Prompt is too long",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
        "this request exceeds the context window",
    ],
)
def test_a_prompt_that_does_not_fit_is_an_overflow_although_the_status_is_400(message: str) -> None:
    assert error(400, message).kind == "context_overflow"
    assert error(500, message).kind == "server_error"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"Retry-After": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({}, None),
    ],
)
def test_the_requested_pause_is_decoded(headers: dict[str, str], seconds: float | None) -> None:
    assert error(429, headers=headers).retry_after_seconds == seconds


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"error":"text"}', b"[" * 9999, b'{"error":{"message":5}}'])
def test_a_body_without_a_reason_is_reported_by_its_status(body: bytes) -> None:
    failure = anthropic.decode_error(502, {}, body)
    assert str(failure) == "the provider answered with HTTP status 502 and no reason"
    assert failure.kind == "server_error"


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-api03-abcdefgh",
        "AIzaSyA1234567890abc",
        "AKIA1234567890ABCDEF",
        "eyJhbGci.eyJzdWIi.c2ln",
        "ghp_abcdefgh12",
    ],
)
def test_text_that_looks_like_a_key_is_removed(secret: str) -> None:
    assert str(error(401, f"invalid: {secret} given")) == "invalid: [redacted] given"


def test_ordinary_words_remain() -> None:
    message = "max_tokens: 200000 > 64000, the key word is sk-1, messages.0.content.1: ask again"
    assert str(error(400, message)) == message


def test_a_long_message_is_shortened_to_one_line() -> None:
    assert sanitize_message("a\n  b\tc") == "a b c"
    assert sanitize_message("a\x1b]0;title\x07\x9b2J\u202eb") == "a ]0;title 2J b"
    assert sanitize_message("x" * MESSAGE_CHARS_MAX) == "x" * MESSAGE_CHARS_MAX
    assert sanitize_message("x" * (MESSAGE_CHARS_MAX + 1)) == "x" * (MESSAGE_CHARS_MAX - 1) + "…"


@pytest.mark.parametrize(
    ("kind", "status", "expected", "name"),
    [
        ("rate_limit", None, 429, "rate_limit_error"),
        ("rate_limit", 529, 529, "overloaded_error"),
        ("auth", None, 401, "authentication_error"),
        ("auth", 403, 403, "permission_error"),
        ("server_error", None, 500, "api_error"),
        ("server_error", 503, 503, "api_error"),
        ("server_error", 504, 504, "timeout_error"),
        ("network", None, 408, "timeout_error"),
        ("context_overflow", None, 413, "request_too_large"),
        ("invalid_request", None, 400, "invalid_request_error"),
        ("invalid_request", 402, 402, "billing_error"),
        ("invalid_request", 404, 404, "not_found_error"),
        ("invalid_request", 409, 409, "conflict_error"),
        ("invalid_request", 418, 418, "invalid_request_error"),
        ("cancelled", None, 500, "api_error"),
        ("other", None, 500, "api_error"),
        ("other", 302, 302, "api_error"),
    ],
)
def test_a_failure_is_encoded_as_the_provider_would(
    kind: FailureKind, status: int | None, expected: int, name: str
) -> None:
    code, body = anthropic.encode_error(kind, "why\ud800", status=status)
    assert code == expected
    assert json.loads(body) == {"type": "error", "error": {"type": name, "message": "why\ufffd"}}
