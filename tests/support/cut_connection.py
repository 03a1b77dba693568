"""A proxy to a PostgreSQL server whose connections a test can cut."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Literal
from urllib.parse import urlsplit

from psycopg.conninfo import conninfo_to_dict

Cut = Literal["before", "after", "hanging"]


class CuttableProxy:
    """Forwards bytes both ways. `cut` ends the connection that sends the next COMMIT, once.

    `before`: the server never gets it. `after`: the server has committed, but its response is lost. `hanging`: the
    server never gets it and does not notice that the client is gone. A proxy that is `dead` accepts no connections.
    `questions_cut` connections end as they ask for the outcome of a commit. Every packet waits for `delay_seconds`.

    After a failover to a server that a transaction never reached, its id is in the future there (`outcome` is
    `future`), or another transaction has got it and was committed (`reused`).
    """

    def __init__(self, url: str) -> None:
        self._server = conninfo_to_dict(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")[0]
        self.url = parts._replace(netloc=f"{user}@127.0.0.1:{self._listener.getsockname()[1]}").geturl()
        self.cut: Cut | None = None
        self.dead = False
        self.questions_cut = 0
        self.delay_seconds = 0.0
        self.outcome: Literal["future", "reused"] | None = None
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.dead:
                    client.close()
                    continue
                server = self._reach_server()
                self._open += (client, server)
                Thread(target=self._forward_to_server, args=(client, server), daemon=True).start()
                Thread(target=self._forward_to_client, args=(server, client), daemon=True).start()

    def _reach_server(self) -> socket.socket:
        host, port = str(self._server["host"]), int(str(self._server.get("port") or 5432))
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _forward_to_server(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                time.sleep(self.delay_seconds)
                if self.questions_cut and b"pg_xact_status" in data:
                    self.questions_cut -= 1
                    shut_down(client)
                    break
                data = self._change_question(data)
                if self.cut and b"COMMIT\x00" in data:
                    cut, self.cut = self.cut, None
                    shut_down(client)
                    if cut == "after":
                        # The other thread reads the response, cannot deliver it, and closes both sockets.
                        server.sendall(data)
                    elif cut == "before":
                        shut_down(server)
                    return
                server.sendall(data)
        shut_down(server)

    def _change_question(self, data: bytes) -> bytes:
        """The same number of bytes, because messages begin with their length."""
        if self.outcome == "future":
            return re.sub(
                rb"(?s)(pg_xact_status.*?\x00\x00\x00.)(\d+)", lambda match: match[1] + b"9" * len(match[2]), data
            )
        if self.outcome == "reused":
            return data.replace(b"SELECT pg_xact_status($1::xid8)", b"SELECT 'committed'||left($1,0) ")
        return data

    def _forward_to_client(self, server: socket.socket, client: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        shut_down(client)
        shut_down(server)

    def hang_up(self) -> None:
        """End every connection."""
        for connection in self._open[1:]:
            shut_down(connection)

    def close(self) -> None:
        for connection in self._open:
            shut_down(connection)
            connection.close()


def shut_down(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_to(url: str) -> Iterator[CuttableProxy]:
    line = CuttableProxy(url)
    try:
        yield line
    finally:
        line.close()
