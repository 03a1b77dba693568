"""Limits on what a provider may stream."""

import pytest

from holdfast.errors import ProviderError
from holdfast.providers.anthropic.stream import AnthropicReplyFold
from holdfast.providers.sse import EventStreamDecoder, SseParser


def test_an_event_over_the_limit_is_refused() -> None:
    reader = SseParser(event_bytes_max=20)
    reader.feed(b"data: " + b"x" * 14 + b"\n\n")
    assert [len(sent.data) for sent in reader.events()] == [14]
    for stream in (b"data: " + b"x" * 15, b"data: " + b"x" * 15 + b"\n\n", b"data: 1234\n" * 3):
        reader = SseParser(event_bytes_max=20)
        reader.feed(stream)
        with pytest.raises(ProviderError, match="an event of more than 20 bytes") as raised:
            list(reader.events())
        assert raised.value.kind == "server_error"


def test_the_limit_applies_to_each_event_and_not_to_their_sum() -> None:
    reader = SseParser(event_bytes_max=20)
    reader.feed(b"event: abc\ndata: 123\n\n" * 5 + b"\n\n: 123456789012345678\n\n")
    assert len(list(reader.events())) == 5


def test_a_reply_over_the_limit_is_refused() -> None:
    reader = EventStreamDecoder(AnthropicReplyFold(), reply_bytes_max=10)
    list(reader.feed(b": 23456789"))
    with pytest.raises(ProviderError, match="more than 10 bytes in one response") as raised:
        reader.feed(b"\n")
    assert raised.value.kind == "server_error"


def test_an_event_within_a_reply_has_a_limit_too() -> None:
    with pytest.raises(ProviderError, match="an event of more than 5 bytes"):
        list(EventStreamDecoder(AnthropicReplyFold(), event_bytes_max=5).feed(b"data: 1"))


def test_an_event_name_that_is_not_utf8_is_unknown() -> None:
    assert list(EventStreamDecoder(AnthropicReplyFold()).feed(b"event: \xff\ndata: {}\n\n")) == []
