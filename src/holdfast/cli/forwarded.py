"""Describes a session whose calls went through the gateway."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.events.envelope import Event


def told_of_gateway(events: "Iterable[Event]") -> "Iterator[str]":
    """How its calls were matched to one session, and which anti-patterns were or could be fixed, in how many calls."""
    from collections import Counter

    from holdfast.cli.requests import printable
    from holdfast.events.payloads_gateway import GatewayForwarded
    from holdfast.replay.forwarded import paid_for

    log = list(events)
    forwarded = [event.payload for event in log if isinstance(event.payload, GatewayForwarded)]
    if not forwarded:
        return
    least_certain = min(forwarded, key=lambda payload: payload.confidence)
    yield (
        f"sent through the gateway; calls matched to this session with at least {least_certain.confidence:.0%} "
        f"confidence: {printable(least_certain.because)}"
    )
    changes = [change for payload in paid_for(log) for change in payload.changes]
    for (habit, done), count in Counter((change.habit, change.done) for change in changes).most_common():
        calls = "1 call" if count == 1 else f"{count} calls"
        usd = sum(change.usd or 0.0 for change in changes if change.habit == habit and change.done == done)
        price = f", which would save ${usd:.6f}" if usd > 0 else ""
        yield f"{'fixed' if done else 'can be fixed'} in {calls}: {printable(habit)}{price}"
