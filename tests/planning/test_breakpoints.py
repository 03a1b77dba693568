"""Where the marks go, and where they never go."""

import msgspec

from holdfast.catalog.schema import CacheRules
from holdfast.planning.breakpoints import place_breakpoints
from holdfast.types.prompt import Stability, Ttl
from holdfast.types.request_buffer import EncodedBlock, RequestBuffer

RULES = CacheRules(kind="explicit", tokens_min=512, breakpoints_max=4)


class Lines:
    """A spelling with one piece a line, for counting pieces and nothing else."""

    def separator(self, before: EncodedBlock | None, piece: EncodedBlock) -> bytes:
        return b"\n"

    def suffix(self, last: EncodedBlock | None) -> bytes:
        return b"\n"

    def encode_breakpoint(self, ttl: Ttl) -> bytes:
        return b"*"


def tool() -> EncodedBlock:
    return EncodedBlock("tools", "tools", Stability.FROZEN, b"{}", accepts_breakpoint=True)


def system(stability: Stability = Stability.EPOCH, *, markable: bool = True) -> EncodedBlock:
    return EncodedBlock("preset", "system", stability, b"{}", accepts_breakpoint=markable)


def said(role: str = "user", *, markable: bool = True) -> EncodedBlock:
    return msgspec.convert(
        {
            "layer": "history",
            "section": "messages",
            "stability": 2,
            "data": "e30=",
            "accepts_breakpoint": markable,
            "role": role,
        },
        EncodedBlock,
    )


def injected(*, ephemeral: bool = False) -> EncodedBlock:
    return EncodedBlock(
        "memory", "messages", Stability.VOLATILE, b"{}", accepts_breakpoint=True, role="user", ephemeral=ephemeral
    )


def marked(*pieces: EncodedBlock, rules: CacheRules = RULES, seed: bool = False) -> list[int]:
    scroll = RequestBuffer(Lines(), len)
    scroll.extend(pieces)
    plan = place_breakpoints(scroll, rules, profile="seed" if seed else "default")
    assert all(mark.ttl == "5m" and mark.reason for mark in plan.breakpoints)
    return [mark.block_index for mark in plan.breakpoints]


def test_the_last_tool_the_stable_system_prompt_and_the_newest_message_are_marked() -> None:
    assert marked(tool(), tool(), system(), system(), said(), said("assistant"), said()) == [1, 3, 6]


def test_every_mark_says_why_it_is_there() -> None:
    scroll = RequestBuffer(Lines(), len)
    scroll.extend([tool(), system(), said(), injected(ephemeral=True), said()])
    assert [mark.reason for mark in place_breakpoints(scroll, RULES).breakpoints] == [
        "end of the tools",
        "end of the stable system prompt",
        "before ephemeral text",
        "end of the conversation so far",
    ]


def test_without_tools_the_system_prompt_alone_is_marked_in_the_seed_profile() -> None:
    assert marked(system(), system(), said(), seed=True) == [1]


def test_the_seed_profile_leaves_the_history_unmarked() -> None:
    assert marked(tool(), system(), said(), said("assistant"), said(), seed=True) == [0, 1]


def test_a_volatile_system_block_is_never_marked_but_the_stable_one_before_it_is() -> None:
    assert marked(tool(), system(), system(Stability.VOLATILE), said()) == [0, 1, 3]


def test_a_single_system_block_without_volatile_text_carries_the_mark() -> None:
    assert marked(system(), seed=True) == [0]


def test_volatile_text_behind_tool_results_is_not_marked() -> None:
    assert marked(system(), said(), said("assistant"), said(), injected()) == [0, 3]


def test_a_block_that_takes_no_mark_is_passed_over() -> None:
    assert marked(system(), said(), said("assistant", markable=False)) == [0, 1]


def test_ephemeral_text_has_a_mark_in_front_of_it_and_none_on_it() -> None:
    assert marked(tool(), system(), said(), injected(ephemeral=True)) == [0, 1, 2]


def test_ephemeral_text_inside_a_tool_loop_keeps_the_mark_in_front_of_it() -> None:
    pieces = [tool(), system(), said(), injected(ephemeral=True), said("assistant"), said()]
    assert marked(*pieces) == [0, 1, 2, 5]


def test_a_model_that_takes_fewer_marks_keeps_the_ones_furthest_back() -> None:
    rules = msgspec.structs.replace(RULES, breakpoints_max=2)
    assert marked(tool(), system(), said(), said("assistant"), said(), rules=rules) == [1, 4]


def test_a_model_without_marks_gets_none() -> None:
    rules = CacheRules(kind="implicit", tokens_min=1024)
    assert marked(tool(), system(), said(), rules=rules) == []


def test_an_empty_prompt_has_no_marks() -> None:
    assert marked() == []


BREAKPOINTS = CacheRules(kind="hybrid", tokens_min=1024, breakpoints_max=4)


def test_where_the_provider_keeps_the_newest_message_by_itself_only_the_stable_prompt_is_marked() -> None:
    scroll = RequestBuffer(Lines(), len)
    scroll.extend([system(), said(), said("assistant"), said()])
    plan = place_breakpoints(scroll, BREAKPOINTS)
    assert [(mark.block_index, mark.ttl) for mark in plan.breakpoints] == [(0, "30m")]


def test_where_the_provider_keeps_the_newest_message_ephemeral_text_still_has_a_mark_in_front() -> None:
    scroll = RequestBuffer(Lines(), len)
    scroll.extend([system(), said(), said("assistant"), said(), injected(ephemeral=True)])
    assert [mark.block_index for mark in place_breakpoints(scroll, BREAKPOINTS).breakpoints] == [0, 3]


def test_a_cache_that_takes_no_marks_gets_none() -> None:
    scroll = RequestBuffer(Lines(), len)
    scroll.extend([system(), said()])
    assert not place_breakpoints(scroll, CacheRules(kind="implicit", tokens_min=1024)).breakpoints
