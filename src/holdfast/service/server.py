"""Runs the application in uvicorn: binds the port, stops gracefully, and runs the background tasks beside it.

Jobs such as measuring coverage run in the background, each on one replica at a time.
"""

import asyncio
import contextlib
import functools
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import uvicorn
from starlette.types import ASGIApp

from holdfast.clock import new_ulid
from holdfast.engine.leases import Job, ProcessLeases, run_job
from holdfast.errors import HoldfastError, UserError
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.coverage.schedule import (
    TimeSharing,
    YieldControl,
    calibrate_due_agents,
    run_due_coverage,
)
from holdfast.service.alerts import AlertWebhook
from holdfast.service.auth.origins import is_address
from holdfast.service.context import AppContext
from holdfast.service.http.uvicorn_protocol import (
    CLIENT_MESSAGE_BYTES_MAX,
    BoundedProtocol,
    PingPassingProtocol,
    WaitingConnections,
    raise_descriptors_max,
)

if TYPE_CHECKING:
    from holdfast.service.telemetry.exporter import TelemetryExporter

COVERAGE_SECONDS = 3_600.0
JOB_CHECK_SECONDS = 10.0
"""How often each replica looks for a job that is due, or whose owner has died."""

logger = logging.getLogger(__name__)


def make_coverage_job(context: InstructionContext) -> Job:
    """Measures the coverage of the agents that are due."""

    def measure(may_continue: YieldControl) -> None:
        calibrate_due_agents(context, rest=may_continue)
        run_due_coverage(context, rest=may_continue)

    return Job("coverage", COVERAGE_SECONDS, measure)


async def run_jobs(jobs: Sequence[Job], leases: ProcessLeases, stop: asyncio.Event) -> None:
    """Runs until `stop` is set; the unit of work in progress is completed first."""
    ended = threading.Event()
    running = asyncio.ensure_future(_run_repeatedly(jobs, leases, stop, ended))
    await stop.wait()
    ended.set()
    await running


async def _run_repeatedly(
    jobs: Sequence[Job], leases: ProcessLeases, stop: asyncio.Event, ended: threading.Event
) -> None:
    while not stop.is_set():
        for job in jobs:
            turns = TimeSharing(ended.wait, time.monotonic)
            try:
                await asyncio.to_thread(run_job, leases, job, turns.yield_control)
            except HoldfastError as error:
                # The store may be available again at the next run.
                logger.warning("the job %s could not be done: %s", job.name, type(error).__name__)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), JOB_CHECK_SECONDS)


CLOSING_SECONDS_MAX = 5


def bind_socket(host: str, port: int) -> socket.socket:
    """Returns a listening socket; port 0 picks a free one. Raises UserError if it cannot listen."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise UserError(f"{host[:80]!a} is not an address to listen on") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(1024)
    except OSError as error:
        bound.close()
        raise UserError(f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port") from error
    return bound


def make_url(bound: socket.socket, host: str) -> str:
    """The service's URL for clients on this machine."""
    port = bound.getsockname()[1]
    name = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{name}]:{port}" if is_address(name) and ":" in name else f"http://{name}:{port}"


class _Server(uvicorn.Server):
    """Leaves signal handling to the caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: ASGIApp,
    context: AppContext,
    bound: socket.socket,
    *,
    stop: asyncio.Event,
    exporter: "TelemetryExporter | None" = None,
    webhook: AlertWebhook | None = None,
) -> None:
    """Serves until `stop` is set; then ends the live feeds and completes the requests in progress."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        # Forwarded responses must keep the provider's own Server and Date headers.
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws=PingPassingProtocol,
        ws_max_size=CLIENT_MESSAGE_BYTES_MAX,
        # Both ends of a forwarded connection ping each other if they want to; our own time-out would end a client that
        # does not read while it works.
        ws_ping_interval=None,
        ws_per_message_deflate=False,
        lifespan="off",
        # A factory with the class's parameters, which is all that uvicorn calls.
        http=functools.partial(BoundedProtocol, context=context, waiting=WaitingConnections()),  # type: ignore[arg-type]
        timeout_graceful_shutdown=CLOSING_SECONDS_MAX,
    )
    server = _Server(config)
    running = asyncio.ensure_future(server.serve(sockets=[bound]))
    stopping = asyncio.ensure_future(stop.wait())
    exporting = asyncio.ensure_future(exporter.run()) if exporter else None
    jobs = [*context.jobs, *([make_coverage_job(context.instructions)] if context.instructions else ())]
    leases = ProcessLeases(context.records.shared, new_ulid(context.clock()))
    working = asyncio.ensure_future(run_jobs(jobs, leases, stop)) if jobs else None
    alerting = asyncio.ensure_future(webhook.run(context, stop)) if webhook else None
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        # Live feeds never end by themselves and would use up the graceful shutdown time.
        await context.hub.close()
        server.should_exit = True
        await running
        if exporting is not None:
            await exporting
        if working is not None:
            stop.set()
            await working
    finally:
        leases.close()
        stopping.cancel()
        if alerting is not None:
            # It may be waiting to try again; another process sends what this one could not.
            alerting.cancel()


def run_until_signal(
    app: ASGIApp,
    context: AppContext,
    bound: socket.socket,
    *,
    announce: Callable[[], None],
    exporter: "TelemetryExporter | None" = None,
    webhook: AlertWebhook | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM, on uvloop if it is installed. `announce` is called once signals are handled."""
    raise_descriptors_max()
    with asyncio.Runner(loop_factory=uvicorn.Config(app).get_loop_factory()) as runner:
        runner.run(_serve_until_signal(app, context, bound, announce=announce, exporter=exporter, webhook=webhook))


async def _serve_until_signal(
    app: ASGIApp,
    context: AppContext,
    bound: socket.socket,
    *,
    announce: Callable[[], None],
    exporter: "TelemetryExporter | None",
    webhook: AlertWebhook | None,
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Shells start background jobs with SIGINT ignored; the handler overrides that.
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    announce()
    await serve(app, context, bound, stop=stop, exporter=exporter, webhook=webhook)
