"""Which blocks carry a cache breakpoint: the last tool, the stable system prompt's end, and the newest message."""

from collections.abc import Sequence
from typing import Literal

from holdfast.catalog.schema import CacheRules
from holdfast.planning.policy import PromptShape
from holdfast.types.prompt import Breakpoint, Plan, PromptSection, Stability, Ttl
from holdfast.types.request_buffer import EncodedBlock

# `seed` places breakpoints on the tools and the stable system prompt only; the history gets none.
CacheProfile = Literal["default", "seed"]


def place_breakpoints(buffer: PromptShape, rules: CacheRules, *, profile: CacheProfile = "default") -> Plan:
    """At most as many breakpoints as the model allows; never on thinking, empty, volatile or ephemeral blocks.

    Looks at the stable prefix and at the end of the prompt, not at the history in between.
    """
    match rules.kind:
        case "explicit":
            return _plan_of(_candidates(buffer, profile, rolling=True), rules, ttl="5m")
        case "hybrid":
            # GPT-5.6 and later write the end of the latest message themselves and look back over 20 earlier endings
            # (OpenAI, "Prompt caching"), so no rolling breakpoint is needed (docs/decisions/0015).
            return _plan_of(_candidates(buffer, profile, rolling=False), rules, ttl="30m")
        case "implicit" | "none":
            return Plan()


def _candidates(buffer: PromptShape, profile: CacheProfile, *, rolling: bool) -> list[tuple[int | None, str]]:
    blocks, stable = buffer.blocks, buffer.stable_count
    candidates: list[tuple[int | None, str]] = [
        (last_breakpoint_block(blocks, 0, stable, section="tools"), "end of the tools"),
        (last_breakpoint_block(blocks, 0, stable, section="system"), "end of the stable system prompt"),
    ]
    if profile == "default":
        if buffer.first_ephemeral is not None:
            before_ephemeral = last_breakpoint_block(blocks, stable, buffer.first_ephemeral, section="messages")
            candidates.append((before_ephemeral, "before ephemeral text"))
        if rolling:
            end = last_breakpoint_block(blocks, stable, len(blocks), section="messages")
            candidates.append((end, "end of the conversation so far"))
    return candidates


def _plan_of(candidates: Sequence[tuple[int | None, str]], rules: CacheRules, *, ttl: Ttl) -> Plan:
    breakpoints: dict[int, Breakpoint] = {}
    for block, reason in candidates:
        if block is not None and block not in breakpoints:
            breakpoints[block] = Breakpoint(block, ttl, reason)
    in_order = sorted(breakpoints.values(), key=lambda breakpoint: breakpoint.block_index)
    return Plan(tuple(in_order[-rules.breakpoints_max :]))


def last_breakpoint_block(
    blocks: Sequence[EncodedBlock], start: int, stop: int, *, section: PromptSection
) -> int | None:
    """The last block in [start, stop) of that section that may carry a breakpoint."""
    for index in range(stop - 1, start - 1, -1):
        if blocks[index].section == section and can_carry_breakpoint(blocks, index):
            return index
    return None


def can_carry_breakpoint(blocks: Sequence[EncodedBlock], index: int) -> bool:
    """Whether the block exists, the provider accepts a breakpoint on it, and the next call will send it again."""
    if not 0 <= index < len(blocks):
        return False
    block = blocks[index]
    return block.accepts_breakpoint and block.stability < Stability.VOLATILE and not block.ephemeral
