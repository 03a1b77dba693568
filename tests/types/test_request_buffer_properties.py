"""A request buffer holds the same bytes however it was filled, and breakpoints never change them."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.types.blocks import Role
from holdfast.types.json_encoding import extend_digest
from holdfast.types.prompt import Breakpoint, PromptSection, Stability, Ttl
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer

REQUEST_HEAD = b'{"model":"m"'
ENDS: dict[PromptSection, bytes] = {"tools": b"]", "system": b"]", "messages": b"]}]"}


class JsonEncoder:
    """Three arrays, the last one of messages that contain blocks."""

    def separator(self, before: EncodedBlock | None, block: EncodedBlock) -> bytes:
        if before is None or before.section != block.section:
            end = ENDS[before.section] if before else b""
            return end + b',"' + block.section.encode() + b'":[' + self._message_head(block)
        if block.section == "messages" and before.role != block.role:
            return b"]}," + self._message_head(block)
        return b","

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return ENDS[last.section] + b"}" if last else b"}"

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return b',"mark":"' + ttl.encode() + b'"'

    def _message_head(self, block: EncodedBlock) -> bytes:
        return f'{{"role":"{block.role}","content":['.encode() if block.section == "messages" else b""


def make_block(number: int, place: PromptSection, *, role: Role | None = None, ephemeral: bool = False) -> EncodedBlock:
    stability = Stability.GROWING if place == "messages" else Stability.FROZEN
    data = json.dumps({"text": f"{place} {number} é"}).encode()
    return EncodedBlock(f"{place}-layer", place, stability, data, True, role, ephemeral)


@st.composite
def prompts(draw: st.DrawFn) -> list[EncodedBlock]:
    tools, system = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    roles: list[Role] = draw(st.lists(st.sampled_from(["user", "user", "assistant"]), max_size=6))
    message_blocks = [make_block(number, "messages", role=role) for number, role in enumerate(roles)]
    return (
        [make_block(n, "tools") for n in range(tools)]
        + [make_block(n, "system") for n in range(system)]
        + message_blocks
    )


def fill_buffer(blocks: list[EncodedBlock]) -> RequestBuffer:
    buffer = RequestBuffer(JsonEncoder(), len)
    buffer.extend(blocks)
    return buffer


def state(buffer: RequestBuffer) -> tuple[object, ...]:
    return (
        buffer.cacheable_bytes(),
        list(buffer.blocks),
        list(buffer.digests),
        list(buffer.tokens),
        buffer.tokens_total,
        buffer.first_ephemeral,
        buffer.stable_prefix_length,
    )


def blocks_of(body: bytes) -> list[dict[str, Any]]:
    """All blocks of a body in wire order."""
    request = json.loads(body)
    message_blocks = [block for message in request.get("messages", ()) for block in message["content"]]
    return [*request.get("tools", ()), *request.get("system", ()), *message_blocks]


@settings(max_examples=60, deadline=None)
@given(prompts())
def test_without_breakpoints_a_body_is_its_head_the_cacheable_bytes_and_a_suffix(blocks: list[EncodedBlock]) -> None:
    buffer = fill_buffer(blocks)
    end = JsonEncoder().suffix(blocks[-1] if blocks else None)
    body = buffer.render(REQUEST_HEAD)
    assert body == REQUEST_HEAD + buffer.cacheable_bytes() + end
    assert [json.dumps(block).encode() for block in blocks_of(body)] == [encoded.data for encoded in blocks]


class PlainEncoder:
    """Any bytes between the blocks and after them."""

    def __init__(self, between: bytes, end: bytes) -> None:
        self._between = between
        self._end = end

    def separator(self, before: EncodedBlock | None, block: EncodedBlock) -> bytes:
        return self._between

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return self._end

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return b"|" + ttl.encode()


@settings(max_examples=60, deadline=None)
@given(prompts(), st.binary(max_size=3), st.binary(max_size=3))
def test_a_buffer_follows_any_encoder(blocks: list[EncodedBlock], between: bytes, end: bytes) -> None:
    buffer = RequestBuffer(PlainEncoder(between, end), len)
    buffer.extend(blocks)
    assert buffer.cacheable_bytes() == b"".join(between + block.data for block in blocks)
    assert buffer.render(b"<") == b"<" + buffer.cacheable_bytes() + end


@settings(max_examples=60, deadline=None)
@given(prompts(), st.lists(st.integers(0, 12), max_size=4))
def test_a_buffer_is_the_same_in_whatever_portions_it_was_filled(blocks: list[EncodedBlock], cuts: list[int]) -> None:
    buffer = RequestBuffer(JsonEncoder(), len)
    edges = [0, *sorted(min(edge, len(blocks)) for edge in cuts), len(blocks)]
    for start, stop in pairwise(edges):
        buffer.extend(blocks[start:stop])
    assert state(buffer) == state(fill_buffer(blocks))


@settings(max_examples=60, deadline=None)
@given(prompts(), st.integers(0, 12))
def test_truncated_blocks_can_be_added_again(blocks: list[EncodedBlock], keep: int) -> None:
    buffer = fill_buffer(blocks)
    before = state(buffer)
    buffer.truncate(keep)
    assert state(buffer) == state(fill_buffer(blocks[:keep]))
    buffer.extend(blocks[keep:])
    assert state(buffer) == before


@settings(max_examples=60, deadline=None)
@given(prompts(), st.data())
def test_breakpoints_become_the_last_member_of_their_blocks_and_nothing_else_changes(
    blocks: list[EncodedBlock], data: st.DataObject
) -> None:
    buffer = fill_buffer(blocks)
    before = state(buffer)
    indexes = data.draw(st.lists(st.sampled_from(range(len(blocks))), unique=True, max_size=4)) if blocks else []
    ttls: list[Ttl] = [data.draw(st.sampled_from(["5m", "1h"])) for _ in indexes]
    points = [Breakpoint(position, ttl) for position, ttl in zip(indexes, ttls, strict=True)]
    body = buffer.render(REQUEST_HEAD, points)
    for index, block in enumerate(blocks_of(body)):
        expected = {"text": json.loads(blocks[index].data)["text"]}
        if index in indexes:
            expected["mark"] = ttls[indexes.index(index)]
        assert list(block.items()) == list(expected.items())
    assert state(buffer) == before
    assert buffer.render(REQUEST_HEAD) == REQUEST_HEAD + buffer.cacheable_bytes() + JsonEncoder().suffix(
        blocks[-1] if blocks else None
    )


def test_digests_name_the_layer_and_the_byte_range_including_the_separator() -> None:
    buffer = fill_buffer([make_block(0, "tools"), make_block(0, "messages", role="user")])
    first = b',"tools":[' + buffer.blocks[0].data
    second = b'],"messages":[{"role":"user","content":[' + buffer.blocks[1].data
    assert buffer.cacheable_bytes() == first + second
    left, two = buffer.digests
    assert (left.layer, left.start, left.end) == ("tools-layer", 0, len(first))
    assert (two.layer, two.start, two.end) == ("messages-layer", len(first), len(first + second))
    assert left.digest == extend_digest("", first)
    assert two.digest == extend_digest(left.digest, second)


def test_tokens_are_counted_for_each_block_alone() -> None:
    buffer = fill_buffer([make_block(0, "tools"), make_block(10, "tools")])
    sizes = [len(block.data) for block in buffer.blocks]
    assert buffer.tokens == sizes
    assert buffer.tokens_total == sum(sizes)


def test_no_block_is_counted_twice() -> None:
    counted_data: list[bytes] = []

    def count(data: bytes) -> int:
        counted_data.append(data)
        return 1

    buffer = RequestBuffer(JsonEncoder(), count)
    buffer.extend([make_block(0, "tools")])
    buffer.extend([make_block(0, "system")])
    buffer.render(REQUEST_HEAD, [Breakpoint(0)])
    assert len(counted_data) == 2


def test_the_stable_prefix_ends_with_the_last_layer_of_the_epoch() -> None:
    prefix_blocks = [make_block(0, "tools"), make_block(0, "system")]
    buffer = fill_buffer([*prefix_blocks, make_block(0, "messages", role="user")])
    assert buffer.stable_prefix_length == len(fill_buffer(prefix_blocks).cacheable_bytes())
    assert buffer.stable_prefix_length == buffer.digests[1].end


def test_without_stable_layers_the_stable_prefix_is_empty() -> None:
    assert fill_buffer([make_block(0, "messages", role="user")]).stable_prefix_length == 0
    assert fill_buffer([]).stable_prefix_length == 0


@pytest.mark.parametrize(("keep", "expected"), [(3, 2), (2, None), (0, None)])
def test_the_first_ephemeral_block_is_known_until_it_is_truncated(keep: int, expected: int | None) -> None:
    message_blocks = [make_block(n, "messages", role="user", ephemeral=n >= 2) for n in range(4)]
    buffer = fill_buffer(message_blocks)
    assert buffer.first_ephemeral == 2
    buffer.truncate(keep)
    assert buffer.first_ephemeral == expected


def test_a_breakpoint_beyond_the_end_leaves_the_buffer_unchanged_and_able_to_grow() -> None:
    buffer = fill_buffer([make_block(0, "tools")])
    before = state(buffer)
    with pytest.raises(IndexError) as error:
        buffer.render(REQUEST_HEAD, [Breakpoint(0), Breakpoint(5)])
    assert state(buffer) == before
    buffer.extend([make_block(1, "tools")])
    assert len(buffer.blocks) == len(buffer.digests) == len(buffer.tokens) == 2
    assert error.value is not None
