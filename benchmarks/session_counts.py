"""How `report` and `gateway spend` grow with the number of stored sessions, in seconds of CPU time.

The first report audits the logs of the sessions that spent most; a later one takes what it found, but for changed logs.
"""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks._calls import (
    CALLS_A_SESSION,
    CALLS_A_SHORT_SESSION,
    DAY_SECONDS,
    EVENTS_A_CALL,
    START,
    fill,
    short_session,
)
from holdfast.stores.event_log import DatabaseEventLog
from holdfast.stores.open import open_store

SESSIONS = int(os.environ.get("HOLDFAST_BENCH_SESSIONS", "100000"))
STEPS = (100, 10, 1)
DAYS = 90
SESSIONS_AN_APPEND = 500
COMMANDS = {"report, the first": ("report",), "report, again": ("report",), "gateway spend": ("gateway", "spend")}
BARS = {"report, the first": "", "report, again": "0.5 s", "gateway spend": "0.5 s"}
LONG_SESSIONS = 1_000


def run() -> Iterator[tuple[str, str]]:
    """Rows of name and figure. A command runs as a process of its own, so its start is part of the figure."""
    with TemporaryDirectory() as folder:
        for sessions in (0, *(SESSIONS // step for step in STEPS)):
            path = Path(folder) / f"{sessions}.db"
            with open_store(path) as store:
                fill_with_short_sessions(store, sessions)
            yield from _measure_commands(path, f"{sessions:,} sessions of {CALLS_A_SHORT_SESSION} calls")
        path = Path(folder) / "long.db"
        with open_store(path) as store:
            fill(store, LONG_SESSIONS * CALLS_A_SESSION * EVENTS_A_CALL, days=DAYS)
        yield from _measure_commands(path, f"{LONG_SESSIONS:,} sessions of {CALLS_A_SESSION} calls")


def _measure_commands(path: Path, sessions: str) -> Iterator[tuple[str, str]]:
    for name, words in COMMANDS.items():
        yield f"{name}, {sessions}, s of CPU", f"{_measure_cpu(*words, db=path):.2f}"
    path.unlink()


def fill_with_short_sessions(store: DatabaseEventLog, sessions: int) -> None:
    for first in range(0, sessions, SESSIONS_AN_APPEND):
        numbers = range(first, min(first + SESSIONS_AN_APPEND, sessions))
        batch = [short_session(number, at=START + number * DAYS * DAY_SECONDS / sessions) for number in numbers]
        store.append([event for events in batch for event in events]).result()


def _measure_cpu(*words: str, db: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "holdfast", *words, "--db", str(db)]
    environ = os.environ | {"HOLDFAST_HOME": str(db.with_suffix(".home"))}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    for name, figure in run():
        sys.stdout.write(f"{name:<60} {figure:>8}\n")
        sys.stdout.flush()
