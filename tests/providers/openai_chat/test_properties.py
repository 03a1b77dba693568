"""Properties of every chat completion, whatever it counts or contains."""

import json
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_values as values

from holdfast.errors import ProviderError
from holdfast.providers.adapter import Adapter
from holdfast.providers.openai_chat import openai_chat
from holdfast.providers.openrouter import openrouter
from holdfast.types.reply import Reply

both = pytest.mark.parametrize("adapter", [openai_chat, openrouter], ids=lambda adapter: adapter.name)
counters = st.none() | st.integers(-10, 10**6)


@both
@given(st.lists(counters, min_size=4, max_size=4), st.sampled_from(["m", "anthropic/m"]))
def test_the_usage_buckets_add_up_to_the_providers_total(
    adapter: Adapter, numbers: list[int | None], model: str
) -> None:
    total, read, cache_write, output = numbers
    details = {"cached_tokens": read, "cache_write_tokens": cache_write}
    took = {"prompt_tokens": total, "completion_tokens": output, "prompt_tokens_details": details}
    body = {"model": model, "choices": [{"message": {}}], "usage": took}
    usage = adapter.decode_reply(json.dumps(body).encode()).usage

    assert usage.tokens_sent == max(0, total or 0)
    assert usage.output == max(0, output or 0)
    assert min(usage.input, usage.cache_read, usage.cache_write) >= 0
    assert usage.cache_read == min(max(0, read or 0), usage.tokens_sent)
    assert usage.cache_write == min(max(0, cache_write or 0), usage.tokens_sent - usage.cache_read)


def outcome(read: Callable[[bytes], Reply], body: bytes) -> Reply | ProviderError:
    try:
        return read(body)
    except ProviderError as error:
        return error


def partial_reply(adapter: Adapter, chunk: bytes) -> Reply:
    """The partial reply after a stream of one chunk."""
    reader = adapter.make_stream_decoder()
    list(reader.feed(b"data: " + chunk + b"\n\n"))
    reply = reader.partial()
    assert reply is not None
    return reply


names = st.sampled_from(["content", "refusal", "reasoning", "reasoning_details", "tool_calls", "images", "audio", "x"])
shapes = st.recursive(
    values.json_values,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["type", "index", "id", "function", "name", "arguments", "text"]), inner)
    ),
    max_leaves=8,
)


@both
@given(st.dictionaries(names, shapes, max_size=4))
def test_a_message_of_any_shape_is_decoded_or_refused_in_one_line(adapter: Adapter, message: dict[str, object]) -> None:
    body = json.dumps({"choices": [{"message": message}]}).encode()
    complete, streamed = (outcome(read, body) for read in (adapter.decode_reply, partial(partial_reply, adapter)))
    for result in (complete, streamed):
        assert isinstance(result, Reply) or len(str(result).splitlines()) == 1
    # Whatever decodes as a complete reply also decodes as a stream; an interrupted stream has fewer requirements.
    assert isinstance(streamed, Reply) or isinstance(complete, ProviderError)


@both
@given(
    st.dictionaries(names | st.just("role"), shapes, max_size=4),
    st.sampled_from(["user", "assistant", "tool", "system"]),
)
def test_a_request_of_any_shape_is_decoded_and_encoded_alike_or_refused(
    adapter: Adapter, message: dict[str, object], role: str
) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}, {"role": role, **message}]})
    try:
        request = adapter.decode_request(body.encode())
    except ProviderError as error:
        refusal = error
    else:
        encoded = adapter.encode_request(request.prompt, request.plan, request.parameters)
        again = adapter.decode_request(encoded)
        assert adapter.encode_request(again.prompt, again.plan, again.parameters) == encoded
        return
    assert refusal.kind == "invalid_request"
    assert len(str(refusal).splitlines()) == 1
