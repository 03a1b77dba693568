"""The plan of a call, for every kind of cache."""

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
    """Which marks a call carries, for how long, why, and what they are expected to save.

    Where a provider keeps what it likes there are none: there the session's key and a prefix that does not move are
    the plan. `keep_small` is told in `plan_call`. A `ttl` that the provider knows is that of every mark.
    """
    rules, scroll = moment.rules, moment.scroll
    if rules.kind == "marks" and profile == "default" and {"5m", "1h"} <= rules.ttls_seconds.keys():
        planned = plan_call(moment, memory, learned, keep_small=keep_small)
        made, stakes = planned.plan, planned.stakes
        warmth = Warmth(stakes.prompt, stakes.prompt - stakes.written)
    else:
        made = plan_marks(scroll, rules, profile=profile)
        known = bool(memory.pieces) and memory.pieces <= len(scroll.tokens)
        prompt = memory.tail_tokens + sum(scroll.tokens[memory.pieces :]) if known else scroll.tokens_total
        warmth = Warmth(prompt, min(memory.tail_tokens, prompt) if known else 0)
    if ttl is not None and ttl in rules.ttls_seconds:
        made = msgspec.structs.replace(made, marks=tuple(_bound_to(ttl, mark) for mark in made.marks))
    gaps = expected(memory.gaps.all, learned.gaps.all)
    told = with_savings(made.marks, scroll, warmth, gaps, rules=rules, price=moment.price)
    return msgspec.structs.replace(made, marks=told, expected_read_tokens=sure_read(memory, moment.at))


def _bound_to(ttl: Ttl, mark: Mark) -> Mark:
    return msgspec.structs.replace(mark, ttl=ttl, reason=f"{mark.reason}; the lifetime is set to {ttl}")
