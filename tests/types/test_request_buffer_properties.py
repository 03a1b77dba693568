"""A scroll holds the same bytes however it was written, and marks never touch them."""

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

OPENING = b'{"model":"m"'
ENDS: dict[PromptSection, bytes] = {"tools": b"]", "system": b"]", "messages": b"]}]"}


class JsonSpelling:
    """Three arrays, the last one of messages that hold blocks."""

    def separator(self, before: EncodedBlock | None, piece: EncodedBlock) -> bytes:
        if before is None or before.section != piece.section:
            end = ENDS[before.section] if before else b""
            return end + b',"' + piece.section.encode() + b'":[' + self._message_head(piece)
        if piece.section == "messages" and before.role != piece.role:
            return b"]}," + self._message_head(piece)
        return b","

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return ENDS[last.section] + b"}" if last else b"}"

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return b',"mark":"' + ttl.encode() + b'"'

    def _message_head(self, piece: EncodedBlock) -> bytes:
        return f'{{"role":"{piece.role}","content":['.encode() if piece.section == "messages" else b""


def piece(number: int, place: PromptSection, *, role: Role | None = None, ephemeral: bool = False) -> EncodedBlock:
    stability = Stability.GROWING if place == "messages" else Stability.FROZEN
    data = json.dumps({"text": f"{place} {number} é"}).encode()
    return EncodedBlock(f"{place}-layer", place, stability, data, True, role, ephemeral)


@st.composite
def prompts(draw: st.DrawFn) -> list[EncodedBlock]:
    tools, system = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    roles: list[Role] = draw(st.lists(st.sampled_from(["user", "user", "assistant"]), max_size=6))
    spoken = [piece(number, "messages", role=role) for number, role in enumerate(roles)]
    return [piece(n, "tools") for n in range(tools)] + [piece(n, "system") for n in range(system)] + spoken


def written(pieces: list[EncodedBlock]) -> RequestBuffer:
    scroll = RequestBuffer(JsonSpelling(), len)
    scroll.extend(pieces)
    return scroll


def state(scroll: RequestBuffer) -> tuple[object, ...]:
    return (
        scroll.cacheable_bytes(),
        list(scroll.blocks),
        list(scroll.digests),
        list(scroll.tokens),
        scroll.tokens_total,
        scroll.first_ephemeral,
        scroll.stable_prefix_length,
    )


def blocks_of(body: bytes) -> list[dict[str, Any]]:
    """All blocks of a body in wire order."""
    request = json.loads(body)
    spoken = [block for message in request.get("messages", ()) for block in message["content"]]
    return [*request.get("tools", ()), *request.get("system", ()), *spoken]


@settings(max_examples=60, deadline=None)
@given(prompts())
def test_without_marks_a_body_is_its_opening_the_cacheable_bytes_and_an_end(pieces: list[EncodedBlock]) -> None:
    scroll = written(pieces)
    end = JsonSpelling().suffix(pieces[-1] if pieces else None)
    body = scroll.render(OPENING)
    assert body == OPENING + scroll.cacheable_bytes() + end
    assert [json.dumps(block).encode() for block in blocks_of(body)] == [piece.data for piece in pieces]


class PlainSpelling:
    """Any bytes between the pieces and behind them."""

    def __init__(self, between: bytes, end: bytes) -> None:
        self._between = between
        self._end = end

    def separator(self, before: EncodedBlock | None, piece: EncodedBlock) -> bytes:
        return self._between

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return self._end

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return b"|" + ttl.encode()


@settings(max_examples=60, deadline=None)
@given(prompts(), st.binary(max_size=3), st.binary(max_size=3))
def test_a_scroll_keeps_to_any_spelling(pieces: list[EncodedBlock], between: bytes, end: bytes) -> None:
    scroll = RequestBuffer(PlainSpelling(between, end), len)
    scroll.extend(pieces)
    assert scroll.cacheable_bytes() == b"".join(between + one.data for one in pieces)
    assert scroll.render(b"<") == b"<" + scroll.cacheable_bytes() + end


@settings(max_examples=60, deadline=None)
@given(prompts(), st.lists(st.integers(0, 12), max_size=4))
def test_a_scroll_is_the_same_in_whatever_portions_it_was_written(pieces: list[EncodedBlock], cuts: list[int]) -> None:
    scroll = RequestBuffer(JsonSpelling(), len)
    edges = [0, *sorted(min(cut, len(pieces)) for cut in cuts), len(pieces)]
    for start, stop in pairwise(edges):
        scroll.extend(pieces[start:stop])
    assert state(scroll) == state(written(pieces))


@settings(max_examples=60, deadline=None)
@given(prompts(), st.integers(0, 12))
def test_what_was_cut_can_be_written_again(pieces: list[EncodedBlock], keep: int) -> None:
    scroll = written(pieces)
    before = state(scroll)
    scroll.truncate(keep)
    assert state(scroll) == state(written(pieces[:keep]))
    scroll.extend(pieces[keep:])
    assert state(scroll) == before


@settings(max_examples=60, deadline=None)
@given(prompts(), st.data())
def test_marks_end_up_as_the_last_member_of_their_blocks_and_nowhere_else(
    pieces: list[EncodedBlock], data: st.DataObject
) -> None:
    scroll = written(pieces)
    before = state(scroll)
    marked = data.draw(st.lists(st.sampled_from(range(len(pieces))), unique=True, max_size=4)) if pieces else []
    ttls: list[Ttl] = [data.draw(st.sampled_from(["5m", "1h"])) for _ in marked]
    body = scroll.render(OPENING, [Breakpoint(piece, ttl) for piece, ttl in zip(marked, ttls, strict=True)])
    for index, block in enumerate(blocks_of(body)):
        expected = {"text": json.loads(pieces[index].data)["text"]}
        if index in marked:
            expected["mark"] = ttls[marked.index(index)]
        assert list(block.items()) == list(expected.items())
    assert state(scroll) == before
    assert scroll.render(OPENING) == OPENING + scroll.cacheable_bytes() + JsonSpelling().suffix(
        pieces[-1] if pieces else None
    )


def test_links_name_the_layer_and_the_bytes_with_what_leads_to_them() -> None:
    scroll = written([piece(0, "tools"), piece(0, "messages", role="user")])
    first = b',"tools":[' + scroll.blocks[0].data
    second = b'],"messages":[{"role":"user","content":[' + scroll.blocks[1].data
    assert scroll.cacheable_bytes() == first + second
    one, two = scroll.digests
    assert (one.layer, one.start, one.end) == ("tools-layer", 0, len(first))
    assert (two.layer, two.start, two.end) == ("messages-layer", len(first), len(first + second))
    assert one.digest == extend_digest("", first)
    assert two.digest == extend_digest(one.digest, second)


def test_tokens_are_counted_for_each_piece_alone() -> None:
    scroll = written([piece(0, "tools"), piece(10, "tools")])
    sizes = [len(one.data) for one in scroll.blocks]
    assert scroll.tokens == sizes
    assert scroll.tokens_total == sum(sizes)


def test_nothing_that_was_written_is_counted_again() -> None:
    counted: list[bytes] = []

    def count(data: bytes) -> int:
        counted.append(data)
        return 1

    scroll = RequestBuffer(JsonSpelling(), count)
    scroll.extend([piece(0, "tools")])
    scroll.extend([piece(0, "system")])
    scroll.render(OPENING, [Breakpoint(0)])
    assert len(counted) == 2


def test_the_stable_prefix_ends_with_the_last_layer_of_the_epoch() -> None:
    head = [piece(0, "tools"), piece(0, "system")]
    scroll = written([*head, piece(0, "messages", role="user")])
    assert scroll.stable_prefix_length == len(written(head).cacheable_bytes())
    assert scroll.stable_prefix_length == scroll.digests[1].end


def test_without_stable_layers_the_stable_prefix_is_empty() -> None:
    assert written([piece(0, "messages", role="user")]).stable_prefix_length == 0
    assert written([]).stable_prefix_length == 0


@pytest.mark.parametrize(("keep", "expected"), [(3, 2), (2, None), (0, None)])
def test_the_first_ephemeral_piece_is_known_until_it_is_cut(keep: int, expected: int | None) -> None:
    spoken = [piece(n, "messages", role="user", ephemeral=n >= 2) for n in range(4)]
    scroll = written(spoken)
    assert scroll.first_ephemeral == 2
    scroll.truncate(keep)
    assert scroll.first_ephemeral == expected


def test_a_mark_beyond_the_end_leaves_the_scroll_as_it_was_and_able_to_grow() -> None:
    scroll = written([piece(0, "tools")])
    before = state(scroll)
    with pytest.raises(IndexError) as kept_alive:
        scroll.render(OPENING, [Breakpoint(0), Breakpoint(5)])
    assert state(scroll) == before
    scroll.extend([piece(1, "tools")])
    assert len(scroll.blocks) == len(scroll.digests) == len(scroll.tokens) == 2
    assert kept_alive.value is not None
