"""The official clients ask the simulator why its cache did not hold; wrapped, they record what it said."""

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


def ask_claude(client: Any, *messages: Any, stream: bool = False, **wish: Any) -> Message:
    given: Any = {"model": "claude-sonnet-5-5", "max_tokens": 50, "system": SYSTEM, "messages": list(messages), **wish}
    given["cache_control"] = {"type": "ephemeral"}
    if not stream:
        whole: Message = client.messages.create(**given)
        return whole
    with client.messages.stream(**given) as events:
        message: Message = events.get_final_message()
        return message


def after(reply: Message) -> dict[str, Any]:
    return {"diagnostics": {"previous_message_id": reply.id}}


def ask_gpt(client: Any, *said: Any, stream: bool = False, previous: str | None = None) -> Response:
    options = {"prompt_cache_options": {"comparison_response_id": previous}} if previous else {}
    given: Any = {"model": "gpt-6.1-sol", "input": [{"role": "developer", "content": SYSTEM}, *said], **options}
    if not stream:
        whole: Response = client.responses.create(**given)
        return whole
    (ended,) = [event for event in client.responses.create(stream=True, **given) if event.type == "response.completed"]
    response: Response = ended.response
    return response


def recorded(client: object) -> list[CacheDiagnosis | None]:
    recorder = recorder_of(client)
    events = (event.payload for event in recorder.log.read(recorder.session_id))
    return [payload.diagnosis for payload in events if isinstance(payload, LlmCallCompleted)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_anthropics_client_sees_the_diagnosis_in_its_own_types(claude: anthropic.Anthropic, stream: bool) -> None:
    first = ask_claude(claude, HELLO, stream=stream, diagnostics={"previous_message_id": None})
    assert first.diagnostics is None
    grown = (HELLO, {"role": "assistant", "content": first.content}, HELLO)
    assert ask_claude(claude, *grown, stream=stream, **after(first)).diagnostics is None
    changed = ask_claude(claude, {"role": "user", "content": "Bye."}, stream=stream, **after(first)).diagnostics
    assert isinstance(changed, Diagnostics)
    assert isinstance(changed.cache_miss_reason, CacheMissMessagesChanged)
    assert changed.cache_miss_reason.cache_missed_input_tokens > 0
    unknown = ask_claude(claude, HELLO, stream=stream, diagnostics={"previous_message_id": "msg_x"}).diagnostics
    assert unknown is not None
    assert isinstance(unknown.cache_miss_reason, CacheMissPreviousMessageNotFound)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_openais_client_sees_the_diagnosis_in_its_own_types(gpt: openai.OpenAI, stream: bool) -> None:
    first = ask_gpt(gpt, HELLO, stream=stream)
    assert first.prompt_cache_diagnostics is None
    grown = ask_gpt(gpt, HELLO, {"role": "user", "content": "More."}, stream=stream, previous=first.id)
    assert isinstance(grown.prompt_cache_diagnostics, PromptCacheDiagnosticsCacheHit)
    changed = ask_gpt(gpt, {"role": "user", "content": "Bye."}, stream=stream, previous=first.id)
    told = changed.prompt_cache_diagnostics
    assert isinstance(told, PromptCacheDiagnosticsCacheMiss)
    assert told.reason == "input_changed"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_wrapped_client_records_a_diagnosis_that_its_caller_asked_for(
    claude: anthropic.Anthropic, gpt: openai.OpenAI, stream: bool
) -> None:
    wrapped: Any = wrap(claude)
    first = ask_claude(wrapped, HELLO, stream=stream)
    ask_claude(wrapped, HELLO, stream=stream, **after(first))
    ask_claude(wrapped, {"role": "user", "content": "Bye."}, stream=stream, **after(first))
    *hits, miss = recorded(wrapped)
    assert hits == [None, CacheDiagnosis("hit")]
    assert miss is not None
    assert (miss.outcome, miss.reason) == ("miss", "messages_changed")
    other: Any = wrap(gpt)
    response = ask_gpt(other, HELLO, stream=stream)
    ask_gpt(other, HELLO, stream=stream, previous=response.id)
    assert recorded(other) == [None, CacheDiagnosis("hit")]


def test_a_wrapped_client_is_not_made_to_ask(simulated: SimulatorServer, claude: anthropic.Anthropic) -> None:
    wrapped: Any = wrap(claude)
    first = ask_claude(wrapped, HELLO)
    ask_claude(wrapped, HELLO, {"role": "assistant", "content": first.content}, HELLO)
    assert ["diagnostics" in body for body in simulated.bodies()] == [False, False]
    assert recorded(wrapped) == [None, None]


def test_a_first_request_that_asks_has_nothing_to_be_compared_with(claude: anthropic.Anthropic) -> None:
    wrapped: Any = wrap(claude)
    ask_claude(wrapped, HELLO, diagnostics={"previous_message_id": None})
    assert recorded(wrapped) == [None]
