"""Replays one recording under many policies and compares their costs with the lowest possible cost."""

from collections.abc import Iterable

import msgspec

from holdfast.planning.optimum import Step, bound, optimum, rates_of
from holdfast.planning.policy import Policy
from holdfast.replay.layouts import LAYOUTS
from holdfast.replay.play import Played, Player, Sent, Setting, newest_price
from holdfast.replay.recording import Recording


class Comparison(msgspec.Struct, frozen=True):
    """`bound_usd` and `optimum_usd` are for the conversation as recorded, whatever layout a policy uses."""

    recording: str
    played: tuple[Played, ...]
    bound_usd: float
    optimum_usd: float


def compare(
    recording: Recording, policies: Iterable[Policy], setting: Setting, on_request: Sent | None = None
) -> Comparison:
    """Policies that keep the recorded layout share one pass; results are in the order of the policies."""
    ordered = tuple(policies)
    plain = [policy for policy in ordered if policy.name not in LAYOUTS]
    player = Player(recording, setting, on_request)
    results = dict(zip((id(policy) for policy in plain), player.play(plain), strict=True))
    for policy in ordered:
        if policy.name in LAYOUTS:
            (results[id(policy)],) = Player(LAYOUTS[policy.name](recording), setting, on_request).play((policy,))
    bound_cost, optimum_cost = least(player.steps, setting)
    return Comparison(recording.id, tuple(results[id(policy)] for policy in ordered), bound_cost, optimum_cost)


def least(steps: list[Step], setting: Setting) -> tuple[float, float]:
    """The bound and the optimum in dollars, at the price tier of the longest prompt."""
    longest = max((step.prompt_tokens for step in steps), default=0)
    rates = rates_of(newest_price(setting.model, longest), setting.truth)
    return bound(steps, rates), optimum(steps, rates, upgrades=setting.truth.ttl_upgrade)
