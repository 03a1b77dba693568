"""Runs the clients, or those named: `python -m conformance [--latest] [CLIENT ...]`. Exit status 1 on a regression."""

import argparse
import datetime
import sys
import time

from msgspec.structs import replace

from conformance.checks import check_run, compare_runs, count_model_calls, sum_cost_usd, sum_usage
from conformance.client import Client, InstallationFailed, find_newest_packages, install_client
from conformance.clients import CLIENTS
from conformance.page import HEADINGS, PAGE, ClientResult, format_row, format_table, render_page
from conformance.run import MODES, run_client


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance", description="Run real clients through the gateway.")
    parser.add_argument("--latest", action="store_true", help="run the newest versions and report the drift")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=", ".join(client.name for client in CLIENTS))
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.clients) - {client.name for client in CLIENTS})
    if unknown:
        parser.error(f"unknown client {unknown[0]!r}; known: {', '.join(client.name for client in CLIENTS)}")
    results = [
        _run_all_modes(client, latest=options.latest)
        for client in CLIENTS
        if client.name in options.clients or not options.clients
    ]
    print(format_table([HEADINGS, *(format_row(result) for result in results)]))
    if not options.clients and not options.latest:
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        PAGE.write_text(render_page(results, today))
    return 1 if any(result.list_regressions() for result in results) else 0


def _run_all_modes(client: Client, *, latest: bool) -> ClientResult:
    started = time.monotonic()
    try:
        if latest:
            pinned, client = client, replace(client, packages=find_newest_packages(client), folder_name="latest")
            for (name, old), (_, new) in zip(pinned.packages, client.packages, strict=True):
                print(
                    f"{client.name}: {name} {old}" + (" is the newest" if old == new else f" is pinned, newest {new}")
                )
        install_client(client)
    except InstallationFailed as error:
        print(f"{client.name}: not installed: {error}", flush=True)
        return ClientResult(client, "not installed", dict.fromkeys(MODES, (str(error),)))
    runs = [run_client(client, mode, folder=client.folder / "runs" / mode) for mode in MODES]
    direct, gateway, improved = runs
    result = ClientResult(
        client,
        client.packages[0][1],
        {run.mode: tuple(check_run(client, run)) for run in runs},
        tuple(compare_runs(direct, gateway, improved)),
        calls=count_model_calls(gateway),
        read_share=sum_usage(gateway).read_share,
        improved_read_share=sum_usage(improved).read_share,
        cost_usd=sum_cost_usd(gateway),
        improved_cost_usd=sum_cost_usd(improved),
        seconds=time.monotonic() - started,
    )
    regressions = result.list_regressions()
    outcome = "FAILED" if regressions else "ok"
    print(f"{client.name} {result.version}: {outcome} in {result.seconds:.0f} s", flush=True)
    known = [f"known: {line}" for line in result.list_problems() if line not in regressions]
    for line in (*regressions, *known):
        print(f"  {line}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
