"""The matrix of a conformance run: printed, and written as docs/clients.md."""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path

import msgspec

from conformance.client import Client
from conformance.run import MODES, Mode

PAGE = Path(__file__).resolve().parents[1] / "docs" / "clients.md"
_INTRODUCTION = """\
# Clients

`make clients` writes this page. It installs the clients below from npm and PyPI at these versions, and runs a
conversation of two turns with each: the simulated model calls the client's own tools, which read and change a file.
Each client runs three times: directly against the simulator, through `holdfast serve`, and through `holdfast serve
--improve`. Recording taps before and after the gateway compare the bytes.

**These clients were never tried against a live provider.** The simulator behaves as the providers document, and may be
wrong where they differ from their documentation. `scripts/smoke_live.py PROVIDER` makes two calls with your key, and
two more through the gateway, for a few cents.
"""
_CHECKS = """\
A run is `ok` if the client exits with 0, shows the model's answers and has changed the file; no response has a status
of 400 or more; every model call is recorded with the usage that the simulator reported; the conversation is one
session, sub-agents are its children, and requests for titles and the like are sessions of their own; no cached prefix
is lost, except for the breaks that the client causes itself; and responses arrive byte for byte. Without `--improve`,
requests are forwarded byte for byte; with it, the run must not cost more than the very requests that the client sent
would have cost unchanged. Both costs are of the improved run, at list prices, with the simulator's cache.

A `known problem` is listed below with what was seen and fails nothing; one that no longer occurs does.

`python -m conformance NAME ...` runs some clients, `--ci` those of CI, `make clients LATEST=1` all of them at their
newest versions; none of these changes this page. Bodies, output and the gateway's log of the latest run are below
`build/clients/pinned/NAME/runs/`. `python -m conformance --corpus` rewrites `tests/wire/`: bodies of each client,
long texts replaced by their length, which `tests/wire/test_wire.py` reads without loss.

`gemini -r latest` of this version sends each function response of the resumed conversation twice. The API refuses a
turn with more responses than calls, and so does the simulator, so the script begins two conversations instead.
"""


_CONNECT = """\
`holdfast connect NAME --write` writes the setting of `claude-code`, `codex`, `gemini` (Gemini CLI), `opencode` or
`aider` into the client's own file, and `--undo` restores it; [the gateway](gateway.md#connect-a-client) says more.
"""


class ClientResult(msgspec.Struct, frozen=True):
    """`problems` has those of each run; `comparison` those between the runs."""

    client: Client
    version: str
    problems: Mapping[Mode, tuple[str, ...]]
    comparison: tuple[str, ...] = ()
    calls: int = 0
    read_share: float = 0.0
    improved_read_share: float = 0.0
    cost_usd: Decimal = Decimal(0)
    improved_cost_usd: Decimal = Decimal(0)
    seconds: float = 0.0

    def list_problems(self) -> list[str]:
        lines = [f"{mode}: {problem}" for mode, problems in self.problems.items() for problem in problems]
        return [*lines, *self.comparison]

    def list_regressions(self) -> list[str]:
        """Problems that are not known, and known ones that no longer occur, so that none stays listed for ever."""
        problems, known = self.list_problems(), self.client.known_problems
        unknown = [problem for problem in problems if not any(text in problem for text in known)]
        gone = [text for text in known if not any(text in problem for problem in problems)]
        return unknown + [f"no longer seen, remove it from the known problems: {text}" for text in gone]

    def summarize_run(self, mode: Mode) -> str:
        problems = [problem for problem in self.list_problems() if problem.startswith(f"{mode}:")]
        # Improved runs are compared with the others.
        problems += self.comparison if mode == "improve" else ()
        if not problems:
            return "ok"
        return "known problem" if not set(problems) & set(self.list_regressions()) else "FAILED"


HEADINGS = ("client", "version", *MODES, "calls", "read", "cost", "read improved", "cost improved")


def format_row(result: ClientResult) -> tuple[str, ...]:
    return (
        result.client.name,
        result.version,
        *map(result.summarize_run, MODES),
        str(result.calls),
        f"{result.read_share:.0%}",
        f"${result.cost_usd:.4f}",
        f"{result.improved_read_share:.0%}",
        f"${result.improved_cost_usd:.4f}",
    )


def format_table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = rows
    lines = [head, ["---"] * len(head), *others]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def render_page(results: Sequence[ClientResult], date: str) -> str:
    matrix = format_table([HEADINGS, *(format_row(result) for result in results)])
    settings = [
        (
            result.client.name,
            ", ".join(f"{name} {version}" for name, version in result.client.packages),
            result.client.setting,
        )
        for result in results
    ]
    pointers = format_table([("client", "packages", "setting"), *settings])
    problems = "".join(f"- {result.client.name}, {line}\n" for result in results for line in result.list_problems())
    failed = f"\n## Known problems\n\n{problems}" if problems else ""
    return (
        f"{_INTRODUCTION}\n## Results\n\nRun on {date}.\n\n{matrix}\n\n{_CHECKS}{failed}\n"
        f"## How to point a client at Holdfast\n\n{_CONNECT}\n{pointers}\n"
    )
