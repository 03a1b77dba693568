"""Which failures Gemini's answers mean."""

import json

import pytest

from holdfast.errors import FailureKind, ProviderError
from holdfast.providers.gemini import gemini


def answered(status: int, message: str = "It went wrong.", **members: object) -> ProviderError:
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
    assert answered(status).kind == kind
    assert str(answered(status)) == "It went wrong."


def test_a_prompt_that_is_too_long_is_told_apart() -> None:
    message = "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."
    assert answered(400, message).kind == "context_overflow"


def test_a_key_that_is_refused_as_an_argument_is_a_matter_of_the_key() -> None:
    detail = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
    assert answered(400, details=[{"x": 1}, detail, {"reason": "OTHER"}]).kind == "auth"


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
def test_the_pause_that_is_asked_for_is_kept(details: object, seconds: float) -> None:
    assert answered(429, details=details).retry_after_seconds == seconds


def test_an_error_in_a_list_is_read() -> None:
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
def test_an_error_is_written_with_its_name(kind: FailureKind, status: int | None, name: str) -> None:
    code, body = gemini.encode_error(kind, "No \ud800.", status=status)
    assert json.loads(body) == {"error": {"code": code, "message": "No \ufffd.", "status": name}}
    assert status in (None, code)
