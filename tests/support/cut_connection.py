"""A line to a PostgreSQL server that goes dead when a test says so."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Literal
from urllib.parse import urlsplit

from psycopg.conninfo import conninfo_to_dict

Cut = Literal["before", "after", "hanging"]


class CuttableProxy:
    """Carries bytes both ways. `cut` ends the connection that sends the next COMMIT, once.

    `before`: the server never gets it. `after`: the server has answered, and nobody hears of it. `hanging`: the server
    never gets it, and does not know that nobody is there any more. A line that is `dead` takes no new connections.
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
        Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self.dead:
                    near.close()
                    continue
                far = self._reach_server()
                self._open += (near, far)
                Thread(target=self._carry_there, args=(near, far), daemon=True).start()
                Thread(target=self._carry_back, args=(far, near), daemon=True).start()

    def _reach_server(self) -> socket.socket:
        host, port = str(self._server["host"]), int(str(self._server.get("port") or 5432))
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        far = socket.socket(socket.AF_UNIX)
        far.connect(f"{host}/.s.PGSQL.{port}")
        return far

    def _carry_there(self, near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while sent := near.recv(65536):
                if self.cut and b"COMMIT\x00" in sent:
                    cut, self.cut = self.cut, None
                    shut_down(near)
                    if cut == "after":
                        # The other thread reads the answer, which has nowhere to go, and ends the rest.
                        far.sendall(sent)
                    elif cut == "before":
                        shut_down(far)
                    return
                far.sendall(sent)
        shut_down(far)

    def _carry_back(self, far: socket.socket, near: socket.socket) -> None:
        with suppress(OSError):
            while heard := far.recv(65536):
                near.sendall(heard)
        shut_down(near)
        shut_down(far)

    def hang_up(self) -> None:
        """End every connection."""
        for one in self._open[1:]:
            shut_down(one)

    def close(self) -> None:
        for one in self._open:
            shut_down(one)
            one.close()


def shut_down(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_to(url: str) -> Iterator[CuttableProxy]:
    line = CuttableProxy(url)
    try:
        yield line
    finally:
        line.close()
