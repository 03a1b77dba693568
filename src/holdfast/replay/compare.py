"""One recording under many policies, beside the least that it could have cost."""

from collections.abc import Iterable

import msgspec

from holdfast.planning.optimum import Step, bound, optimum, rates_of
from holdfast.planning.policy import Policy
from holdfast.replay.layouts import LAYOUTS
from holdfast.replay.play import Played, Player, Sent, Setting, newest_price
from holdfast.replay.recording import Recording


class Comparison(msgspec.Struct, frozen=True):
    """`bound_usd` and `optimum_usd` are of the conversation as recorded, however a policy lays it out."""

    recording: str
    played: tuple[Played, ...]
    bound_usd: float
    optimum_usd: float


def compare(recording: Recording, policies: Iterable[Policy], setting: Setting, sent: Sent | None = None) -> Comparison:
    """Policies that lay prompts out as recorded share one pass; the order of the answers is that of the policies."""
    asked = tuple(policies)
    plain = [policy for policy in asked if policy.name not in LAYOUTS]
    player = Player(recording, setting, sent)
    found = dict(zip((id(policy) for policy in plain), player.play(plain), strict=True))
    for policy in asked:
        if policy.name in LAYOUTS:
            (found[id(policy)],) = Player(LAYOUTS[policy.name](recording), setting, sent).play((policy,))
    lowest, best = least(player.steps, setting)
    return Comparison(recording.id, tuple(found[id(policy)] for policy in asked), lowest, best)


def least(steps: list[Step], setting: Setting) -> tuple[float, float]:
    """The bound and the optimum in dollars, at the price of the longest prompt."""
    longest = max((step.prompt_tokens for step in steps), default=0)
    rates = rates_of(newest_price(setting.model, longest), setting.truth)
    return bound(steps, rates), optimum(steps, rates, upgrades=setting.truth.ttl_upgrade)
