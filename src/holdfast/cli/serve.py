"""`holdfast serve`: the HTTP service over a store."""

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.events.records import Records
    from holdfast.service.exporting import Exporter
    from holdfast.service.service import Service

PORT = 8787


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes a free one.")
@click.option("--db", metavar="URL", help="Store to serve instead of the configured one; made if it is not there.")
@click.option("--require-keys", is_flag=True, help="Refuse requests without a key also before there is one.")
@click.option("--simulated", is_flag=True, help="Count simulated sessions among the figures too.")
@click.option("--allow-host", "allowed", metavar="NAME", multiple=True, help="A name the service is reached by.")
@click.option("--instructions", is_flag=True, help="Keep the instructions of agents here too; each needs a key.")
@click.option(
    "--otlp", metavar="URL", help="Tell an OpenTelemetry collector there what happens, such as http://127.0.0.1:4318."
)
@click.option("--otlp-content", is_flag=True, help="Tell it also what was said, credentials masked.")
@click.option(
    "--upstream",
    "upstreams",
    metavar="PROVIDER=URL",
    multiple=True,
    help="Where the gateway sends a provider's requests.",
)
@click.option(
    "--simulate",
    is_flag=True,
    help="Send them to the built-in simulator, and let the page play a sample: no key, no network, and a store that is "
    "gone at the end unless --db.",
)
@click.option("--improve", is_flag=True, help="Mend requests so that the cache holds, and record what was changed.")
@click.option(
    "--volatile", metavar="NAME=REGEX", multiple=True, help="Text of system prompts that --improve moves to the end."
)
@click.option(
    "--keep-alive",
    "keep_alive_usd",
    metavar="USD",
    type=click.FloatRange(min=0, min_open=True),
    help="With --improve, keep caches of silent clients alive, for this much a day at most.",
)
@click.option("--drain", is_flag=True, help="Read a reply on whose client has left, to know what it took.")
@click.option(
    "--grants", metavar="FILE", help="What keys of scope gateway stand for and may spend; yours alone (0600)."
)
def command(
    *,
    host: str,
    port: int,
    db: str | None,
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
) -> None:
    """Serve a page with cache states, their controls, prompts and figures, and the gateway, over HTTP until stopped.

    Prints its address at once: open it in a browser. On this machine no key is needed until `holdfast keys create` has
    made one; on any other address the service does not start without a key of scope admin. /openapi.json describes all
    routes.

    The gateway speaks the providers' own APIs below /anthropic, /openai, /gemini and /openrouter, and records what
    goes through: a client with a base URL setting needs no other change.
    """
    from holdfast.cli.stores import configured_models, open_records
    from holdfast.errors import UserError

    try:
        from holdfast.cli.serve_gateway import Wishes, open_gateway
        from holdfast.service.app import make_app
        from holdfast.service.serving import bind, run_until_told, url_of
    except ImportError as error:
        raise UserError("the service needs its packages: pip install 'holdfast[server]'") from error
    from holdfast.cli.instructions import library_of
    from holdfast.service.hosts import is_loopback
    from holdfast.service.service import Service
    from holdfast.service.table import ROUTES

    with _placed(db, passing=simulate) as (address, passing), open_records(address) as (log, records):
        _check_reach(host, records)
        library = library_of(log, wanted=instructions, for_sample=passing is not None)
        needed = require_keys or not is_loopback(host)
        service = Service(log, records, configured_models(), require_keys=needed, library=library)
        # Where nothing but a sample is played, it is what the figures are of.
        service.simulated = simulated or simulate
        _furnish(service, simulate=simulate, passing=passing)
        exporter = _exporter(service, otlp, content=otlp_content) if otlp else None
        wishes = Wishes(simulate, grants, improve, volatile, keep_alive_usd, drain, address)
        with open_gateway(service, upstreams, wishes) as fronted:
            app = make_app(service, ROUTES, allowed_hosts=(host, *allowed), fronted=fronted)
            with contextlib.closing(bind(host, port)) as bound:
                click.echo(url_of(bound, host))
                run_until_told(app, service, bound, exporter=exporter)
    click.echo("stopped", err=True)


@contextlib.contextmanager
def _placed(db: str | None, *, passing: bool) -> Iterator[tuple[str | None, "Path | None"]]:
    """Which store to serve; and where it is one that is gone at the end, because no other is named, its folder."""
    if db is not None or not passing:
        yield db, None
        return
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="holdfast-serve-") as folder:
        yield str(Path(folder) / "log.db"), Path(folder)


def _exporter(service: "Service", url: str, *, content: bool) -> "Exporter":

    from holdfast.service.exporting import Exporter, headers_of

    headers = headers_of(os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
    return Exporter(service.hub, url, headers=headers, content=content)


def _furnish(service: "Service", *, simulate: bool, passing: "Path | None") -> None:
    """What the page shows besides: the skills of this machine, what is known here, and a sample that it may play.

    Instructions and knowledge of the sample go where all is gone at the end, and nowhere else.
    """
    from pathlib import Path

    from holdfast.runtime.config import load_config
    from holdfast.runtime.skill_folders import usual_roots

    here = service.workspace = Path.cwd()
    service.skill_roots = usual_roots(load_config(os.environ, workspace=here), os.environ, workspace=here)
    if passing is not None:
        service.keeps_sample_only = True
        service.workspace = passing / "project"
        service.workspace.mkdir()
    if simulate:
        from holdfast.service.sample import SamplePlayer

        library, workspace = (service.library, service.workspace) if passing else (None, None)
        service.sample = SamplePlayer(service.log, service.models, library=library, workspace=workspace)


def _check_reach(host: str, records: "Records") -> None:
    """Raises UserError where others can reach the service, and nobody has the key of an admin."""
    from holdfast.clock import system_clock
    from holdfast.errors import UserError
    from holdfast.service.access import state_of
    from holdfast.service.hosts import is_loopback

    now = system_clock()
    admins = (row for row in records.all_keys() if row.scope == "admin" and state_of(row, now) == "usable")
    if not is_loopback(host) and next(admins, None) is None:
        raise UserError(
            f"{host!r} can be reached by others, and there is no key of scope admin: "
            "make one with `holdfast keys create --scope admin`, or listen on 127.0.0.1"
        )
