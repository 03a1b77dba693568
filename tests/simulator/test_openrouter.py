"""The simulator as OpenRouter: the rules are those of the upstream provider."""

from typing import Any

import msgspec
import pytest
from tests.support.simulated import simulator
from tests.support.simulated_openai import LONG, Chat, Wire, get, post

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.catalog.schema import CacheRules
from holdfast.simulator.provider import SimulatedProvider

PATH = "/api/v1/chat/completions"
SONNET = "anthropic/claude-sonnet-5.5"
HAIKU = "anthropic/claude-haiku-5.5"
GPT = "openai/gpt-5.4"
BREAKPOINT = {"type": "ephemeral"}
REASONED = (
    '{"content": [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Yes."}, '
    '{"type": "thinking", "thinking": "Done."}]}'
)

chat = Chat()


def part(words: str, cache_control: Wire | None = None) -> Wire:
    return {"type": "text", "text": words, **({"cache_control": cache_control} if cache_control else {})}


def body(*messages: Wire, model: str = SONNET, **fields: Any) -> Wire:
    return {"model": model, **fields, "messages": list(messages)}


def replied(provider: SimulatedProvider, sent: Wire) -> Wire:
    status, reply = post(provider, PATH, sent)
    assert status == 200, reply
    return reply


def buckets(provider: SimulatedProvider, sent: Wire) -> tuple[int, int, int]:
    return chat.buckets(replied(provider, sent))


def refused(provider: SimulatedProvider, sent: Wire) -> tuple[int, str]:
    status, reply = post(provider, PATH, sent)
    assert reply["error"]["code"] == status
    return status, reply["error"]["message"]


def models_like(id: str, **cache: object) -> Models:
    row = shipped_models()["openrouter:openai/gpt-5.4"]
    rules: CacheRules = msgspec.structs.replace(shipped_models()[id].cache, **cache)
    return {**shipped_models(), row.id: msgspec.structs.replace(row, cache=rules)}


def test_a_prefix_with_a_breakpoint_is_written_and_read() -> None:
    provider = simulator()
    sent = body(chat.message("system", part(LONG, BREAKPOINT)), chat.message("user", "Ask."))
    plain, read, written_tokens = buckets(provider, sent)
    assert (plain > 0, read, written_tokens > 512) == (True, 0, True)
    assert buckets(provider, sent) == (plain, written_tokens, 0)


def test_nothing_is_cached_without_a_breakpoint() -> None:
    provider = simulator()
    sent = body(chat.message("system", LONG), chat.message("user", "Ask."))
    assert [buckets(provider, sent)[1:] for _ in range(2)] == [(0, 0), (0, 0)]


def test_the_automatic_breakpoint_is_placed_as_anthropic_places_it() -> None:
    provider = simulator()
    sent = body(chat.message("system", LONG), chat.message("user", "Ask."), cache_control=BREAKPOINT)
    _, _, written_tokens = buckets(provider, sent)
    assert buckets(provider, sent) == (0, written_tokens, 0)


def test_more_breakpoints_than_the_model_supports_are_refused() -> None:
    parts = [part(f"Part {index}.", BREAKPOINT) for index in range(5)]
    status, message = refused(simulator(), body(chat.message("user", *parts)))
    assert (status, message) == (400, "A maximum of 4 blocks with cache_control may be provided. Found 5.")


def test_breakpoints_are_dropped_where_the_model_has_none() -> None:
    provider = simulator()
    sent = body(chat.message("system", part(LONG, BREAKPOINT)), chat.message("user", "Ask."), model=GPT)
    assert buckets(provider, sent)[1:] == (0, 0)
    assert buckets(provider, sent)[1] >= 1_024


def test_breakpoints_are_translated_where_the_model_has_its_own() -> None:
    provider = simulator(models=models_like("openai:gpt-6.1-sol"))
    system = chat.message("system", part(LONG, BREAKPOINT))
    buckets(provider, body(system, chat.message("user", "One."), model=GPT))
    assert buckets(provider, body(system, chat.message("user", "Another."), model=GPT))[1] > 1_024


def test_unknown_models_are_refused() -> None:
    assert refused(simulator(), body(chat.message("user", "Ask."), model="none/such")) == (
        404,
        "No endpoints found for none/such.",
    )


def test_an_empty_conversation_is_refused() -> None:
    assert refused(simulator(), body())[0] == 400


def test_an_unanswered_call_is_refused() -> None:
    assert refused(simulator(), body(chat.message("user", "Ask."), *chat.calls("call_1")))[0] == 400


def reasoned(model: str) -> tuple[SimulatedProvider, list[Wire]]:
    provider = simulator(REASONED)
    messages = [chat.message("user", "Ask.")]
    message = replied(provider, body(*messages, model=model))["choices"][0]["message"]
    return provider, [*messages, message, chat.message("user", "And?")]


@pytest.mark.parametrize("model", [SONNET, HAIKU, GPT])
def test_reasoning_comes_signed_and_is_accepted_back_unchanged(model: str) -> None:
    provider, messages = reasoned(model)
    assert [detail["text"] for detail in messages[1]["reasoning_details"]] == ["Hm.", "Done."]
    assert chat.text(replied(provider, body(*messages, model=model))) == "Echo: And?"


def test_altered_reasoning_is_refused() -> None:
    provider, messages = reasoned(SONNET)
    messages[1]["reasoning_details"][0]["text"] = "Something else."
    assert refused(provider, body(*messages))[0] == 400


def test_bound_reasoning_after_a_changed_message_is_refused() -> None:
    provider, messages = reasoned(SONNET)
    status, message = refused(provider, body(chat.message("user", "Something else."), *messages[1:]))
    assert (status, "bound to a different conversation" in message) == (400, True)


def test_models_are_listed_with_their_prices() -> None:
    status, listed = get(simulator(), "/api/v1/models")
    assert status == 200
    row = next(row for row in listed["data"] if row["id"] == SONNET)
    assert row["pricing"]["prompt"] == "0.000002"
    assert row["pricing"]["input_cache_write"] == "0.0000025"
    assert listed["total_count"] == len(listed["data"])


def test_a_model_without_prices_is_listed_as_free() -> None:
    row = shipped_models()[f"openrouter:{GPT}"]
    models = {row.id: msgspec.structs.replace(row, prices=())}
    _, listed = get(simulator(models=models), "/api/v1/models")
    assert listed["data"][0]["pricing"] == {"prompt": "0", "completion": "0"}


def test_a_reply_reports_its_cost() -> None:
    sent = body(chat.message("system", part(LONG, BREAKPOINT)), chat.message("user", "Ask."))
    usage = replied(simulator(), sent)["usage"]
    plain, _, written_tokens = chat.buckets({"usage": usage})
    assert usage["cost"] == pytest.approx(
        (2 * plain + 2.5 * written_tokens + 10 * usage["completion_tokens"]) / 1_000_000
    )


def test_a_stream_reports_its_cost_with_its_usage() -> None:
    sent = body(chat.message("user", "Ask."), stream=True)
    answer = simulator().handle("POST", PATH, headers={"x-api-key": "k"}, body=msgspec.json.encode(sent))
    events = answer.read_body().split(b"\n\n")
    assert b'"cost":' in events[-3]
    assert events[-2:] == [b"data: [DONE]", b""]
