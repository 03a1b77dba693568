"""One run of a client: directly against the simulator, or with the gateway between two taps."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl

import msgspec
from multidict import CIMultiDict

from conformance.client import Client, Place
from conformance.model_script import ScriptedModel
from conformance.tap import TappedExchange, open_tap
from holdfast.catalog.lookup import shipped_models
from holdfast.cli.open_store import open_configured_store
from holdfast.ledger.accounting import iter_entries
from holdfast.simulator.exchange import RecordedRequest
from holdfast.simulator.openai.responses import ResponsesSocket, SocketRequest
from holdfast.simulator.provider_api import SimulatedRequest
from holdfast.testing.server_thread import serve_provider
from holdfast.types.usage import Usage

Mode = Literal["direct", "gateway", "improve"]
MODES: tuple[Mode, ...] = ("direct", "gateway", "improve")
COMMAND_SECONDS_MAX = 120
STOP_SECONDS_MAX = 30
NOTES = "Heron\nDunlin\n"
# A client gets a home of its own: neither its settings nor its history may depend on who runs this.
_PASSED_VARIABLES = ("PATH", "LANG", "TERM", "TMPDIR", "NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE")


class RecordedSession(msgspec.Struct, frozen=True):
    """A session of the gateway's store. `verdicts` has a kind per call, or `none`."""

    id: str
    parent: str | None
    usage: Usage
    cost_usd: Decimal
    verdicts: tuple[str, ...]


class ClientRun(msgspec.Struct, frozen=True):
    """What was seen in one run: by the client's side, by the simulator, and in the gateway's store and log."""

    mode: Mode
    exit_statuses: tuple[int, ...]
    output: str
    notes: str
    sent: tuple[TappedExchange, ...]
    received: tuple[TappedExchange, ...]
    simulated: tuple[RecordedRequest, ...]
    sessions: tuple[RecordedSession, ...] = ()
    gateway_log: str = ""
    unimproved: tuple[RecordedRequest, ...] = ()
    """What the client sent in an improved run, answered by a simulator that received it as sent.

    Another run would not do for the comparison: its ids and the names of its folders have other token counts.
    """


def run_client(client: Client, mode: Mode, *, folder: Path) -> ClientRun:
    """Leaves bodies, output and the gateway's log in `folder`, which is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = ScriptedModel(client.turns)
    with (
        # Outside of this repository, because clients read the instructions and the git state of the folders above.
        tempfile.TemporaryDirectory(prefix="client-", ignore_cleanup_errors=True) as place_folder,
        serve_provider(model) as simulator,
        open_tap(simulator) as far,
    ):
        home, work = Path(place_folder) / "home", Path(place_folder) / "work"
        home.mkdir()
        work.mkdir()
        notes = work / "notes.txt"
        notes.write_text(NOTES)
        if mode == "direct":
            statuses, output = _run_commands(client, Place(far.url, client.bin, home, work))
            near, log = far, ""
        else:
            options = ("--improve",) if mode == "improve" else ()
            with _serve_gateway(far.url, folder, options) as gateway, open_tap(gateway) as near:
                url = f"{near.url}/{client.provider}"
                statuses, output = _run_commands(client, Place(url, client.bin, home, work))
            log = (folder / "gateway.log").read_text()
        notes_after = notes.read_text()
    (folder / "output.txt").write_text(output)
    _keep_bodies(folder, near.exchanges)
    if mode == "improve":
        _keep_bodies(folder / "forwarded", far.exchanges)
    return ClientRun(
        mode=mode,
        exit_statuses=statuses,
        output=output,
        notes=notes_after,
        sent=tuple(near.exchanges),
        received=tuple(far.exchanges),
        simulated=model.requests,
        sessions=() if mode == "direct" else _read_sessions(folder / "store.db"),
        gateway_log=log,
        unimproved=answer_as_sent(client, near.exchanges) if mode == "improve" else (),
    )


def answer_as_sent(client: Client, exchanges: Sequence[TappedExchange]) -> tuple[RecordedRequest, ...]:
    model = ScriptedModel(client.turns)
    socket: ResponsesSocket | None = None
    for exchange in exchanges:
        path, _, query = exchange.path.removeprefix(f"/{client.provider}").partition("?")
        headers = CIMultiDict(exchange.headers)
        if exchange.method == "WEBSOCKET":
            socket = socket or ResponsesSocket(headers, model.now())
            message = socket.parse_message(exchange.body, model.now())
            if isinstance(message, SocketRequest):
                model.answer_request(message.http_request, exchange.body).read_body()
                # The next message continues the response whose id the client received.
                for event in exchange.response.splitlines():
                    socket.encode_event(message, event)
        elif not exchange.by_gateway:
            parameters = dict(parse_qsl(query))
            request = SimulatedRequest(exchange.method, path, headers, exchange.body, parameters)
            # The simulator's cache has an entry once the response is read.
            model.answer_request(request).read_body()
    return model.requests


def _run_commands(client: Client, place: Place) -> tuple[tuple[int, ...], str]:
    launch = client.start(place)
    environment = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    environment |= {"HOME": str(place.home), "NO_PROXY": "127.0.0.1", "CI": "1", **launch.environment}
    statuses: list[int] = []
    output = ""
    for command in launch.commands:
        try:
            done = subprocess.run(
                command,
                cwd=place.work,
                env=environment,
                input=launch.input.encode(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COMMAND_SECONDS_MAX,
                check=False,
            )
            statuses.append(done.returncode)
            output += done.stdout.decode(errors="replace")
        except subprocess.TimeoutExpired as error:
            statuses.append(124)
            output += (error.stdout or b"").decode(errors="replace") + f"\nno end after {COMMAND_SECONDS_MAX} s\n"
    return tuple(statuses), output


@contextmanager
def _serve_gateway(upstream: str, folder: Path, options: Sequence[str]) -> Iterator[str]:
    arguments = ["serve", "--port", "0", "--db", str(folder / "store.db"), *options]
    for provider in ("anthropic", "openai", "gemini"):
        arguments += ["--upstream", f"{provider}={upstream}"]
    with (
        (folder / "gateway.log").open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", "holdfast", *arguments], stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
            process.wait(STOP_SECONDS_MAX)


def _read_sessions(store: Path) -> tuple[RecordedSession, ...]:
    """Oldest first."""
    sessions: list[RecordedSession] = []
    with open_configured_store(str(store)) as log:
        for row in reversed(log.sessions()):
            entries = tuple(iter_entries(log.read(row.id), shipped_models()))
            sessions.append(
                RecordedSession(
                    row.id,
                    row.parent_session_id,
                    sum((entry.record.usage for entry in entries), Usage()),
                    sum((entry.record.cost_usd for entry in entries), Decimal(0)),
                    tuple(entry.verdict.kind if entry.verdict else "none" for entry in entries),
                )
            )
    return tuple(sessions)


def _keep_bodies(folder: Path, exchanges: Sequence[TappedExchange]) -> None:
    """For a person who looks into a failure."""
    folder.mkdir(exist_ok=True)
    for number, exchange in enumerate(exchanges, start=1):
        name = f"{number:02}-{exchange.method}-{exchange.status}"
        (folder / f"{name}-request").write_bytes(f"{exchange.path}\n\n".encode() + exchange.body)
        (folder / f"{name}-response").write_bytes(exchange.response)
