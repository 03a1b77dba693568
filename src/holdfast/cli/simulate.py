"""`holdfast simulate`: serves a provider simulator on a local port; needs no key and no network."""

from pathlib import Path

import click

from holdfast.cli.open_store import load_configured_models
from holdfast.cli.options import host_option, port_option


@click.command("simulate")
@host_option
@port_option(0)
@click.option(
    "--script",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Replies, one JSON object per line. Default: echo the last message.",
)
def command(host: str, port: int, script: Path | None) -> None:
    """Serve the APIs of Anthropic, OpenAI, Gemini and OpenRouter with simulated prompt caches until stopped.

    Prints its address at once. This is the base URL for Anthropic and Gemini; append /v1 for OpenAI and /api/v1 for
    OpenRouter. POST /_sim/clock {"advance_seconds": n} advances its clock, GET /_sim/requests shows the requests it
    received, GET /_sim/cache what is cached. Any key is accepted; each key is its own workspace.

    A script has one reply per line, one for each turn, the same for every conversation:

    \b
      {"fault": "429;retry-after=1"}
      {"content": [{"type": "tool_use", "name": "look", "input": {"at": "x"}}]}
      {"content": "Done.", "stop_reason": "end_turn"}

    A line with only a fault is a failed attempt before the next line's reply. Faults: a status from 400 to 599
    with an optional retry-after, slow;seconds=N, drip;seconds=N, stall;after=N, cut;after=N, malformed;after=N,
    content-type.
    """
    import asyncio
    import signal

    from holdfast.simulator.provider import SimulatedProvider
    from holdfast.simulator.script import load_script
    from holdfast.simulator.server import serve_simulator

    provider = SimulatedProvider(models=load_configured_models(), script=load_script(script) if script else None)

    async def run() -> None:
        server = await serve_simulator(provider, host=host, port=port)
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Install a handler even if the signal is ignored: shells start background jobs with SIGINT ignored.
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        # Last: whoever has read the address may stop the server at once.
        click.echo(server.url)
        await stop.wait()
        await server.aclose()
        click.echo("stopped", err=True)

    asyncio.run(run())
