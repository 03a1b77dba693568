"""Properties of every placement of breakpoints."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.catalog.schema import CacheRules
from holdfast.planning.breakpoints import place_breakpoints
from holdfast.providers.registry import get_adapter
from holdfast.types.prompt import Stability
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer

prefixes = st.lists(
    st.builds(
        EncodedBlock,
        layer=st.just("head"),
        section=st.sampled_from(["tools", "system"]),
        stability=st.sampled_from([Stability.FROZEN, Stability.EPOCH]),
        data=st.just(b"{}"),
        accepts_breakpoint=st.booleans(),
    ),
    max_size=5,
).map(lambda blocks: sorted(blocks, key=lambda block: ["tools", "system"].index(block.section)))
conversations = st.lists(
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


@given(prefixes, conversations, st.integers(1, 4))
def test_breakpoints_are_few_and_only_on_blocks_that_accept_them(
    prefix: list[EncodedBlock], conversation: list[EncodedBlock], breakpoints_max: int
) -> None:
    request_buffer = RequestBuffer(get_adapter("anthropic"), len)
    request_buffer.extend([*prefix, *conversation])
    breakpoints = place_breakpoints(
        request_buffer, CacheRules(kind="explicit", tokens_min=0, breakpoints_max=breakpoints_max)
    ).breakpoints
    positions = [breakpoint.block_index for breakpoint in breakpoints]
    assert len(positions) <= breakpoints_max
    assert positions == sorted(set(positions))
    for position in positions:
        block = request_buffer.blocks[position]
        assert block.accepts_breakpoint
        assert not block.ephemeral
        assert block.stability < Stability.VOLATILE
