"""`holdfast simulate`: a provider on a local port, with no key and no network."""

from pathlib import Path

import click


@click.command("simulate")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, show_default=True, help="Port to listen on; 0 takes a free one.")
@click.option(
    "--script",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Replies, one JSON object a line; without it the last message is echoed.",
)
def command(host: str, port: int, script: Path | None) -> None:
    """Serve the APIs of Anthropic, OpenAI, Gemini and OpenRouter with simulated prompt caches until stopped.

    Prints its address at once: the base URL for Anthropic and Gemini; OpenAI's has /v1 behind it, OpenRouter's
    /api/v1. POST /_sim/clock {"advance_seconds": n} moves its time, GET /_sim/requests shows
    what it was sent, GET /_sim/cache what it keeps. Any key is accepted; one key is one workspace.

    A script has one reply a line, by turn, the same for every conversation:

    \b
      {"fault": "429;retry-after=1"}
      {"content": [{"type": "tool_use", "name": "look", "input": {"at": "x"}}]}
      {"content": "Done.", "stop_reason": "end_turn"}

    A line that has only a fault is an attempt that fails before the next line's reply. Faults: a status from 400 to 599
    with an optional retry-after, slow;seconds=N, drip;seconds=N, stall;after=N, cut;after=N, malformed;after=N,
    content-type.
    """
    import asyncio
    import os
    import signal

    from holdfast.catalog.lookup import shipped_models
    from holdfast.catalog.overrides import with_overrides
    from holdfast.runtime.config import load_config
    from holdfast.simulator.http import serve
    from holdfast.simulator.provider import SimulatedProvider
    from holdfast.simulator.script import load_script

    models = with_overrides(shipped_models(), load_config(os.environ, workspace=Path.cwd()).models)
    provider = SimulatedProvider(models=models, script=load_script(script) if script else None)

    async def run() -> None:
        server = await serve(provider, host=host, port=port)
        click.echo(server.url)
        stop = asyncio.Event()
        for wanted in (signal.SIGINT, signal.SIGTERM):
            # Also where whoever started us told us to ignore it, as shells do in the background.
            asyncio.get_running_loop().add_signal_handler(wanted, stop.set)
        await stop.wait()
        await server.aclose()
        click.echo("stopped", err=True)

    asyncio.run(run())
