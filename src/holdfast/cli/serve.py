"""`holdfast serve`: the HTTP service over a store."""

import click

PORT = 8787


@click.command("serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes a free one.")
@click.option("--db", metavar="URL", help="Store to serve instead of the configured one; made if it is not there.")
@click.option("--require-keys", is_flag=True, help="Refuse requests without a key also before there is one.")
@click.option("--allow-host", "allowed", metavar="NAME", multiple=True, help="A name the service is reached by.")
@click.option("--instructions", is_flag=True, help="Keep the instructions of agents here too; each needs a key.")
@click.option(
    "--otlp", metavar="URL", help="Tell an OpenTelemetry collector there what happens, such as http://127.0.0.1:4318."
)
@click.option("--otlp-content", is_flag=True, help="Tell it also what was said, credentials masked.")
def command(
    *,
    host: str,
    port: int,
    db: str | None,
    require_keys: bool,
    allowed: tuple[str, ...],
    instructions: bool,
    otlp: str | None,
    otlp_content: bool,
) -> None:
    """Serve cache states, their controls, figures and a live feed over HTTP until stopped.

    Prints its address at once. On this machine no key is needed until `holdfast keys create` has made one; on any
    other address the service does not start without a key of scope admin. /openapi.json describes all routes.
    """
    import contextlib
    import os

    from holdfast.cli.stores import configured_models, open_records
    from holdfast.errors import UserError

    try:
        from holdfast.service.app import make_app
        from holdfast.service.serving import bind, run_until_told, url_of
    except ImportError as error:
        raise UserError("the service needs its packages: pip install 'holdfast[server]'") from error
    from holdfast.cli.instructions import library_of
    from holdfast.clock import system_clock
    from holdfast.service.access import state_of
    from holdfast.service.exporting import Exporter, headers_of
    from holdfast.service.hosts import is_loopback
    from holdfast.service.service import Service
    from holdfast.service.table import ROUTES

    with open_records(db) as (log, records):
        now = system_clock()
        admins = (row for row in records.all_keys() if row.scope == "admin" and state_of(row, now) == "usable")
        if not is_loopback(host) and next(admins, None) is None:
            raise UserError(
                f"{host!r} can be reached by others, and there is no key of scope admin: "
                "make one with `holdfast keys create --scope admin`, or listen on 127.0.0.1"
            )
        service = Service(
            log,
            records,
            configured_models(),
            require_keys=require_keys or not is_loopback(host),
            library=library_of(log, wanted=instructions),
        )
        headers = headers_of(os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""))
        exporter = Exporter(service.hub, otlp, headers=headers, content=otlp_content) if otlp else None
        app = make_app(service, ROUTES, allowed_hosts=(host, *allowed))
        with contextlib.closing(bind(host, port)) as bound:
            click.echo(url_of(bound, host))
            run_until_told(app, service, bound, exporter=exporter)
    click.echo("stopped", err=True)
