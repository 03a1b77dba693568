"""Learns at once when any process appends events to a PostgreSQL store: LISTEN on a connection of its own.

A notification has no content: it only says that it is worth to read. What is missed while the connection is down is
found by whoever polls meanwhile.
"""

import logging
import threading
from collections.abc import Callable

import psycopg

from holdfast.errors import UserError
from holdfast.stores.postgres.server import ConnectionLimits, PostgresAddress, connect_postgres, is_pooled

logger = logging.getLogger(__name__)

CHANNEL = "holdfast_events"
NOTIFY_SECONDS_MIN = 0.05
"""How often a writer notifies at most. The server runs notifying commits one after another, so there must be few."""

# The notification itself is not worth a wait for the disk, and must not be part of a transaction that is.
NOTIFY = f"BEGIN; SET LOCAL synchronous_commit = off; NOTIFY {CHANNEL}; COMMIT"

WAIT_SECONDS = 1.0
RECONNECT_SECONDS = 1.0


class EventNotifications:
    """Calls `on_events` from a thread, after each connect too; reconnects until it is closed."""

    def __init__(self, address: PostgresAddress, on_events: Callable[[], None]) -> None:
        self._address = address
        self._on_events = on_events
        self._is_closed = threading.Event()
        self.is_connected = False
        """Without a connection, somebody has to poll."""
        threading.Thread(target=self._run, name="holdfast-notifications", daemon=True).start()

    def close(self) -> None:
        self._is_closed.set()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            try:
                self._listen()
            except psycopg.Error as error:
                logger.info("no notifications of events: %s", type(error).__name__)
            except UserError as error:
                logger.warning("the live feed polls: %s", error)
                return
            finally:
                self.is_connected = False
            self._is_closed.wait(RECONNECT_SECONDS)

    def _listen(self) -> None:
        with connect_postgres(self._address, ConnectionLimits()) as connection:
            if is_pooled(connection):
                raise UserError(f"{self._address.name} is a pooler, which passes on no notification; use --db-direct")
            connection.execute(f"LISTEN {CHANNEL}")
            self.is_connected = True
            self._on_events()
            while not self._is_closed.is_set():
                for _ in connection.notifies(timeout=WAIT_SECONDS, stop_after=1):
                    self._on_events()
