"""Whether cache losses are likely caused by the client, judged by when they happen.

Within a tool loop a client resends its prompt plus a tool result. After a user message it may send other settings,
other tools or another reminder, and the recording does not contain those. A provider does not know who wrote the newest
message, so losses on its side are equally frequent in both places. If conversations are lost far more often after user
messages than after tool results, those losses are likely caused by the client.
"""

import msgspec

from holdfast.catalog.rows import CacheRules
from holdfast.replay.colds import Cold, changed_model, cold_causes, recorded_lifetimes, turnings
from holdfast.replay.recording import RecordedCall, Recording

LOST_MIN = 3
TIMES_MIN = 5.0
"""At five times the provider's own rate, one loss in five is still the provider's; below that, too many would be."""


class Habits(msgspec.Struct, frozen=True):
    """Calls within the shortest TTL of the previous call, and how many of them lost the conversation.

    Calls at which the client is known to switch settings are not counted, nor are losses with another known reason.
    """

    person: int = 0
    person_lost: int = 0
    tool: int = 0
    tool_lost: int = 0

    @property
    def times(self) -> float:
        """The loss rate after user messages divided by the loss rate after tool results."""
        if not self.person:
            return 0.0
        # One more lost call after a tool result is assumed: no division by zero, and few calls prove little.
        return (self.person_lost / self.person) / ((self.tool_lost + 1) / (self.tool + 1))

    @property
    def tell(self) -> bool:
        """Whether the losses after user messages are likely caused by the client."""
        return self.person_lost >= LOST_MIN and self.times >= TIMES_MIN

    def __add__(self, other: "Habits") -> "Habits":
        return Habits(
            self.person + other.person,
            self.person_lost + other.person_lost,
            self.tool + other.tool,
            self.tool_lost + other.tool_lost,
        )


def habits(recording: Recording, rules: CacheRules) -> Habits:
    """The counts of one recording."""
    causes, switches = cold_causes(recording, rules), turnings(recording)
    total = Habits()
    if not recorded_lifetimes(recording):
        return total
    for index in range(1, len(recording.calls)):
        before, call = recording.calls[index - 1], recording.calls[index]
        if switches[index] is None and in_time(before, call, min(rules.ttls_seconds.values())):
            total += _count_call(call, causes[index])
    return total


def in_time(before: RecordedCall, call: RecordedCall, seconds: float) -> bool:
    """Whether the call should have hit: soon enough, same model, not compacted, prompt not shorter."""
    return (
        before.usage is not None
        and call.usage is not None
        and call.at - before.at < seconds
        and not changed_model(before, call)
        and call.kept is None
        and call.usage.tokens_sent >= before.usage.tokens_sent
    )


def _count_call(call: RecordedCall, cold: Cold | None) -> Habits:
    if cold is not None and cold.reason != "lost":
        return Habits()
    lost = int(cold is not None)
    return Habits(person=1, person_lost=lost) if call.waited_for == "person" else Habits(tool=1, tool_lost=lost)
