"""What holds for every chat completion, whatever it counts, carries or claims."""

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
def test_the_buckets_add_up_to_the_providers_own_total(adapter: Adapter, numbers: list[int | None], model: str) -> None:
    total, read, written, output = numbers
    details = {"cached_tokens": read, "cache_write_tokens": written}
    took = {"prompt_tokens": total, "completion_tokens": output, "prompt_tokens_details": details}
    body = {"model": model, "choices": [{"message": {}}], "usage": took}
    usage = adapter.decode_reply(json.dumps(body).encode()).usage

    assert usage.tokens_sent == max(0, total or 0)
    assert usage.output == max(0, output or 0)
    assert min(usage.input, usage.cache_read, usage.cache_write) >= 0
    assert usage.cache_read == min(max(0, read or 0), usage.tokens_sent)
    assert usage.cache_write == min(max(0, written or 0), usage.tokens_sent - usage.cache_read)


def outcome(read: Callable[[bytes], Reply], body: bytes) -> Reply | ProviderError:
    try:
        return read(body)
    except ProviderError as error:
        return error


def partial_of(adapter: Adapter, chunk: bytes) -> Reply:
    """What is left of a stream of one chunk."""
    reader = adapter.make_stream_decoder()
    list(reader.feed(b"data: " + chunk + b"\n\n"))
    left = reader.partial()
    assert left is not None
    return left


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
def test_a_message_of_any_shape_is_read_or_refused_in_one_line(adapter: Adapter, message: dict[str, object]) -> None:
    body = json.dumps({"choices": [{"message": message}]}).encode()
    whole, streamed = (outcome(read, body) for read in (adapter.decode_reply, partial(partial_of, adapter)))
    for found in (whole, streamed):
        assert isinstance(found, Reply) or len(str(found).splitlines()) == 1
    # What can be read at once can be read as it arrives; of a stream that is cut, less has to be legal.
    assert isinstance(streamed, Reply) or isinstance(whole, ProviderError)


@both
@given(
    st.dictionaries(names | st.just("role"), shapes, max_size=4),
    st.sampled_from(["user", "assistant", "tool", "system"]),
)
def test_a_request_of_any_shape_is_read_and_written_alike_or_refused(
    adapter: Adapter, message: dict[str, object], role: str
) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "a"}, {"role": role, **message}]})
    try:
        request = adapter.decode_request(body.encode())
    except ProviderError as error:
        refusal = error
    else:
        written = adapter.encode_request(request.prompt, request.plan, request.parameters)
        again = adapter.decode_request(written)
        assert adapter.encode_request(again.prompt, again.plan, again.parameters) == written
        return
    assert refusal.kind == "invalid_request"
    assert len(str(refusal).splitlines()) == 1
