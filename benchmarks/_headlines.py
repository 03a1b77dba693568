"""The headline figures as one table: with the package of an earlier commit, with this one, the bar, and the peers.

Below it are tables of how figures grow: with messages, sessions, units and bytes. Rows come from the benchmarks
themselves; each runs once with either package, in the same run.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from benchmarks import (
    analytics,
    audit,
    compaction_speed,
    imports,
    improve_cpu,
    resume,
    retrieval_speed,
    serve_memory,
    session_counts,
    skills,
    startup,
    turn,
)
from benchmarks._calls import CALLS_A_SHORT_SESSION
from benchmarks._packages import CannotMeasure, check_out, run_in_child
from benchmarks._results import UnknownFigure, describe_benchmark, find_figure

QUESTION = "The headline figures before and now in one run, with the bar and the peers, and how they grow."
# The last commit before one of these was made faster on purpose, except the start of `holdfast mcp`.
BEFORE = "3de528e9"
NOT_MEASURED = "not measured"
SETTINGS = {"HOLDFAST_BENCH_WITHOUT_SERVER": "1"}
SHORTENED = ("analytics",)
"""Benchmarks of which these settings leave a part out, so that their sections are not kept."""

KeepSection = Callable[[str, str, list[str]], None]


class Headline(NamedTuple):
    """A row of the table. Figures are named as in RESULTS.md, without the section, which is the benchmark."""

    name: str
    benchmark: str
    ours: str
    unit: str
    bar: str = ""
    peers: Mapping[str, str] = {}


_TURN_PEERS = ("anthropic", "langchain-anthropic", "pydantic-ai", "litellm")
_SHORTEST, _LONGEST = f"{turn.LENGTHS[0]} messages", f"{resume.LENGTHS[-1]:,} messages"
HEADLINES = (
    Headline(
        f"a turn, {_SHORTEST}, processor time",
        "turn",
        f"holdfast, {_SHORTEST} #2",
        "ms",
        f"{turn.MILLISECONDS_MAX} ms",
        peers={name: f"{name}*, {_SHORTEST} #2" for name in _TURN_PEERS},
    ),
    *(
        Headline(
            f"{what}, {_LONGEST}",
            "resume",
            f"holdfast, {_LONGEST}{number}",
            "ms",
            bar,
            {name: f"{name}*, {_LONGEST}{number}" for name in ("anthropic", "pydantic-ai")},
        )
        for what, number, bar in (
            ("resume", "", ""),
            ("first message after it", " #2", f"{resume.MILLISECONDS_MAX} ms together"),
        )
    ),
    Headline(
        "`import holdfast; holdfast.Session`, processor time",
        "imports",
        "import holdfast; holdfast.Session, CPU ms, modules",
        "ms",
        f"{imports.MILLISECONDS_MAX} ms",
        {"anthropic": "import anthropic; anthropic.Anthropic, CPU ms, modules"},
    ),
    *(
        Headline(
            f"the longest turn with a compaction, {case.tokens:,} tokens",
            "compaction_speed",
            f"{case.tokens:,} tokens*: the longest of * turns with a compaction",
            "ms",
            f"{compaction_speed.TURN_MILLISECONDS_MAX} ms",
        )
        for case in compaction_speed.CASES
    ),
    *(
        Headline(f"{name}, processor time", "session_counts", f"{name}, s of CPU", "s", bar)
        for command, bar in session_counts.BARS.items()
        for name in [f"{command}, {session_counts.SESSIONS:,} sessions of {CALLS_A_SHORT_SESSION} calls"]
    ),
    *(
        Headline(
            f"{name}, {analytics.EVENTS:,} events",
            "analytics",
            f"SQLite, {row}, ms with a tenth, ms, ratio #2",
            "ms",
            f"{analytics.MILLISECONDS_MAX} ms",
        )
        for name, row in (
            ("first call of `/api/cache`", "cache states, first call"),
            ("`/analytics/regret` of all time", "regret, all time"),
        )
    ),
    *(
        Headline(
            f"`holdfast mcp` to `initialize`, {what}",
            "startup",
            f"holdfast mcp to `initialize`, CPU s, wall s, MB #{number}",
            unit,
            f"{bar} {unit}",
            {"a minimal server": f"minimal MCP server to `initialize`, CPU s, wall s, MB #{number}"},
        )
        for what, number, unit, bar in (
            ("processor time", 1, "s", startup.MCP_CPU_SECONDS_MAX),
            ("memory", 3, "MB", startup.MCP_MEGABYTES_MAX),
        )
    ),
    *(
        Headline(
            f"a search by words, {size:,} units",
            "retrieval_speed",
            f"holdfast, words, {size:,} units",
            "ms",
            "twice bm25s" if size >= retrieval_speed.BAR_UNITS_MIN else "",
            peers={"bm25s": f"bm25s*, {size:,} units"},
        )
        for size in retrieval_speed.SIZES
    ),
    *(
        Headline(
            f"building the index by words and meaning, {size:,} units",
            "retrieval_speed",
            f"holdfast, words and meaning, {size:,} units #3",
            "ms",
            f"{retrieval_speed.BUILD_MILLISECONDS_MAX[size]:,} ms",
        )
        for size in retrieval_speed.SEMANTIC_SIZES[1:]
    ),
    Headline(
        f"checking {skills.SKILLS:,} skills, processor time",
        "skills",
        f"holdfast, {skills.SKILLS:,} skills checked",
        "ms",
        peers={"skills-ref": f"skills-ref*, {skills.SKILLS:,} skills checked"},
    ),
    *(
        Headline(
            f"`holdfast audit`, {size:,} transcripts, {which}",
            "audit",
            f"{size:,} transcripts, holdfast audit, {which}",
            "s",
            "the fastest ccusage",
            {f"ccusage {version}": f"{size:,} transcripts, ccusage {version}" for version in audit.CCUSAGE_VERSIONS},
        )
        for size in audit.SIZES
        for which in ("the first", "again")
    ),
    *(
        Headline(
            f"memory of `holdfast serve`, {what}",
            "serve_memory",
            f"after {serve_memory.CALLS:,} calls #{number}",
            "MB",
            bar,
        )
        for what, number, bar in (("front", 1, f"{serve_memory.FRONT_MEGABYTES_MAX} MB"), ("recorder", 2, ""))
    ),
)


class Growth(NamedTuple):
    """A table with a column for each size and a row for each program.

    In the name of a figure, `{size}` stands for the size; `{place}` counts the numbers of a row that has a figure and
    its size for each.
    """

    what: str
    benchmark: str
    sizes: Sequence[str]
    figures: Mapping[str, str]


GROWTHS = (
    Growth(
        "messages before a turn, ms of processor time",
        "turn",
        [f"{length:,}" for length in turn.LENGTHS],
        {"holdfast": "holdfast, {size} messages #2"} | {name: f"{name}*, {{size}} messages #2" for name in _TURN_PEERS},
    ),
    Growth(
        "messages of a resumed session, ms",
        "resume",
        [f"{length:,}" for length in resume.LENGTHS],
        {
            f"{name}, {what}": f"{pattern}, {{size}} messages{number}"
            for name, pattern in (
                ("holdfast", "holdfast"),
                ("anthropic", "anthropic*"),
                ("pydantic-ai", "pydantic-ai*"),
            )
            for what, number in (("resume", ""), ("first message", " #2"))
        },
    ),
    Growth(
        f"stored sessions of {CALLS_A_SHORT_SESSION} calls, s of processor time",
        "session_counts",
        [f"{session_counts.SESSIONS // step:,}" for step in session_counts.STEPS],
        {
            command: f"{command}, {{size}} sessions of {CALLS_A_SHORT_SESSION} calls, s of CPU"
            for command in session_counts.BARS
        },
    ),
    Growth(
        "units, ms of processor time",
        "retrieval_speed",
        [f"{size:,}" for size in retrieval_speed.SIZES],
        {
            "holdfast, a search by words": "holdfast, words, {size} units",
            "bm25s": "bm25s*, {size} units",
            "holdfast, a change and a search": "holdfast, words, {size} units #2",
        },
    ),
    Growth(
        "body of a forwarded call, ms of processor time",
        "improve_cpu",
        list(improve_cpu.SIZES),
        {
            name: f"{name}: ms a call #{{place}}"
            for name in ("holdfast serve", "holdfast serve --improve", *improve_cpu.PEERS)
        },
    ),
)


def measure(keep_section: KeepSection, before: str = BEFORE) -> list[str]:
    """The lines of the tables; prints the rows of the benchmarks meanwhile, and keeps those with this package."""
    then, now = dict[str, str](), dict[str, str]()
    compared = dict.fromkeys(headline.benchmark for headline in HEADLINES)
    for name in dict.fromkeys([*compared, *(growth.benchmark for growth in GROWTHS)]):
        if name in compared:
            then[name] = _run(name, before)
        now[name] = _run(name)
        if name not in SHORTENED:
            keep_section(
                name, describe_benchmark(importlib.import_module(f"benchmarks.{name}")), now[name].splitlines()
            )
    return [*format_table(before, HEADLINES, then, now), *format_growth(GROWTHS, now)]


def _run(name: str, before: str | None = None) -> str:
    """The section of a benchmark with the package of a commit; its last row says why, if it ended early."""
    lines = list[str]()
    try:
        for row, figure in run_in_child(name, check_out(before) if before else None, SETTINGS):
            lines.append(f"- {row}: {figure}")
            print(f"{name}, {before or 'now'}: {row}: {figure}", flush=True)
    except CannotMeasure as failure:
        lines.append(f"- not measured: {failure}")
        print(f"{name}, {before or 'now'}: not measured: {failure}", flush=True)
    return "\n".join(lines)


def format_table(
    before: str, headlines: Sequence[Headline], then: Mapping[str, str], now: Mapping[str, str]
) -> list[str]:
    lines = [f"| | before ({before}) | now | bar | peers |", "| --- | --: | --: | --: | --- |"]
    for headline in headlines:
        cells = [_format_cell(headline, headline.ours, rows) for rows in (then, now)]
        peers = [f"{name} {_format_cell(headline, row, now)}" for name, row in headline.peers.items()]
        lines.append(f"| {headline.name} | {' | '.join(cells)} | {headline.bar} | {', '.join(peers)} |")
    return lines


def format_growth(growths: Sequence[Growth], now: Mapping[str, str]) -> list[str]:
    lines = list[str]()
    for growth in growths:
        lines += ["", f"| {growth.what} | {' | '.join(growth.sizes)} |", "| --- |" + " --: |" * len(growth.sizes)]
        for name, figure in growth.figures.items():
            wanted = [figure.format(size=size, place=2 * at + 1) for at, size in enumerate(growth.sizes)]
            cells = [_find_or_explain(now, f"{growth.benchmark} / {row}") for row in wanted]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _format_cell(headline: Headline, row: str, sections: Mapping[str, str]) -> str:
    figure = _find_or_explain(sections, f"{headline.benchmark} / {row}")
    return figure if figure == NOT_MEASURED else f"{figure} {headline.unit}"


def _find_or_explain(sections: Mapping[str, str], name: str) -> str:
    try:
        return find_figure(sections, name)
    except UnknownFigure:
        return NOT_MEASURED
