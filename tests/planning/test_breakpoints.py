"""Placement of cache breakpoints, and what writing at one costs."""

import datetime
from decimal import Decimal

import msgspec

from holdfast.catalog.schema import CacheRules, Price
from holdfast.planning.breakpoints import place_breakpoints
from holdfast.planning.plan import cache_write_rate
from holdfast.types.prompt import Stability, Ttl
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer

RULES = CacheRules(kind="explicit", tokens_min=512, breakpoints_max=4)


class Lines:
    """An encoding with one block per line, for counting blocks only."""

    def separator(self, before: EncodedBlock | None, block: EncodedBlock) -> bytes:
        return b"\n"

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return b"\n"

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return b"*"


def tool_block() -> EncodedBlock:
    return EncodedBlock("tools", "tools", Stability.FROZEN, b"{}", accepts_breakpoint=True)


def system_block(stability: Stability = Stability.EPOCH, *, accepts_breakpoint: bool = True) -> EncodedBlock:
    return EncodedBlock("preset", "system", stability, b"{}", accepts_breakpoint=accepts_breakpoint)


def message_block(role: str = "user", *, accepts_breakpoint: bool = True) -> EncodedBlock:
    return msgspec.convert(
        {
            "layer": "history",
            "section": "messages",
            "stability": 2,
            "data": "e30=",
            "accepts_breakpoint": accepts_breakpoint,
            "role": role,
        },
        EncodedBlock,
    )


def injected_block(*, ephemeral: bool = False) -> EncodedBlock:
    return EncodedBlock(
        "memory", "messages", Stability.VOLATILE, b"{}", accepts_breakpoint=True, role="user", ephemeral=ephemeral
    )


def breakpoint_indexes(*blocks: EncodedBlock, rules: CacheRules = RULES, seed: bool = False) -> list[int]:
    request_buffer = RequestBuffer(Lines(), len)
    request_buffer.extend(blocks)
    plan = place_breakpoints(request_buffer, rules, profile="seed" if seed else "default")
    assert all(breakpoint.ttl == "5m" and breakpoint.reason for breakpoint in plan.breakpoints)
    return [breakpoint.block_index for breakpoint in plan.breakpoints]


def test_the_last_tool_the_stable_system_prompt_and_the_newest_message_get_a_breakpoint() -> None:
    assert breakpoint_indexes(
        tool_block(),
        tool_block(),
        system_block(),
        system_block(),
        message_block(),
        message_block("assistant"),
        message_block(),
    ) == [1, 3, 6]


def test_every_breakpoint_has_a_reason() -> None:
    request_buffer = RequestBuffer(Lines(), len)
    request_buffer.extend(
        [tool_block(), system_block(), message_block(), injected_block(ephemeral=True), message_block()]
    )
    assert [breakpoint.reason for breakpoint in place_breakpoints(request_buffer, RULES).breakpoints] == [
        "end of the tools",
        "end of the stable system prompt",
        "before ephemeral text",
        "end of the conversation so far",
    ]


def test_without_tools_the_seed_profile_sets_one_breakpoint_on_the_system_prompt() -> None:
    assert breakpoint_indexes(system_block(), system_block(), message_block(), seed=True) == [1]


def test_the_seed_profile_sets_no_breakpoint_in_the_history() -> None:
    assert breakpoint_indexes(
        tool_block(), system_block(), message_block(), message_block("assistant"), message_block(), seed=True
    ) == [0, 1]


def test_a_volatile_system_block_gets_no_breakpoint_but_the_stable_one_before_it_does() -> None:
    assert breakpoint_indexes(tool_block(), system_block(), system_block(Stability.VOLATILE), message_block()) == [
        0,
        1,
        3,
    ]


def test_a_single_stable_system_block_gets_the_breakpoint() -> None:
    assert breakpoint_indexes(system_block(), seed=True) == [0]


def test_volatile_text_after_tool_results_gets_no_breakpoint() -> None:
    assert breakpoint_indexes(
        system_block(), message_block(), message_block("assistant"), message_block(), injected_block()
    ) == [0, 3]


def test_a_block_that_accepts_no_breakpoint_is_skipped() -> None:
    assert breakpoint_indexes(
        system_block(), message_block(), message_block("assistant", accepts_breakpoint=False)
    ) == [0, 1]


def test_ephemeral_text_has_a_breakpoint_before_it_and_none_on_it() -> None:
    assert breakpoint_indexes(tool_block(), system_block(), message_block(), injected_block(ephemeral=True)) == [
        0,
        1,
        2,
    ]


def test_ephemeral_text_inside_a_tool_loop_keeps_the_breakpoint_before_it() -> None:
    blocks = [
        tool_block(),
        system_block(),
        message_block(),
        injected_block(ephemeral=True),
        message_block("assistant"),
        message_block(),
    ]
    assert breakpoint_indexes(*blocks) == [0, 1, 2, 5]


def test_a_model_with_fewer_breakpoints_keeps_the_deepest_ones() -> None:
    rules = msgspec.structs.replace(RULES, breakpoints_max=2)
    assert breakpoint_indexes(
        tool_block(), system_block(), message_block(), message_block("assistant"), message_block(), rules=rules
    ) == [1, 4]


def test_a_model_without_breakpoints_gets_none() -> None:
    rules = CacheRules(kind="implicit", tokens_min=1024)
    assert breakpoint_indexes(tool_block(), system_block(), message_block(), rules=rules) == []


def test_an_empty_prompt_has_no_breakpoints() -> None:
    assert breakpoint_indexes() == []


BREAKPOINTS = CacheRules(kind="hybrid", tokens_min=1024, breakpoints_max=4)


def test_a_hybrid_cache_gets_a_breakpoint_only_on_the_stable_prompt() -> None:
    request_buffer = RequestBuffer(Lines(), len)
    request_buffer.extend([system_block(), message_block(), message_block("assistant"), message_block()])
    plan = place_breakpoints(request_buffer, BREAKPOINTS)
    assert [(breakpoint.block_index, breakpoint.ttl) for breakpoint in plan.breakpoints] == [(0, "30m")]


def test_a_hybrid_cache_still_gets_a_breakpoint_before_ephemeral_text() -> None:
    request_buffer = RequestBuffer(Lines(), len)
    request_buffer.extend(
        [system_block(), message_block(), message_block("assistant"), message_block(), injected_block(ephemeral=True)]
    )
    assert [breakpoint.block_index for breakpoint in place_breakpoints(request_buffer, BREAKPOINTS).breakpoints] == [
        0,
        3,
    ]


def test_an_implicit_cache_gets_no_breakpoints() -> None:
    request_buffer = RequestBuffer(Lines(), len)
    request_buffer.extend([system_block(), message_block()])
    assert not place_breakpoints(request_buffer, CacheRules(kind="implicit", tokens_min=1024)).breakpoints


def test_writing_for_12_hours_costs_its_own_rate_where_that_is_known() -> None:
    one = Decimal(1)
    price = Price(datetime.date(2026, 1, 1), one, one, one, one, one, cache_write_other=Decimal(2))
    known = msgspec.structs.replace(price, cache_write_12h=Decimal(4))
    assert [cache_write_rate("30m", known), cache_write_rate("12h", known), cache_write_rate("12h", price)] == [2, 4, 2]
