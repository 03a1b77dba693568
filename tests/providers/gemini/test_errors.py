"""Classification of Gemini's errors."""

import json

import pytest

from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.gemini import gemini


def decode_error(status: int, message: str = "It went wrong.", **members: object) -> ProviderError:
    body = json.dumps({"error": {"code": status, "message": message, **members}}).encode()
    return gemini.decode_error(status, {"Retry-After": "7"}, body)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request"),
        (401, "auth"),
        (403, "auth"),
        (404, "invalid_request"),
        (429, "rate_limit"),
        (500, "server_error"),
        (503, "server_error"),
        (504, "server_error"),
    ],
)
def test_a_status_has_a_kind(status: int, kind: FailureKind) -> None:
    assert decode_error(status).kind == kind
    assert str(decode_error(status)) == "It went wrong."


def test_a_prompt_that_is_too_long_is_distinguished() -> None:
    message = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
    assert decode_error(400, message).kind == "context_overflow"


def test_a_key_refused_as_an_invalid_argument_is_an_authentication_failure() -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    assert decode_error(400, details=[{"x": 1}, detail, {"reason": "OTHER"}]).kind == "auth"


@pytest.mark.parametrize(
    ("details", "seconds"),
    [
        ([{"reason": "x"}, {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}], 34.5),
        ([{"retryDelay": "0s"}], 0.0),
        ([{"retryDelay": "soon"}], 7.0),
        ([{"retryDelay": "-1s"}], 7.0),
        ([{"retryDelay": "9" * 400 + "s"}], 7.0),
        ([{"retryDelay": 3}, 3, None], 7.0),
        (None, 7.0),
    ],
)
def test_the_requested_pause_is_decoded(details: object, seconds: float) -> None:
    assert decode_error(429, details=details).retry_after_seconds == seconds


def test_an_error_in_a_list_is_decoded() -> None:
    assert str(gemini.decode_error(500, {}, b'[{"error":{"message":"Broken."}}]')) == "Broken."
    assert str(gemini.decode_error(500, {}, b"[]")) == "the provider answered with HTTP status 500 and no reason"


@pytest.mark.parametrize(
    ("kind", "status", "name"),
    [
        ("rate_limit", None, "RESOURCE_EXHAUSTED"),
        ("server_error", 503, "UNAVAILABLE"),
        ("server_error", 599, "INTERNAL"),
        ("invalid_request", 418, "INVALID_ARGUMENT"),
        ("auth", 403, "PERMISSION_DENIED"),
    ],
)
def test_an_error_is_encoded_with_its_name(kind: FailureKind, status: int | None, name: str) -> None:
    code, body = gemini.encode_error(kind, "No \ud800.", status=status)
    assert json.loads(body) == {"error": {"code": code, "message": "No \ufffd.", "status": name}}
    assert status in (None, code)
