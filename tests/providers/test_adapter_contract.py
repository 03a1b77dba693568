"""The contract of every provider's adapter."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_values as values
from tests.support.wires import wire_of

from holdfast.errors import FailureKind, ProviderError, UserError
from holdfast.providers.adapter import PATH_HEADER, Adapter
from holdfast.providers.registry import PROVIDERS, find_adapter, get_adapter
from holdfast.types.blocks import Text
from holdfast.types.prompt import Breakpoint, Parameters, Plan, Prompt, Segment, Stability
from holdfast.types.reply import Delta, ReplyFinished, ReplyStarted, TextDelta
from holdfast.types.request_buffer import RequestBuffer

every_adapter = pytest.mark.parametrize(
    "adapter", [provider.adapter for provider in PROVIDERS.values()], ids=lambda adapter: adapter.name
)

# Kinds that a provider can report; the other two happen on our side.
REPORTED: tuple[FailureKind, ...] = (
    "rate_limit",
    "auth",
    "server_error",
    "network",
    "context_overflow",
    "invalid_request",
)


def decode_all(adapter: Adapter, chunks: list[bytes]) -> list[Delta]:
    reader = adapter.make_stream_decoder()
    return [delta for chunk in chunks for delta in reader.feed(chunk)]


def lower_prompt(adapter: Adapter, prompt: Prompt) -> Prompt:
    """The prompt in a form that the provider can encode."""

    def lower_segment(segment: Segment) -> Segment:
        entries = (adapter.lower_entry(entry) for entry in segment.entries)
        return msgspec.structs.replace(segment, entries=tuple(entry for entry in entries if entry is not None))

    return Prompt(tuple(lower_segment(segment) for segment in prompt.segments))


def draw_request(adapter: Adapter, data: st.DataObject) -> tuple[Prompt, Plan, Parameters]:
    """Any prompt, with breakpoints where the provider accepts them."""
    wire = wire_of(adapter)
    prompt, parameters = data.draw(values.prompts), data.draw(wire.parameters)
    accepting = [index for index, block in enumerate(values.encode_blocks(adapter, prompt)) if block.accepts_breakpoint]
    return prompt, data.draw(values.plans(accepting, wire.ttls)), parameters


def headers_of(adapter: Adapter, parameters: Parameters) -> dict[str, str]:
    endpoint = adapter.endpoint(parameters)
    return {**dict(endpoint.headers), PATH_HEADER: endpoint.path}


@every_adapter
@given(st.data())
def test_an_encoded_request_is_decoded_to_the_same_values(adapter: Adapter, data: st.DataObject) -> None:
    prompt, plan, parameters = draw_request(adapter, data)
    body = adapter.encode_request(prompt, plan, parameters)

    read = adapter.decode_request(body, headers_of(adapter, parameters))

    assert read.prompt.tools == prompt.tools
    assert values.system_of(read.prompt) == values.system_of(prompt)
    assert values.messages_of(read.prompt) == values.messages_of(lower_prompt(adapter, prompt))
    assert read.plan == plan
    assert read.parameters == parameters


@every_adapter
@given(values.prompts)
def test_a_lowered_prompt_is_encoded_like_the_original(adapter: Adapter, prompt: Prompt) -> None:
    once = lower_prompt(adapter, prompt)
    assert values.encode_blocks(adapter, once) == values.encode_blocks(adapter, prompt)
    assert lower_prompt(adapter, once) == once


@every_adapter
@given(st.data())
def test_equal_values_give_equal_bytes(adapter: Adapter, data: st.DataObject) -> None:
    prompt, _, parameters = draw_request(adapter, data)
    body = adapter.encode_request(prompt, Plan(), parameters)
    read = adapter.decode_request(body, headers_of(adapter, parameters))
    assert adapter.encode_request(prompt, Plan(), parameters) == body
    assert adapter.encode_request(read.prompt, Plan(), read.parameters) == body


@every_adapter
@given(st.data())
def test_a_breakpoint_changes_no_cacheable_byte_and_without_it_the_body_is_the_plain_one(
    adapter: Adapter, data: st.DataObject
) -> None:
    prompt, plan, parameters = draw_request(adapter, data)
    with_breakpoints = adapter.encode_request(prompt, plan, parameters)
    read = adapter.decode_request(with_breakpoints, headers_of(adapter, parameters))

    before, after = values.encode_blocks(adapter, prompt), values.encode_blocks(adapter, read.prompt)
    assert [
        (block.section, block.container_start, block.data, block.accepts_breakpoint, block.role) for block in after
    ] == [(block.section, block.container_start, block.data, block.accepts_breakpoint, block.role) for block in before]
    assert adapter.encode_request(read.prompt, Plan(), parameters) == adapter.encode_request(prompt, Plan(), parameters)


@every_adapter
@given(st.data())
def test_a_longer_request_starts_with_the_bytes_of_the_previous_one(adapter: Adapter, data: st.DataObject) -> None:
    prompt, more = data.draw(values.prompts), data.draw(st.lists(values.history_entries, max_size=3))
    buffer = RequestBuffer(adapter, count=len)
    for segment in prompt.segments:
        buffer.extend(adapter.encode_segment(segment))
    before = buffer.cacheable_bytes()
    buffer.extend(adapter.encode_segment(Segment("history", Stability.GROWING, "messages", entries=tuple(more))))
    assert buffer.cacheable_bytes().startswith(before)


@every_adapter
@given(st.data())
def test_an_incrementally_filled_buffer_renders_the_bytes_of_a_request_encoded_at_once(
    adapter: Adapter, data: st.DataObject
) -> None:
    prompt, plan, parameters = draw_request(adapter, data)
    buffer = RequestBuffer(adapter, count=len)
    for block in values.encode_blocks(adapter, prompt):
        buffer.extend([block])
        buffer.render(adapter.request_head(parameters))

    assert buffer.render(adapter.request_head(parameters), plan.breakpoints) == adapter.encode_request(
        prompt, plan, parameters
    )


@every_adapter
@given(st.data())
def test_a_request_rendered_without_its_prefix_equals_one_encoded_without_it(
    adapter: Adapter, data: st.DataObject
) -> None:
    prompt, plan, parameters = draw_request(adapter, data)
    buffer = RequestBuffer(adapter, count=len)
    buffer.extend(values.encode_blocks(adapter, prompt))
    messages = Prompt(tuple(segment for segment in prompt.segments if segment.section == "messages"))
    prefix_count = len(buffer.blocks) - len(values.encode_blocks(adapter, messages))
    later = Plan(
        tuple(
            Breakpoint(breakpoint_.block_index - prefix_count, breakpoint_.ttl)
            for breakpoint_ in plan.breakpoints
            if breakpoint_.block_index >= prefix_count
        )
    )

    rendered = buffer.render(adapter.request_head(parameters), plan.breakpoints, start=prefix_count)
    assert rendered == adapter.encode_request(messages, later, parameters)


@every_adapter
@given(st.data())
def test_an_encoded_reply_is_decoded_to_the_same_reply(adapter: Adapter, data: st.DataObject) -> None:
    reply = data.draw(wire_of(adapter).replies)
    assert adapter.decode_reply(adapter.encode_reply(reply)) == reply


@every_adapter
@given(st.data())
def test_a_stream_split_anywhere_decodes_to_the_reply(adapter: Adapter, data: st.DataObject) -> None:
    reply = data.draw(wire_of(adapter).replies)
    chunks = data.draw(values.chunks(b"".join(adapter.encode_stream(reply))))
    deltas = decode_all(adapter, chunks)

    assert isinstance(deltas[0], ReplyStarted)
    assert deltas[-1] == ReplyFinished(reply)
    assert deltas == decode_all(adapter, list(adapter.encode_stream(reply)))


@every_adapter
@given(st.data())
def test_an_interrupted_stream_leaves_the_content_that_had_arrived(adapter: Adapter, data: st.DataObject) -> None:
    reply = data.draw(wire_of(adapter).replies)
    events = list(adapter.encode_stream(reply))
    event_count = data.draw(st.integers(0, len(events) - 1))
    reader = adapter.make_stream_decoder()
    deltas = [delta for event in events[:event_count] for delta in reader.feed(event)]
    partial = reader.partial()

    if not event_count:
        assert partial is None
        return
    assert partial is not None
    assert (partial.id, partial.model) == (reply.id, reply.model)
    streamed_text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    partial_text = "".join(block.text for block in partial.content if isinstance(block, Text))
    assert partial_text.strip() in streamed_text
    is_complete = partial.content == reply.content
    assert is_complete or all(block.text.strip() for block in partial.content if isinstance(block, Text))


@every_adapter
@given(st.binary(max_size=200))
def test_bytes_that_are_not_a_request_are_refused_in_one_line(adapter: Adapter, body: bytes) -> None:
    with pytest.raises(ProviderError) as refused:
        adapter.decode_request(body)
    assert refused.value.kind == "invalid_request"
    assert len(str(refused.value).splitlines()) == 1


@every_adapter
@given(st.binary(max_size=200), st.integers(100, 999))
def test_every_error_response_has_a_known_kind(adapter: Adapter, body: bytes, status: int) -> None:
    error = adapter.decode_error(status, {}, body)
    assert error.kind in get_args(FailureKind)
    assert error.status == status
    assert len(str(error).splitlines()) == 1


@every_adapter
@pytest.mark.parametrize("kind", REPORTED)
def test_an_encoded_failure_is_decoded_to_the_same_kind(adapter: Adapter, kind: FailureKind) -> None:
    status, body = adapter.encode_error(kind, "it went wrong")
    error = adapter.decode_error(status, {}, body)
    assert error.kind == kind
    assert str(error) == "it went wrong"


@every_adapter
def test_an_adapter_is_found_by_its_name(adapter: Adapter) -> None:
    assert get_adapter(adapter.name) is adapter


@pytest.mark.parametrize(
    "adapter",
    [provider.adapter for provider in PROVIDERS.values() if provider.key_variable],
    ids=lambda adapter: adapter.name,
)
def test_the_key_is_in_the_credentials_and_nowhere_else(adapter: Adapter) -> None:
    endpoint = adapter.endpoint(Parameters("model", 1))
    assert any("key-1234" in value for value in adapter.credentials("key-1234").values())
    assert not {name for name, _ in endpoint.headers} & set(adapter.credentials("key-1234"))
    assert endpoint.path.startswith("/")


def test_an_unknown_provider_is_refused_with_a_list_of_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown provider 'nobody'; known providers: anthropic"):
        get_adapter("nobody")


def test_a_recorded_provider_always_has_an_adapter() -> None:
    assert find_adapter("anthropic") is get_adapter("anthropic")
    assert find_adapter("bedrock") is get_adapter("bedrock") is get_adapter("anthropic")
    assert find_adapter("our-own-host") is get_adapter("deepseek") is get_adapter("openai-chat")
