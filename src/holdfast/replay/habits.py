"""What a client is in the habit of changing, as its losses tell: a provider does not know who has spoken.

While a tool loop goes on, a client sends what it sent and a tool's result. When a person has spoken it may send other
settings, other tools, another reminder, and no recording shows that. What a provider loses by itself it loses in both
places alike. So where a conversation is lost far more often behind a person's message than behind a tool's result,
those losses are likely the client's.
"""

import msgspec

from holdfast.catalog.rows import CacheRules
from holdfast.replay.colds import Cold, changed_model, cold_causes, recorded_lifetimes, turnings
from holdfast.replay.recording import RecordedCall, Recording

LOST_MIN = 3
TIMES_MIN = 5.0
"""Below, too many of them would be the provider's: at five times its own rate, one of five still is."""


class Habits(msgspec.Struct, frozen=True):
    """Calls so soon behind the one before that every lifetime would have held, and those that lost the conversation.

    Where the client is known to turn to other settings they are not counted, nor where something else tells why.
    """

    person: int = 0
    person_lost: int = 0
    tool: int = 0
    tool_lost: int = 0

    @property
    def times(self) -> float:
        """How many times as often it is lost behind a person's message; one more loss behind a tool's is assumed."""
        if not self.person:
            return 0.0
        return (self.person_lost / self.person) / ((self.tool_lost + 1) / (self.tool + 1))

    @property
    def tell(self) -> bool:
        """Whether what is lost behind a person's message is likely the client's doing."""
        return self.person_lost >= LOST_MIN and self.times >= TIMES_MIN

    def __add__(self, other: "Habits") -> "Habits":
        return Habits(
            self.person + other.person,
            self.person_lost + other.person_lost,
            self.tool + other.tool,
            self.tool_lost + other.tool_lost,
        )


def habits(recording: Recording, rules: CacheRules) -> Habits:
    """What one recording adds to what is known of its client."""
    causes, turns = cold_causes(recording, rules), turnings(recording)
    total = Habits()
    if not recorded_lifetimes(recording):
        return total
    for index in range(1, len(recording.calls)):
        before, call = recording.calls[index - 1], recording.calls[index]
        if turns[index] is None and in_time(before, call, min(rules.ttls_seconds.values())):
            total += _counted(call, causes[index])
    return total


def in_time(before: RecordedCall, call: RecordedCall, seconds: float) -> bool:
    """Whether the call should have found the one before: soon enough, the same model, nothing replaced or shorter."""
    return (
        before.usage is not None
        and call.usage is not None
        and call.at - before.at < seconds
        and not changed_model(before, call)
        and call.kept is None
        and call.usage.tokens_sent >= before.usage.tokens_sent
    )


def _counted(call: RecordedCall, cold: Cold | None) -> Habits:
    if cold is not None and cold.reason != "lost":
        return Habits()
    lost = int(cold is not None)
    return Habits(person=1, person_lost=lost) if call.waited_for == "person" else Habits(tool=1, tool_lost=lost)
