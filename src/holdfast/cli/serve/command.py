"""`holdfast serve`: serves the dashboard, the HTTP API and the gateway over a store."""

import contextlib
import functools
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.open_store import load_configured_models, open_spending_cache, open_store_with_records
from holdfast.cli.options import OptionValueError, convert_to_option_error, host_option, port_option
from holdfast.clock import new_ulid, system_clock
from holdfast.errors import UserError

if TYPE_CHECKING:
    from holdfast.cli.serve.workers import WorkerPlace
    from holdfast.events.records import StoreRecords
    from holdfast.service.alerts import AlertWebhook
    from holdfast.service.context import AppContext
    from holdfast.service.telemetry.exporter import TelemetryExporter
    from holdfast.stores.open import Store

PORT = 8787
DAY_SECONDS = 86_400.0


@click.command("serve")
@host_option
@port_option(PORT)
@click.option("--db", metavar="URL", help="Store to serve instead of the configured one; created if missing.")
@click.option("--db-direct", metavar="URL", help="The same database without a pooler, for notifications of new events.")
@click.option("--require-keys", is_flag=True, help="Require a key even if none has been created yet.")
@click.option("--simulated", is_flag=True, help="Include simulated sessions in the statistics.")
@click.option(
    "--allow-host", "allowed", metavar="NAME", multiple=True, help="Host name under which clients reach the service."
)
@click.option("--instructions", is_flag=True, help="Also serve agents' instructions; each agent needs a key.")
@click.option(
    "--otlp", metavar="URL", help="Export traces to this OpenTelemetry collector, such as http://127.0.0.1:4318."
)
@click.option("--otlp-content", is_flag=True, help="Export message content too, with credentials masked.")
@click.option(
    "--upstream",
    "upstreams",
    metavar="NAME=[DIALECT:]URL",
    multiple=True,
    help="Where the gateway sends requests below /NAME; a NAME of your own needs a DIALECT, such as openai.",
)
@click.option(
    "--simulate",
    is_flag=True,
    help="Send requests to the built-in simulator and let the dashboard run a sample: no key, no network, and a "
    "temporary store unless --db is given.",
)
@click.option("--improve", is_flag=True, help="Rewrite requests so that they hit the cache, and record each change.")
@click.option(
    "--volatile", metavar="NAME=REGEX", multiple=True, help="Text in system prompts that --improve moves to the end."
)
@click.option(
    "--keep-alive",
    "keep_alive_usd",
    metavar="USD",
    type=click.FloatRange(min=0, min_open=True),
    help="With --improve, keep the caches of idle clients alive, for at most this much per day.",
)
@click.option("--drain", is_flag=True, help="Read a reply to its end after the client disconnects, to learn its usage.")
@click.option(
    "--grants",
    metavar="FILE",
    help="File with provider keys and budgets for keys of scope gateway; must have mode 0600.",
)
@click.option(
    "--unpriced-usd",
    metavar="USD",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="What budgets are charged per million tokens of a call without a known price.",
)
@click.option(
    "--spool",
    metavar="DIR",
    help="Folder for calls that wait to be recorded; default: beside the store, or in HOLDFAST_HOME for a server.",
)
@click.option(
    "--alert-webhook",
    metavar="URL",
    help="Where to send alerts, signed with the secret in HOLDFAST_ALERT_SECRET.",
)
@click.option(
    "--workers",
    metavar="N",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes that serve the port; one that ends is started again.",
)
@click.option("--worker", "place_text", hidden=True, help="Set by the process that starts the workers.")
def command(
    *,
    host: str,
    port: int,
    db: str | None,
    db_direct: str | None,
    require_keys: bool,
    simulated: bool,
    allowed: tuple[str, ...],
    instructions: bool,
    otlp: str | None,
    otlp_content: bool,
    upstreams: tuple[str, ...],
    simulate: bool,
    grants: str | None,
    improve: bool,
    volatile: tuple[str, ...],
    keep_alive_usd: float | None,
    drain: bool,
    unpriced_usd: float,
    spool: str | None,
    alert_webhook: str | None,
    workers: int,
    place_text: str | None,
) -> None:
    """Serve the dashboard, the HTTP API and the gateway until stopped.

    Prints its address at once: open it in a browser. On this machine no key is needed until `holdfast keys create` has
    created one; on any other address the service does not start without a key of scope admin. /openapi.json describes
    all routes.

    The gateway offers the providers' own APIs under /anthropic, /openai, /gemini, /openrouter, /deepseek and others,
    and records the traffic: a client only needs a different base URL.
    """

    try:
        from holdfast.cli.serve import workers as processes
        from holdfast.cli.serve.gateway import GatewayOptions, open_gateway
        from holdfast.service.app import make_app
        from holdfast.service.server import make_url, run_until_signal
    except ImportError as error:
        raise UserError("the service needs extra packages: pip install 'holdfast-context[server]'") from error
    from holdfast.cli.instructions.command import open_instruction_context
    from holdfast.service.auth.origins import is_loopback
    from holdfast.service.context import AppContext
    from holdfast.service.route_table import ROUTES

    place = processes.parse_place(place_text) if place_text is not None else None
    if workers > 1 and place is None:
        _run_workers(workers, host, port, simulate=simulate)
        return
    with (
        _store_location(db, is_temporary=simulate) as (address, temporary),
        open_store_with_records(address) as (log, records),
    ):
        _check_admin_key(host, records)
        library = open_instruction_context(log, wanted=instructions, for_sample=temporary is not None)
        keys_required = require_keys or not is_loopback(host)
        service = AppContext(log, records, load_configured_models(), require_keys=keys_required, instructions=library)
        # With --simulate all sessions are simulated, so the statistics must include them.
        service.is_simulating = simulated or simulate
        _set_connection_limits(service)
        _add_notifications(service, log, db_direct=db_direct)
        _add_jobs(service, log)
        _add_sources(service, simulate=simulate, temporary=temporary)
        # One worker exports for all: what it exports is read from the store.
        exporter = _exporter(service, otlp, content=otlp_content) if otlp and not (place and place.number) else None
        webhook = _make_webhook(alert_webhook) if alert_webhook else None
        allowance_usd = keep_alive_usd and keep_alive_usd / workers
        gateway_options = GatewayOptions(
            simulate, grants, improve, volatile, allowance_usd, drain, address, unpriced_usd, spool
        )
        with open_gateway(service, upstreams, gateway_options) as gateway:
            app = make_app(service, ROUTES, allowed_hosts=(host, *allowed), mounts=(gateway,))
            with _listen(host, port, place, service) as bound:
                announce = functools.partial(_announce, make_url(bound, host), is_temporary=temporary is not None)
                run_until_signal(app, service, bound, announce=announce, exporter=exporter, webhook=webhook)
    if place is None:
        click.echo("stopped", err=True)


def _announce(url: str, *, is_temporary: bool) -> None:
    click.echo(url)
    if is_temporary:
        click.echo("the store is temporary: it is deleted at the end; --db FILE keeps one", err=True)


def _run_workers(count: int, host: str, port: int, *, simulate: bool) -> None:
    from holdfast.cli.serve.workers import run_workers
    from holdfast.service.server import bind_socket, make_url

    if simulate:
        raise OptionValueError("--simulate serves from one process: leave out --workers, or give an --upstream instead")
    with contextlib.closing(bind_socket(host, port)) as bound:
        status = run_workers(count, bound, lambda: click.echo(make_url(bound, host)))
    if status:
        raise SystemExit(status)
    click.echo("stopped", err=True)


@contextlib.contextmanager
def _listen(host: str, port: int, place: "WorkerPlace | None", service: "AppContext") -> Iterator[socket.socket]:
    """The socket to serve: one of its own, or for a worker the one that all workers share."""
    from holdfast.cli.serve.workers import open_shared_socket, report_status
    from holdfast.service.server import bind_socket

    if place is None:
        with contextlib.closing(bind_socket(host, port)) as bound:
            yield bound
    else:
        with contextlib.closing(open_shared_socket(place)) as bound, report_status(place, service):
            yield bound


@contextlib.contextmanager
def _store_location(db: str | None, *, is_temporary: bool) -> Iterator[tuple[str | None, "Path | None"]]:
    """The store to serve; for a temporary one also its folder, which is deleted at the end."""
    if db is not None or not is_temporary:
        yield db, None
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix="holdfast-serve-") as folder:
        yield str(Path(folder) / "log.db"), Path(folder)


def _set_connection_limits(service: "AppContext") -> None:
    from holdfast.gateway.http.client_addresses import TrustedProxies
    from holdfast.runtime.config import load_config

    # Without the workspace: a repository must not decide whose addresses are believed.
    config = load_config(os.environ)
    service.connections.proxies = TrustedProxies(config.trusted_proxies)
    service.connections.per_address_max = config.connections_per_address_max


def _add_notifications(service: "AppContext", log: "Store", *, db_direct: str | None) -> None:
    """On PostgreSQL the live feed is notified of new events; without a connection for that, it polls."""
    service.hub.open_notifications = log.make_notifications(db_direct)
    if db_direct is not None and service.hub.open_notifications is None:
        raise UserError("--db-direct is for a PostgreSQL store behind a pooler; leave it out")


def _add_jobs(service: "AppContext", log: "Store") -> None:
    """What all replicas together do once a day."""
    from holdfast.engine.leases import Job
    from holdfast.runtime.config import load_config
    from holdfast.stores.maintenance import prune_content

    days = load_config(os.environ).retention_days
    if days:

        def prune(may_continue: "Callable[[], bool]") -> None:
            prune_content(log, before=service.clock() - days * DAY_SECONDS, may_continue=may_continue)

        service.jobs.append(Job("retention", DAY_SECONDS, prune))


def _make_webhook(url: str) -> "AlertWebhook":
    from holdfast.service.alerts import AlertWebhook

    secret = os.environ.get("HOLDFAST_ALERT_SECRET", "")
    with convert_to_option_error():
        return AlertWebhook(url, secret, owner=new_ulid(system_clock()), clock=system_clock)


def _exporter(service: "AppContext", url: str, *, content: bool) -> "TelemetryExporter":
    try:
        from holdfast.service.telemetry.exporter import TelemetryExporter
    except ImportError as error:
        raise UserError("--otlp needs extra packages: pip install 'holdfast-context[otel]'") from error
    with convert_to_option_error():
        return TelemetryExporter(service.hub, url, content=content)


def _add_sources(service: "AppContext", *, simulate: bool, temporary: Path | None) -> None:
    """Give the dashboard the skills, knowledge and earlier reports of this machine, with --simulate a sample to run.

    Instructions and knowledge of the sample are written only to a temporary store, never to the user's own.
    """
    from holdfast.runtime.config import default_skill_roots, load_config

    here = service.workspace = Path.cwd()
    service.skill_roots = default_skill_roots(load_config(os.environ, workspace=here), os.environ, workspace=here)
    if temporary is not None:
        service.has_sample_only = True
        service.workspace = temporary / "project"
        service.workspace.mkdir()
    else:
        service.spending_cache = open_spending_cache(service.models)
    if simulate:
        from holdfast.service.sample import SamplePlayer

        library, workspace = (service.instructions, service.workspace) if temporary else (None, None)
        service.sample = SamplePlayer(service.log, service.models, instructions=library, workspace=workspace)


def _check_admin_key(host: str, records: "StoreRecords") -> None:
    """Raise UserError if other machines can reach the service and there is no admin key."""
    from holdfast.service.auth.keys import get_key_state
    from holdfast.service.auth.origins import is_loopback

    now = system_clock()
    admins = (row for row in records.all_keys() if row.scope == "admin" and get_key_state(row, now) == "usable")
    if not is_loopback(host) and next(admins, None) is None:
        raise UserError(
            f"{host!r} can be reached from other machines, but there is no key of scope admin: "
            "create one with `holdfast keys create --scope admin`, or listen on 127.0.0.1"
        )
