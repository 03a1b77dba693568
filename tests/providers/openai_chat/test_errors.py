"""Classification of errors in OpenAI's format, and errors encoded in that format."""

import json

import pytest

from holdfast.errors import FailureKind
from holdfast.providers.openai_common import (
    decode_openai_error,
    decode_openai_stream_error,
    encode_openai_error,
    encode_openrouter_error,
)
from holdfast.providers.retry import retry_delay


def body(**fault: object) -> bytes:
    return json.dumps({"error": {"message": "no", **fault}}).encode()


@pytest.mark.parametrize(
    ("status", "fault", "kind"),
    [
        (400, {"type": "invalid_request_error", "code": None}, "invalid_request"),
        (400, {"code": "context_length_exceeded"}, "context_overflow"),
        (400, {"message": "This endpoint's maximum context length is 8 tokens", "code": 400}, "context_overflow"),
        (401, {"code": "invalid_api_key"}, "auth"),
        (402, {"code": 402}, "invalid_request"),
        (403, {}, "auth"),
        (408, {}, "network"),
        (413, {}, "context_overflow"),
        (429, {"type": "requests", "code": "rate_limit_exceeded"}, "rate_limit"),
        (429, {"type": "insufficient_quota", "code": "insufficient_quota"}, "other"),
        (429, {"type": "insufficient_quota", "code": None}, "other"),
        (500, {"type": "server_error"}, "server_error"),
        (503, {}, "server_error"),
    ],
)
def test_the_status_determines_the_kind_unless_the_code_is_more_precise(
    status: int, fault: dict[str, object], kind: FailureKind
) -> None:
    error = decode_openai_error(status, {"retry-after": "7"}, body(**fault))
    assert (error.kind, error.status, error.retry_after_seconds) == (kind, status, 7.0)


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        ({"type": "invalid_request_error"}, 400),
        ({"type": "requests", "code": "rate_limit_exceeded"}, 429),
        ({"type": "tokens", "code": None}, 429),
        ({"type": "invalid_request_error", "code": "invalid_api_key"}, 401),
        ({"type": "server_error", "code": None}, 500),
        ({"code": "never_heard_of"}, 500),
        ({"code": 429}, 429),
        ({"code": 200}, 500),
        ({"code": 600}, 500),
        ({"code": 10**30}, 500),
        ({}, 500),
    ],
)
def test_in_a_stream_a_word_or_a_number_replaces_the_status(fault: dict[str, object], status: int) -> None:
    assert decode_openai_stream_error(body(**fault)).status == status


def test_an_error_may_be_at_the_top_level_or_plain_text() -> None:
    flat = decode_openai_stream_error(
        b'{"type":"error","code":"rate_limit_exceeded","message":"slow down","param":null}'
    )
    assert (flat.kind, str(flat)) == ("rate_limit", "slow down")
    assert str(decode_openai_error(500, {}, b'{"error":"out of order"}')) == "out of order"


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[" * 9999, b'{"error":{"message":5}}', b'{"error":null}', b"\xff", b'{"error":{}}']
)
def test_a_body_without_a_reason_is_reported_by_its_status(answer: bytes) -> None:
    assert str(decode_openai_error(502, {}, answer)) == "the provider answered with HTTP status 502 and no reason"


def test_a_message_is_one_line_without_a_key() -> None:
    error = decode_openai_error(401, {}, body(message="Incorrect API key provided:\nsk-abcdefghijklmnop"))
    assert str(error) == "Incorrect API key provided: [redacted]"


def test_no_pause_helps_when_a_quota_is_used_up() -> None:
    status, encoded = encode_openai_error("other", "paid?", status=429)
    assert json.loads(encoded)["error"]["code"] == "insufficient_quota"
    assert retry_delay(1, decode_openai_error(status, {}, encoded), 0.5) is None


@pytest.mark.parametrize(
    ("kind", "status", "name", "code"),
    [
        ("invalid_request", 400, "invalid_request_error", None),
        ("auth", 401, "authentication_error", "invalid_api_key"),
        ("rate_limit", 429, "requests", "rate_limit_exceeded"),
        ("server_error", 500, "server_error", None),
        ("context_overflow", 400, "invalid_request_error", "context_length_exceeded"),
        ("network", 408, "timeout", None),
        ("other", 500, "server_error", None),
    ],
)
def test_openai_errors_carry_type_and_code(kind: FailureKind, status: int, name: str, code: str | None) -> None:
    encoded_status, encoded = encode_openai_error(kind, "no \ud800")
    assert encoded_status == status
    assert json.loads(encoded) == {"error": {"message": "no \ufffd", "type": name, "param": None, "code": code}}


def test_a_requested_status_is_used() -> None:
    assert encode_openai_error("invalid_request", "no", status=422)[0] == 422
    assert b"invalid_request_error" in encode_openai_error("invalid_request", "no", status=422)[1]
    assert b"server_error" in encode_openai_error("server_error", "no", status=503)[1]
    assert encode_openai_error("server_error", "no", status=503)[0] == 503
    assert encode_openrouter_error("server_error", "no", status=503) == (503, b'{"error":{"code":503,"message":"no"}}')


def test_openrouter_errors_carry_a_number() -> None:
    assert encode_openrouter_error("rate_limit", "no") == (429, b'{"error":{"code":429,"message":"no"}}')
