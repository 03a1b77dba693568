"""What holds of every plan."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.canonical.pieces import Piece
from holdfast.canonical.prompt import Stability
from holdfast.canonical.scroll import Scroll
from holdfast.catalog.rows import CacheRules
from holdfast.planning.marks import plan_marks
from holdfast.providers.registry import adapter_for

heads = st.lists(
    st.builds(
        Piece,
        layer=st.just("head"),
        place=st.sampled_from(["tools", "system"]),
        stability=st.sampled_from([Stability.FROZEN, Stability.EPOCH]),
        data=st.just(b"{}"),
        markable=st.booleans(),
    ),
    max_size=5,
).map(lambda pieces: sorted(pieces, key=lambda piece: ["tools", "system"].index(piece.place)))
tails = st.lists(
    st.builds(
        Piece,
        layer=st.just("tail"),
        place=st.just("messages"),
        stability=st.sampled_from([Stability.GROWING, Stability.VOLATILE]),
        data=st.just(b"{}"),
        markable=st.booleans(),
        role=st.sampled_from(["user", "assistant"]),
        ephemeral=st.booleans(),
    ),
    max_size=30,
)


@given(heads, tails, st.integers(1, 4))
def test_marks_are_few_and_only_on_blocks_that_take_them(head: list[Piece], tail: list[Piece], most: int) -> None:
    scroll = Scroll(adapter_for("anthropic"), len)
    scroll.extend([*head, *tail])
    marks = plan_marks(scroll, CacheRules(kind="marks", tokens_min=0, marks_max=most)).marks
    positions = [mark.piece for mark in marks]
    assert len(positions) <= most
    assert positions == sorted(set(positions))
    for position in positions:
        piece = scroll.pieces[position]
        assert piece.markable
        assert not piece.ephemeral
        assert piece.stability < Stability.VOLATILE
