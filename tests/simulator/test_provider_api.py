"""Recognition of the provider: by path, and by header where providers share a path."""

from collections.abc import Mapping

import msgspec
import pytest
from tests.support.simulated import simulator

from holdfast.simulator.provider import APIS, find_api
from holdfast.simulator.provider_api import SimulatedRequest

ENDPOINTS = (
    "/v1/messages",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/responses/input_tokens",
    "/api/v1/chat/completions",
    "/v1/models/gemini-3.8-flash:generateContent",
    "/v1/models/gemini-3.8-flash:streamGenerateContent",
    "/v1/models/gemini-3.8-flash:countTokens",
    "/v1/cachedContents",
)


def get(path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    answer = simulator().handle("GET", path, headers=headers)
    return answer.status, answer.read_body()


@pytest.mark.parametrize(
    ("headers", "member"),
    [
        ({"Anthropic-Version": "2026-10-21", "authorization": "Bearer k"}, b'"has_more"'),
        ({"x-api-key": "k"}, b'"has_more"'),
        ({"X-Goog-Api-Key": "k"}, b'"supportedGenerationMethods"'),
        ({"authorization": "Bearer k"}, b'"object":"list"'),
    ],
)
def test_models_are_listed_in_the_format_of_the_provider(headers: dict[str, str], member: bytes) -> None:
    status, body = get("/v1/models", headers)
    assert (status, member in body) == (200, True)


def test_a_model_of_another_provider_is_not_found() -> None:
    assert get("/v1/models/gpt-6.1-sol", {"x-api-key": "k"})[0] == 404
    assert get("/v1/models/gpt-6.1-sol", {"authorization": "Bearer k"})[0] == 200


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("key", [{"authorization": "Bearer k"}, {"x-api-key": "k"}, {"x-goog-api-key": "k"}])
def test_a_key_is_accepted_in_the_header_of_any_provider(path: str, key: dict[str, str]) -> None:
    assert simulator().handle("POST", path, headers=key, body=b"{}").status == 400
    assert simulator().handle("POST", path, headers={"authorization": "Basic k"}, body=b"{}").status == 401


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("fault", ["429", "503", "nonsense"])
def test_a_failure_requested_by_header_works_on_every_endpoint(path: str, fault: str) -> None:
    headers = {"authorization": "Bearer k", "x-holdfast-fault": fault}
    answer = simulator().handle("POST", path, headers=headers, body=b"{}")
    assert answer.status == (int(fault) if fault.isdigit() else 400)
    assert "error" in msgspec.json.decode(answer.read_body())


def test_every_request_belongs_to_exactly_one_provider() -> None:
    for path in ENDPOINTS:
        assert sum(api.accepts(SimulatedRequest("POST", path)) for api in APIS) == 1
        assert find_api(SimulatedRequest("PUT", path)) is None
    for method in ("GET", "PATCH", "DELETE"):
        assert sum(api.accepts(SimulatedRequest(method, "/v1/cachedContents/x")) for api in APIS) == 1


def test_an_unknown_endpoint_is_refused_with_a_list_of_all_endpoints() -> None:
    status, body = get("/v1/embeddings", {"authorization": "Bearer k"})
    assert status == 404
    for path in ENDPOINTS:
        assert f"POST {path.replace('gemini-3.8-flash', 'ID')}".encode() in body


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("//v1/chat/completions", {"model": "gpt-6.1-sol", "messages": [{"role": "user", "content": "x"}]}, 200),
        ("/v1//responses", {"model": "gpt-6.1-sol", "input": "x"}, 200),
        ("//v1/messages", {"model": "claude-sonnet-5-5", "max_tokens": 5, "messages": []}, 404),
    ],
)
def test_doubled_slashes_are_answered_as_the_provider_answers_them(path: str, body: object, status: int) -> None:
    """OpenAI reads them as one, Anthropic does not find the endpoint."""
    response = simulator().handle("POST", path, headers={"x-api-key": "any"}, body=msgspec.json.encode(body))
    assert response.status == status
