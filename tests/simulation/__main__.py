"""`python -m tests.simulation --seed N` replays one seed and prints its trace; `--seeds N` runs many."""

import gc
import tempfile
import time
from pathlib import Path

import click
from tests.simulation.world import run_seed


@click.command()
@click.option("--seed", type=int, help="Run this one, and print its trace.")
@click.option("--seeds", "count", type=int, default=100, show_default=True, help="Run so many.")
@click.option("--first", type=int, default=0, show_default=True, help="The first of them.")
def main(seed: int | None, count: int, first: int) -> None:
    """Run the gateway, its recorders, the store and a provider in simulated time while parts of them fail."""
    shared_memory = Path("/dev/shm")
    failed: list[int] = []
    started, answered, interrupted = time.process_time(), 0, 0
    gc.freeze()
    seeds = range(first, first + count) if seed is None else (seed,)
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as folder:
        for number in seeds:
            try:
                report = run_seed(number, Path(folder) / "run")
            except Exception as error:  # noqa: BLE001 - every failure of a seed is reported, and the next one is run
                failed.append(number)
                click.echo(f"seed {number}: {type(error).__name__}: {error}")
                lines = getattr(error, "__notes__", [])
            else:
                answered, interrupted = answered + report.answered, interrupted + report.interrupted
                lines = list(report.trace)
            if seed is not None:
                click.echo("\n".join(lines))
    click.echo(
        f"{len(seeds)} seeds, {answered} calls answered, {interrupted} interrupted or refused, {len(failed)} seeds "
        f"failed, {time.process_time() - started:.0f} s of processor time"
    )
    raise SystemExit(bool(failed))


main()
