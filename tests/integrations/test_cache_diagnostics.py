"""The official clients request cache diagnostics from the simulator; wrapped, they record the diagnosis."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import CacheMissMessagesChanged, CacheMissPreviousMessageNotFound, Diagnostics, Message
from openai.types.responses import Response
from openai.types.responses.response import PromptCacheDiagnosticsCacheHit, PromptCacheDiagnosticsCacheMiss
from tests.support.served import TIMEOUT_SECONDS, SimulatorServer

from holdfast.events.payloads.calls import LlmCallCompleted
from holdfast.integrations import recorder_of, wrap
from holdfast.simulator.script import parse_script
from holdfast.types.reply import CacheDiagnosis

SYSTEM = "You are a careful assistant that reads files before it speaks of them. " * 120
HELLO = {"role": "user", "content": "Hello."}


@pytest.fixture
def simulated() -> Iterator[SimulatorServer]:
    with SimulatorServer(parse_script("")) as running:
        yield running


@pytest.fixture
def claude(simulated: SimulatorServer) -> Iterator[anthropic.Anthropic]:
    with simulated.client() as client:
        yield client


@pytest.fixture
def gpt(simulated: SimulatorServer) -> Iterator[openai.OpenAI]:
    options: dict[str, Any] = {"api_key": "any", "timeout": TIMEOUT_SECONDS, "max_retries": 0}
    with openai.OpenAI(base_url=f"{simulated.url}/v1", **options) as client:
        yield client


def ask_claude(client: Any, *messages: Any, stream: bool = False, **options: Any) -> Message:
    arguments: Any = {
        "model": "claude-sonnet-5-5",
        "max_tokens": 50,
        "system": SYSTEM,
        "messages": list(messages),
        **options,
    }
    arguments["cache_control"] = {"type": "ephemeral"}
    if not stream:
        complete: Message = client.messages.create(**arguments)
        return complete
    with client.messages.stream(**arguments) as events:
        message: Message = events.get_final_message()
        return message


def compared_with(reply: Message) -> dict[str, Any]:
    return {"diagnostics": {"previous_message_id": reply.id}}


def ask_gpt(client: Any, *items: Any, stream: bool = False, previous: str | None = None) -> Response:
    options = {"prompt_cache_options": {"comparison_response_id": previous}} if previous else {}
    arguments: Any = {"model": "gpt-6.1-sol", "input": [{"role": "developer", "content": SYSTEM}, *items], **options}
    if not stream:
        complete: Response = client.responses.create(**arguments)
        return complete
    (completed,) = [
        event for event in client.responses.create(stream=True, **arguments) if event.type == "response.completed"
    ]
    response: Response = completed.response
    return response


def recorded(client: object) -> list[CacheDiagnosis | None]:
    recorder = recorder_of(client)
    events = (event.payload for event in recorder.read_events())
    return [payload.diagnosis for payload in events if isinstance(payload, LlmCallCompleted)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_anthropics_client_gets_the_diagnosis_in_its_own_types(claude: anthropic.Anthropic, stream: bool) -> None:
    first = ask_claude(claude, HELLO, stream=stream, diagnostics={"previous_message_id": None})
    assert first.diagnostics is None
    grown = (HELLO, {"role": "assistant", "content": first.content}, HELLO)
    assert ask_claude(claude, *grown, stream=stream, **compared_with(first)).diagnostics is None
    changed = ask_claude(claude, {"role": "user", "content": "Bye."}, stream=stream, **compared_with(first)).diagnostics
    assert isinstance(changed, Diagnostics)
    assert isinstance(changed.cache_miss_reason, CacheMissMessagesChanged)
    assert changed.cache_miss_reason.cache_missed_input_tokens > 0
    unknown = ask_claude(claude, HELLO, stream=stream, diagnostics={"previous_message_id": "msg_x"}).diagnostics
    assert unknown is not None
    assert isinstance(unknown.cache_miss_reason, CacheMissPreviousMessageNotFound)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_openais_client_gets_the_diagnosis_in_its_own_types(gpt: openai.OpenAI, stream: bool) -> None:
    first = ask_gpt(gpt, HELLO, stream=stream)
    assert first.prompt_cache_diagnostics is None
    grown = ask_gpt(gpt, HELLO, {"role": "user", "content": "More."}, stream=stream, previous=first.id)
    assert isinstance(grown.prompt_cache_diagnostics, PromptCacheDiagnosticsCacheHit)
    changed = ask_gpt(gpt, {"role": "user", "content": "Bye."}, stream=stream, previous=first.id)
    diagnosis = changed.prompt_cache_diagnostics
    assert isinstance(diagnosis, PromptCacheDiagnosticsCacheMiss)
    assert diagnosis.reason == "input_changed"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_wrapped_client_records_a_diagnosis_that_its_caller_requested(
    claude: anthropic.Anthropic, gpt: openai.OpenAI, stream: bool
) -> None:
    wrapped: Any = wrap(claude)
    first = ask_claude(wrapped, HELLO, stream=stream)
    ask_claude(wrapped, HELLO, stream=stream, **compared_with(first))
    ask_claude(wrapped, {"role": "user", "content": "Bye."}, stream=stream, **compared_with(first))
    *hits, miss = recorded(wrapped)
    assert hits == [None, CacheDiagnosis("hit")]
    assert miss is not None
    assert (miss.outcome, miss.reason) == ("miss", "messages_changed")
    other: Any = wrap(gpt)
    response = ask_gpt(other, HELLO, stream=stream)
    ask_gpt(other, HELLO, stream=stream, previous=response.id)
    assert recorded(other) == [None, CacheDiagnosis("hit")]


def test_a_wrapped_client_requests_no_diagnosis_by_itself(
    simulated: SimulatorServer, claude: anthropic.Anthropic
) -> None:
    wrapped: Any = wrap(claude)
    first = ask_claude(wrapped, HELLO)
    ask_claude(wrapped, HELLO, {"role": "assistant", "content": first.content}, HELLO)
    assert ["diagnostics" in body for body in simulated.bodies()] == [False, False]
    assert recorded(wrapped) == [None, None]


def test_a_first_request_has_nothing_to_be_compared_with(claude: anthropic.Anthropic) -> None:
    wrapped: Any = wrap(claude)
    ask_claude(wrapped, HELLO, diagnostics={"previous_message_id": None})
    assert recorded(wrapped) == [None]
