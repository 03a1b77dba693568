"""Runs the clients, or those named: `python -m conformance [--latest] [CLIENT ...]`. Exit status 1 on a regression.

`--ci` runs a few clients and skips those that cannot be installed here, with a line that says why.
"""

import argparse
import datetime
import sys
import time
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from conformance.checks import check_run, compare_runs, count_model_calls, sum_cost_usd, sum_usage
from conformance.client import Client, InstallationFailed, find_newest_packages, install_client
from conformance.clients import CLIENTS
from conformance.corpus import choose_exchanges, write_corpus
from conformance.page import HEADINGS, PAGE, ClientResult, format_row, format_table, render_page
from conformance.run import MODES, run_client

CI_SECONDS_MAX = 180
"""No client is begun after this time, so that the last one is done after five minutes: 90 s to install, 30 s to run."""

CI_INSTALL_SECONDS_MAX = 90


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance", description="Run real clients through the gateway.")
    parser.add_argument("--latest", action="store_true", help="run the newest versions and report the drift")
    parser.add_argument("--ci", action="store_true", help="run the clients of CI, as far as they can be installed")
    parser.add_argument("--corpus", action="store_true", help="write the bodies of one direct run to tests/wire")
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=", ".join(client.name for client in CLIENTS))
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.clients) - {client.name for client in CLIENTS})
    if unknown:
        parser.error(f"unknown client {unknown[0]!r}; known: {', '.join(client.name for client in CLIENTS)}")
    chosen: Iterable[Client] = [c for c in CLIENTS if not options.clients or c.name in options.clients]
    if options.ci:
        chosen = install_available([client for client in chosen if client.in_ci])
    if options.corpus:
        return _write_corpus(chosen)
    results = [_run_all_modes(client, latest=options.latest) for client in chosen]
    if results:
        print(format_table([HEADINGS, *(format_row(result) for result in results)]))
    if not (options.clients or options.latest or options.ci):
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        PAGE.write_text(render_page(results, today))
    return 1 if any(result.list_regressions() for result in results) else 0


def _write_corpus(clients: Iterable[Client]) -> int:
    failed = False
    for client in clients:
        install_client(client)
        run = run_client(client, "direct", folder=client.folder / "runs" / "corpus")
        problems = list(check_run(client, run))
        if not any(choose_exchanges(run.sent)):
            problems.append("it made no model call over HTTP; bodies of WebSockets are not kept")
        if problems:
            print(f"{client.name}: not written: {problems[0]}")
            failed = True
        else:
            print(write_corpus(client, run.sent), flush=True)
    return int(failed)


def install_available(clients: Sequence[Client]) -> Iterator[Client]:
    """The clients that could be installed, each as soon as it is; says which are skipped, in one line."""
    started = time.monotonic()
    skipped: dict[str, list[str]] = {}
    unavailable: dict[str, str] = {}
    for client in clients:
        reason = unavailable.get(client.registry, "")
        if time.monotonic() - started > CI_SECONDS_MAX:
            reason = f"no time left after {CI_SECONDS_MAX} s"
        if not reason:
            try:
                install_client(client, seconds_max=CI_INSTALL_SECONDS_MAX)
            except InstallationFailed as error:
                # What one client cannot get from a registry, the next one cannot get either.
                reason = unavailable[client.registry] = str(error)
        if reason:
            skipped.setdefault(reason, []).append(client.name)
        else:
            yield client
    if skipped:
        print("clients skipped: " + "; ".join(f"{', '.join(names)}: {reason}" for reason, names in skipped.items()))


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
        cost_usd=sum_cost_usd(improved.unimproved),
        improved_cost_usd=sum_cost_usd(improved.simulated),
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
