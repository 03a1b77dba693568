"""A store of recovery attempts in memory, for tests of recipes without a session."""

from holdfast.clock import Clock
from holdfast.events.payloads.recovery import AnyRecoveryPayload, RecoveryPayload
from holdfast.recovery.attempts import EMPTY_LEDGER, apply_recovery_event


class AttemptsInMemory:
    """`payloads` has everything that was recorded."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ledger = EMPTY_LEDGER
        self.payloads: list[AnyRecoveryPayload] = []

    async def record(self, *payloads: AnyRecoveryPayload) -> None:
        for payload in payloads:
            self.payloads.append(payload)
            if isinstance(payload, RecoveryPayload):
                self.ledger = apply_recovery_event(self.ledger, payload, self._clock())
