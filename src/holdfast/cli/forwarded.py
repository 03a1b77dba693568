"""What is told of a session that went through the gateway."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from holdfast.events.envelope import Event


def told_of_gateway(events: "Iterable[Event]") -> "Iterator[str]":
    """How its calls were recognised, and which habits were mended or could be, with the number of calls."""
    from collections import Counter

    from holdfast.cli.requests import printable
    from holdfast.events.payloads_gateway import GatewayForwarded
    from holdfast.replay.forwarded import paid_for

    known = list(events)
    forwarded = [event.payload for event in known if isinstance(event.payload, GatewayForwarded)]
    if not forwarded:
        return
    least = min(forwarded, key=lambda one: one.confidence)
    sure = f"{least.confidence:.0%} or more: {printable(least.because)}"
    yield f"through the gateway; its calls belong together by {sure}"
    changes = [change for one in paid_for(known) for change in one.changes]
    for (habit, done), count in Counter((change.habit, change.done) for change in changes).most_common():
        calls = "1 call" if count == 1 else f"{count} calls"
        usd = sum(change.usd or 0.0 for change in changes if change.habit == habit and change.done == done)
        price = f", which would save ${usd:.6f}" if usd > 0 else ""
        yield f"{'mended' if done else 'could be mended'} in {calls}: {printable(habit)}{price}"
