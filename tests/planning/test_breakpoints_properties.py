"""What holds of every plan."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog.schema import CacheRules
from holdfast.planning.breakpoints import place_breakpoints
from holdfast.providers.registry import get_adapter
from holdfast.types.prompt import Stability
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer

heads = st.lists(
    st.builds(
        EncodedBlock,
        layer=st.just("head"),
        section=st.sampled_from(["tools", "system"]),
        stability=st.sampled_from([Stability.FROZEN, Stability.EPOCH]),
        data=st.just(b"{}"),
        accepts_breakpoint=st.booleans(),
    ),
    max_size=5,
).map(lambda pieces: sorted(pieces, key=lambda piece: ["tools", "system"].index(piece.section)))
tails = st.lists(
    st.builds(
        EncodedBlock,
        layer=st.just("tail"),
        section=st.just("messages"),
        stability=st.sampled_from([Stability.GROWING, Stability.VOLATILE]),
        data=st.just(b"{}"),
        accepts_breakpoint=st.booleans(),
        role=st.sampled_from(["user", "assistant"]),
        ephemeral=st.booleans(),
    ),
    max_size=30,
)


@given(heads, tails, st.integers(1, 4))
def test_marks_are_few_and_only_on_blocks_that_take_them(
    head: list[EncodedBlock], tail: list[EncodedBlock], most: int
) -> None:
    scroll = RequestBuffer(get_adapter("anthropic"), len)
    scroll.extend([*head, *tail])
    marks = place_breakpoints(scroll, CacheRules(kind="explicit", tokens_min=0, breakpoints_max=most)).breakpoints
    positions = [mark.block_index for mark in marks]
    assert len(positions) <= most
    assert positions == sorted(set(positions))
    for position in positions:
        piece = scroll.blocks[position]
        assert piece.accepts_breakpoint
        assert not piece.ephemeral
        assert piece.stability < Stability.VOLATILE
