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

    forwarded = [event.payload for event in events if isinstance(event.payload, GatewayForwarded)]
    if not forwarded:
        return
    least = min(forwarded, key=lambda one: one.confidence)
    sure = f"{least.confidence:.0%} or more: {printable(least.because)}"
    yield f"through the gateway; its calls belong together by {sure}"
    habits = Counter((change.habit, change.done) for one in forwarded for change in one.changes)
    for (habit, done), count in habits.most_common():
        calls = "1 call" if count == 1 else f"{count} calls"
        yield f"{'mended' if done else 'could be mended'} in {calls}: {printable(habit)}"
