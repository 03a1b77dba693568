"""What every provider's adapter keeps to."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_values as values
from tests.support.wires import wire_of

from holdfast.errors import FailureKind, ProviderError, UserError
from holdfast.providers.adapter import PATH_HEADER, Adapter
from holdfast.providers.registry import PROVIDERS, get_adapter
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


def read_all(adapter: Adapter, chunks: list[bytes]) -> list[Delta]:
    reader = adapter.make_stream_decoder()
    return [delta for chunk in chunks for delta in reader.feed(chunk)]


def lowered(adapter: Adapter, prompt: Prompt) -> Prompt:
    """The prompt as the provider can be told it."""

    def lower(segment: Segment) -> Segment:
        kept = (adapter.lower_entry(passage) for passage in segment.entries)
        return msgspec.structs.replace(segment, entries=tuple(passage for passage in kept if passage is not None))

    return Prompt(tuple(lower(segment) for segment in prompt.segments))


def draw_request(adapter: Adapter, data: st.DataObject) -> tuple[Prompt, Plan, Parameters]:
    """Any prompt, with marks where the provider takes them."""
    wire = wire_of(adapter)
    prompt, parameters = data.draw(values.prompts), data.draw(wire.parameters)
    markable = [index for index, piece in enumerate(values.encode_blocks(adapter, prompt)) if piece.accepts_breakpoint]
    return prompt, data.draw(values.plans(markable, wire.ttls)), parameters


def headers_of(adapter: Adapter, parameters: Parameters) -> dict[str, str]:
    endpoint = adapter.endpoint(parameters)
    return {**dict(endpoint.headers), PATH_HEADER: endpoint.path}


@every_adapter
@given(st.data())
def test_a_request_read_back_says_what_was_written(adapter: Adapter, data: st.DataObject) -> None:
    prompt, plan, parameters = draw_request(adapter, data)
    body = adapter.encode_request(prompt, plan, parameters)

    read = adapter.decode_request(body, headers_of(adapter, parameters))

    assert read.prompt.tools == prompt.tools
    assert values.system_of(read.prompt) == values.system_of(prompt)
    assert values.messages_of(read.prompt) == values.messages_of(lowered(adapter, prompt))
    assert read.plan == plan
    assert read.parameters == parameters


@every_adapter
@given(values.prompts)
def test_what_is_lowered_is_spelled_like_what_it_was_lowered_from(adapter: Adapter, prompt: Prompt) -> None:
    once = lowered(adapter, prompt)
    assert values.encode_blocks(adapter, once) == values.encode_blocks(adapter, prompt)
    assert lowered(adapter, once) == once


@every_adapter
@given(st.data())
def test_the_same_values_give_the_same_bytes(adapter: Adapter, data: st.DataObject) -> None:
    prompt, _, parameters = draw_request(adapter, data)
    body = adapter.encode_request(prompt, Plan(), parameters)
    read = adapter.decode_request(body, headers_of(adapter, parameters))
    assert adapter.encode_request(prompt, Plan(), parameters) == body
    assert adapter.encode_request(read.prompt, Plan(), read.parameters) == body


@every_adapter
@given(st.data())
def test_a_mark_changes_no_cacheable_byte_and_its_absence_gives_the_unmarked_body(
    adapter: Adapter, data: st.DataObject
) -> None:
    prompt, plan, parameters = draw_request(adapter, data)
    marked = adapter.encode_request(prompt, plan, parameters)
    read = adapter.decode_request(marked, headers_of(adapter, parameters))

    before, after = values.encode_blocks(adapter, prompt), values.encode_blocks(adapter, read.prompt)
    assert [
        (piece.section, piece.container_start, piece.data, piece.accepts_breakpoint, piece.role) for piece in after
    ] == [(piece.section, piece.container_start, piece.data, piece.accepts_breakpoint, piece.role) for piece in before]
    assert adapter.encode_request(read.prompt, Plan(), parameters) == adapter.encode_request(prompt, Plan(), parameters)


@every_adapter
@given(st.data())
def test_a_request_that_has_grown_begins_with_the_bytes_of_the_one_before(
    adapter: Adapter, data: st.DataObject
) -> None:
    prompt, more = data.draw(values.prompts), data.draw(st.lists(values.history_entries, max_size=3))
    scroll = RequestBuffer(adapter, count=len)
    for segment in prompt.segments:
        scroll.extend(adapter.encode_segment(segment))
    before = scroll.cacheable_bytes()
    scroll.extend(adapter.encode_segment(Segment("history", Stability.GROWING, "messages", entries=tuple(more))))
    assert scroll.cacheable_bytes().startswith(before)


@every_adapter
@given(st.data())
def test_a_scroll_that_grew_gives_the_bytes_of_a_request_written_at_once(adapter: Adapter, data: st.DataObject) -> None:
    prompt, plan, parameters = draw_request(adapter, data)
    scroll = RequestBuffer(adapter, count=len)
    for piece in values.encode_blocks(adapter, prompt):
        scroll.extend([piece])
        scroll.render(adapter.request_head(parameters))

    assert scroll.render(adapter.request_head(parameters), plan.breakpoints) == adapter.encode_request(
        prompt, plan, parameters
    )


@every_adapter
@given(st.data())
def test_a_request_without_its_head_is_the_one_written_without_it(adapter: Adapter, data: st.DataObject) -> None:
    prompt, plan, parameters = draw_request(adapter, data)
    scroll = RequestBuffer(adapter, count=len)
    scroll.extend(values.encode_blocks(adapter, prompt))
    messages = Prompt(tuple(segment for segment in prompt.segments if segment.section == "messages"))
    head = len(scroll.blocks) - len(values.encode_blocks(adapter, messages))
    later = Plan(
        tuple(Breakpoint(mark.block_index - head, mark.ttl) for mark in plan.breakpoints if mark.block_index >= head)
    )

    behind = scroll.render(adapter.request_head(parameters), plan.breakpoints, start=head)
    assert behind == adapter.encode_request(messages, later, parameters)


@every_adapter
@given(st.data())
def test_a_whole_reply_read_back_is_the_reply(adapter: Adapter, data: st.DataObject) -> None:
    reply = data.draw(wire_of(adapter).replies)
    assert adapter.decode_reply(adapter.encode_reply(reply)) == reply


@every_adapter
@given(st.data())
def test_a_stream_cut_anywhere_folds_to_the_reply(adapter: Adapter, data: st.DataObject) -> None:
    reply = data.draw(wire_of(adapter).replies)
    chunks = data.draw(values.chunks(b"".join(adapter.encode_stream(reply))))
    deltas = read_all(adapter, chunks)

    assert isinstance(deltas[0], ReplyStarted)
    assert deltas[-1] == ReplyFinished(reply)
    assert deltas == read_all(adapter, list(adapter.encode_stream(reply)))


@every_adapter
@given(st.data())
def test_a_stream_that_is_cut_off_leaves_what_had_arrived(adapter: Adapter, data: st.DataObject) -> None:
    reply = data.draw(wire_of(adapter).replies)
    events = list(adapter.encode_stream(reply))
    kept = data.draw(st.integers(0, len(events) - 1))
    reader = adapter.make_stream_decoder()
    deltas = [delta for event in events[:kept] for delta in reader.feed(event)]
    partial = reader.partial()

    if not kept:
        assert partial is None
        return
    assert partial is not None
    assert (partial.id, partial.model) == (reply.id, reply.model)
    seen = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    told = "".join(block.text for block in partial.content if isinstance(block, Text))
    assert told.strip() in seen
    whole = partial.content == reply.content
    assert whole or all(block.text.strip() for block in partial.content if isinstance(block, Text))


@every_adapter
@given(st.binary(max_size=200))
def test_bytes_that_are_no_request_are_refused_in_one_line(adapter: Adapter, body: bytes) -> None:
    with pytest.raises(ProviderError) as refused:
        adapter.decode_request(body)
    assert refused.value.kind == "invalid_request"
    assert len(str(refused.value).splitlines()) == 1


@every_adapter
@given(st.binary(max_size=200), st.integers(100, 999))
def test_every_answer_that_is_an_error_has_one_of_the_known_kinds(adapter: Adapter, body: bytes, status: int) -> None:
    error = adapter.decode_error(status, {}, body)
    assert error.kind in get_args(FailureKind)
    assert error.status == status
    assert len(str(error).splitlines()) == 1


@every_adapter
@pytest.mark.parametrize("kind", REPORTED)
def test_a_failure_read_back_is_of_the_kind_that_was_written(adapter: Adapter, kind: FailureKind) -> None:
    status, body = adapter.encode_error(kind, "it went wrong")
    error = adapter.decode_error(status, {}, body)
    assert error.kind == kind
    assert str(error) == "it went wrong"


@every_adapter
def test_an_adapter_is_found_by_its_name(adapter: Adapter) -> None:
    assert get_adapter(adapter.name) is adapter


@pytest.mark.parametrize(
    "adapter", [one.adapter for one in PROVIDERS.values() if one.key_variable], ids=lambda adapter: adapter.name
)
def test_the_key_travels_in_the_credentials_and_nowhere_else(adapter: Adapter) -> None:
    endpoint = adapter.endpoint(Parameters("model", 1))
    assert any("key-1234" in value for value in adapter.credentials("key-1234").values())
    assert not {name for name, _ in endpoint.headers} & set(adapter.credentials("key-1234"))
    assert endpoint.path.startswith("/")


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="unknown provider 'nobody'; known providers: anthropic"):
        get_adapter("nobody")
