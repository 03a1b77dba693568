"""What a provider was found not to take, and the plan that keeps to it."""

import msgspec

from holdfast.canonical.prompt import Mark, Plan
from holdfast.events.payloads_recovery import ProviderLimited


class Limits(msgspec.Struct, frozen=True):
    """None where nothing was found. `one_lifetime`: all marks of a request live equally long."""

    marks_max: int | None = None
    one_lifetime: bool = False
    window_tokens_max: int | None = None


UNLIMITED = Limits()


def narrowed(limits: Limits, found: ProviderLimited) -> Limits:
    """Limits only ever become narrower, but for the window: the newest word on it holds."""
    marks = [most for most in (limits.marks_max, found.marks_max) if most is not None]
    return Limits(
        marks_max=min(marks, default=None),
        one_lifetime=limits.one_lifetime or found.one_lifetime,
        window_tokens_max=found.window_tokens_max or limits.window_tokens_max,
    )


def limited(plan: Plan, limits: Limits) -> Plan:
    """The plan without its deepest marks, where there are too many; what is then read is not foreseen."""
    marks = plan.marks if limits.marks_max is None else plan.marks[: max(0, limits.marks_max)]
    if limits.one_lifetime and marks:
        marks = _of_one_lifetime(marks)
    if marks == plan.marks:
        return plan
    note = f"the provider refused marks: {len(marks)} of {len(plan.marks)} are set"
    return msgspec.structs.replace(plan, marks=marks, notes=(*plan.notes, note), expected_read_tokens=0)


def _of_one_lifetime(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """All live as long as the last, which is the shortest in every legal order."""
    return tuple(
        mark if mark.ttl == marks[-1].ttl else msgspec.structs.replace(mark, ttl=marks[-1].ttl) for mark in marks
    )
