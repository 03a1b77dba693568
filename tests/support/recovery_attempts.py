"""A conversation in memory that holds nothing but recovery attempts, for tests of recipes without a session."""

from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.engine.state import SessionState
from holdfast.events.log import Actor
from holdfast.events.payloads.recovery import RecoveryPayload
from holdfast.events.payloads.union import AnyPayload
from holdfast.recovery.attempts import apply_recovery_event


class AttemptsInMemory:
    """`payloads` has everything that was recorded."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.state = SessionState("recovered")
        self.payloads: list[AnyPayload] = []

    async def record(self, actor: Actor, *payloads: AnyPayload) -> None:
        for payload in payloads:
            self.payloads.append(payload)
            if isinstance(payload, RecoveryPayload):
                incidents = apply_recovery_event(self.state.incidents, payload, self._clock())
                self.state = replace(self.state, incidents=incidents)
