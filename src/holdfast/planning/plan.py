"""The cache plan of a call, for every kind of provider cache."""

import msgspec

from holdfast.canonical.prompt import Mark, Plan, Ttl
from holdfast.planning.gaps import expected
from holdfast.planning.marks import Profile, plan_marks
from holdfast.planning.memory import NOTHING_LEARNED, Learned, Memory, sure_read
from holdfast.planning.ours import plan_call
from holdfast.planning.policy import Moment
from holdfast.planning.savings import Warmth, with_savings


def plan(
    moment: Moment,
    memory: Memory,
    learned: Learned = NOTHING_LEARNED,
    *,
    profile: Profile = "default",
    keep_small: bool = False,
    ttl: Ttl | None = None,
) -> Plan:
    """The breakpoints of a call, with TTL, reason and expected saving.

    A provider with an implicit cache gets none: there the session's cache key and an unchanged prefix are the plan.
    `keep_small` is explained in `plan_call`. A `ttl` that the provider supports overrides that of every breakpoint.
    """
    rules, buffer = moment.rules, moment.scroll
    if rules.kind == "marks" and profile == "default" and {"5m", "1h"} <= rules.ttls_seconds.keys():
        planned = plan_call(moment, memory, learned, keep_small=keep_small)
        base_plan, stakes = planned.plan, planned.stakes
        warmth = Warmth(stakes.prompt, stakes.prompt - stakes.written)
    else:
        base_plan = plan_marks(buffer, rules, profile=profile)
        # The size of the last prompt as reported, plus our estimate for the blocks added since.
        continues = bool(memory.pieces) and memory.pieces <= len(buffer.tokens)
        prompt = memory.tail_tokens + sum(buffer.tokens[memory.pieces :]) if continues else buffer.tokens_total
        warmth = Warmth(prompt, min(memory.tail_tokens, prompt) if continues else 0)
    if ttl is not None and ttl in rules.ttls_seconds:
        forced = tuple(_with_ttl(ttl, breakpoint) for breakpoint in base_plan.marks)
        base_plan = msgspec.structs.replace(base_plan, marks=forced)
    idle_times = expected(memory.gaps.all, learned.gaps.all)
    priced = with_savings(base_plan.marks, buffer, warmth, idle_times, rules=rules, price=moment.price)
    return msgspec.structs.replace(base_plan, marks=priced, expected_read_tokens=sure_read(memory, moment.at))


def _with_ttl(ttl: Ttl, breakpoint: Mark) -> Mark:
    return msgspec.structs.replace(breakpoint, ttl=ttl, reason=f"{breakpoint.reason}; the TTL is set to {ttl}")
