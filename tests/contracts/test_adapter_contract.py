"""What every provider's adapter keeps to."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wire_values as values
from holdfast.canonical.blocks import Text
from holdfast.canonical.prompt import Parameters, Plan, Prompt
from holdfast.canonical.reply import Delta, Reply, ReplyFinished, ReplyStarted, TextDelta
from holdfast.canonical.scroll import Scroll
from holdfast.errors import FailureKind, ProviderError, UserError
from holdfast.providers.adapter import Adapter
from holdfast.providers.registry import PROVIDERS, adapter_for

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
    reader = adapter.stream_reader()
    return [delta for chunk in chunks for delta in reader.feed(chunk)]


@every_adapter
@given(st.data())
def test_a_request_read_back_says_what_was_written(adapter: Adapter, data: st.DataObject) -> None:
    prompt, parameters = data.draw(values.prompts), data.draw(values.parameters)
    plan = data.draw(values.plans(len(values.pieces_of(adapter, prompt))))
    body = adapter.write_request(prompt, plan, parameters)

    read = adapter.read_request(body, dict(adapter.endpoint(parameters).headers))

    assert read.prompt.tools == prompt.tools
    assert values.system_of(read.prompt) == values.system_of(prompt)
    assert values.messages_of(read.prompt) == values.messages_of(prompt)
    assert read.plan == plan
    assert read.parameters == parameters


@every_adapter
@given(values.prompts, values.parameters)
def test_the_same_values_give_the_same_bytes(adapter: Adapter, prompt: Prompt, parameters: Parameters) -> None:
    body = adapter.write_request(prompt, Plan(), parameters)
    read = adapter.read_request(body, dict(adapter.endpoint(parameters).headers))
    assert adapter.write_request(prompt, Plan(), parameters) == body
    assert adapter.write_request(read.prompt, Plan(), read.parameters) == body


@every_adapter
@given(st.data())
def test_a_mark_changes_no_cacheable_byte_and_its_absence_gives_the_unmarked_body(
    adapter: Adapter, data: st.DataObject
) -> None:
    prompt, parameters = data.draw(values.prompts), data.draw(values.parameters)
    plan = data.draw(values.plans(len(values.pieces_of(adapter, prompt))))
    marked = adapter.write_request(prompt, plan, parameters)
    read = adapter.read_request(marked, dict(adapter.endpoint(parameters).headers))

    assert values.pieces_of(adapter, read.prompt) == tuple(
        type(piece)(
            {"tools": "tools", "system": "system", "messages": "history"}[piece.place],
            piece.place,
            again.stability,
            piece.data,
            piece.markable,
            piece.role,
        )
        for piece, again in zip(values.pieces_of(adapter, prompt), values.pieces_of(adapter, read.prompt), strict=True)
    )
    assert adapter.write_request(read.prompt, Plan(), parameters) == adapter.write_request(prompt, Plan(), parameters)


@every_adapter
@given(st.data())
def test_a_scroll_that_grew_gives_the_bytes_of_a_request_written_at_once(adapter: Adapter, data: st.DataObject) -> None:
    prompt, parameters = data.draw(values.prompts), data.draw(values.parameters)
    pieces = values.pieces_of(adapter, prompt)
    plan = data.draw(values.plans(len(pieces)))
    scroll = Scroll(adapter, count=len)
    for piece in pieces:
        scroll.extend([piece])
        scroll.render(adapter.opening(parameters))

    assert scroll.render(adapter.opening(parameters), plan.marks) == adapter.write_request(prompt, plan, parameters)


@every_adapter
@given(values.replies)
def test_a_whole_reply_read_back_is_the_reply(adapter: Adapter, reply: Reply) -> None:
    assert adapter.read_reply(adapter.write_reply(reply)) == reply


@every_adapter
@given(st.data())
def test_a_stream_cut_anywhere_folds_to_the_reply(adapter: Adapter, data: st.DataObject) -> None:
    reply = data.draw(values.replies)
    chunks = data.draw(values.chunks(b"".join(adapter.write_stream(reply))))
    deltas = read_all(adapter, chunks)

    assert isinstance(deltas[0], ReplyStarted)
    assert deltas[-1] == ReplyFinished(reply)
    assert deltas == read_all(adapter, list(adapter.write_stream(reply)))


@every_adapter
@given(st.data())
def test_a_stream_that_is_cut_off_leaves_what_had_arrived(adapter: Adapter, data: st.DataObject) -> None:
    reply = data.draw(values.replies)
    events = list(adapter.write_stream(reply))
    kept = data.draw(st.integers(0, len(events) - 1))
    reader = adapter.stream_reader()
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
    assert all(block.text.strip() for block in partial.content if isinstance(block, Text)) or partial == reply


@every_adapter
@given(st.binary(max_size=200))
def test_bytes_that_are_no_request_are_refused_in_one_line(adapter: Adapter, body: bytes) -> None:
    with pytest.raises(ProviderError) as refused:
        adapter.read_request(body)
    assert refused.value.kind == "invalid_request"
    assert len(str(refused.value).splitlines()) == 1


@every_adapter
@given(st.binary(max_size=200), st.integers(100, 999))
def test_every_answer_that_is_an_error_has_one_of_the_known_kinds(adapter: Adapter, body: bytes, status: int) -> None:
    error = adapter.read_error(status, {}, body)
    assert error.kind in get_args(FailureKind)
    assert error.status == status
    assert len(str(error).splitlines()) == 1


@every_adapter
@pytest.mark.parametrize("kind", REPORTED)
def test_a_failure_read_back_is_of_the_kind_that_was_written(adapter: Adapter, kind: FailureKind) -> None:
    status, body = adapter.write_error(kind, "it went wrong")
    error = adapter.read_error(status, {}, body)
    assert error.kind == kind
    assert str(error) == "it went wrong"


@every_adapter
def test_an_adapter_is_found_by_its_name(adapter: Adapter) -> None:
    assert adapter_for(adapter.name) is adapter


@every_adapter
def test_the_key_travels_in_the_credentials_and_nowhere_else(adapter: Adapter) -> None:
    endpoint = adapter.endpoint(Parameters("model", 1))
    assert any("key-1234" in value for value in adapter.credentials("key-1234").values())
    assert not {name for name, _ in endpoint.headers} & set(adapter.credentials("key-1234"))
    assert endpoint.path.startswith("/")


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="provider 'nobody' cannot be spoken to; these can: anthropic"):
        adapter_for("nobody")
