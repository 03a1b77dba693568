"""A store of recovery attempts in memory, for tests of recipes without a session."""

from holdfast.clock import Clock
from holdfast.events.payloads_recovery import AnyRecoveryPayload, Recovery
from holdfast.recovery.ledger import NOTHING_HAPPENED, recorded


class AttemptsInMemory:
    """`payloads` are all that was recorded."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.ledger = NOTHING_HAPPENED
        self.payloads: list[AnyRecoveryPayload] = []

    async def record(self, *payloads: AnyRecoveryPayload) -> None:
        for payload in payloads:
            self.payloads.append(payload)
            if isinstance(payload, Recovery):
                self.ledger = recorded(self.ledger, payload, self._clock())
