"""Notifies listeners of events that are on the log; an exception in one listener affects no other."""

import logging
from collections.abc import Callable, Sequence

from holdfast.events.envelope import Event, type_of

Listener = Callable[[Event], None]

logger = logging.getLogger(__name__)


class Bus:
    def __init__(self) -> None:
        self._listeners: list[Listener] = []

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Calls `listener` with every event from now on; call the returned function to unsubscribe."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def publish(self, events: Sequence[Event]) -> None:
        for event in events:
            for listener in tuple(self._listeners):
                try:
                    listener(event)
                except Exception as error:  # noqa: BLE001 - an error of a listener must not reach the loop
                    # The error message could quote a prompt; its type cannot.
                    logger.warning("a listener failed on %s: %s", type_of(event.payload), type(error).__name__)
