"""Rules for the figures that pages quote. Each check takes the root of a tree and returns one line per offender."""

import re
from pathlib import Path

from benchmarks._results import MARK, find_stale_marks, list_pages, read_sections

# Figures that nothing measures, by page: limits, settings, rules of providers, arithmetic, sizes of inputs.
STATED = {
    "docs/audit.md": ("took 1 % of the spending", "save 1 % or more", "1.1 GB"),
    "docs/concepts/breakpoints.md": ("1.15 times the prefix",),
    "docs/deploy.md": ("agree within 50 ms", "34 MB for 100,000", "default of 128 MB"),
    "docs/gateway-forwarding.md": ("100 KB | 1 MB |",),
    "docs/gateway.md": ("at least 99 % must", "at most 1.1 times"),
    "docs/instructions-rollout.md": ("95 % of the needed units",),
    "docs/library/cost.md": ("12 times the price", "at most 256 and 32 MB"),
    "docs/library/long-sessions.md": ("80 % of the context window", "80 % of the window"),
    "docs/library/skills.md": ("16 MB of weights",),
    "docs/library/tools.md": ("exceed 2 GB",),
    "docs/reliability.md": ("at 1 MB,",),
    "docs/scaling.md": (
        "16 calls a second in all",
        "up to 200 ms after it",
        "at most 20 times a second",
        "71 GB",
        "7.1 TB a day",
        "at most 50 times a second",
    ),
    "docs/security.md": ("bar 90 %", "above 100 %"),
    "docs/service.md": ("80 % or more of a key's budget",),
}
# `make clients` writes it, with the versions of the clients.
GENERATED_PAGES = {"docs/clients.md"}

_NUMBER = r"(?<![\w.,$])[-+]?\d[\d,]*(?:\.\d+)?"
_RATE = r"(?:calls|requests|recalls|events|tokens|turns|searches)(?:/s| (?:a|per) second)"
_FIGURE = re.compile(rf"{_NUMBER}(?: (?:and|to|or) {_NUMBER})* ?(?:µs|ms|MB|GB|TB|%|times|x|{_RATE})(?!\w)")


def stale_figures(root: Path) -> list[str]:
    """Marked figures that differ from RESULTS.md or are not in it, and marks that would hide what follows."""
    sections = read_sections((root / "benchmarks/RESULTS.md").read_text())
    offenders = []
    for path in list_pages(root):
        page, text = path.relative_to(root).as_posix(), path.read_text()
        offenders += [f"{page}: {problem}" for problem in find_stale_marks(text, sections)]
        # A comment at the start of a line is a block of HTML: the line would be no Markdown any more.
        offenders += [f"{page}: a line starts with a mark" for _ in re.findall(r"(?m)^ *<!-- result:", text)]
        leftover = re.findall(r"<!-- (?:result|end)\b.*", MARK.sub("", text))
        offenders += [f"{page}: a mark without its pair: {part}" for part in leftover]
    return offenders


def unmarked_figures(root: Path) -> list[str]:
    """Figures with a unit of time, memory, rate or share that are neither marked nor stated above, by page and line.

    Blocks of code are left out, since tests run them. A unit in another cell of a table is not seen.
    """
    offenders = []
    for path in list_pages(root):
        page = path.relative_to(root).as_posix()
        if page in GENERATED_PAGES:
            continue
        # What was looked at leaves its line behind, so that the others keep their numbers.
        text = re.sub(r"(?ms)^ *```.*?^ *```$", lambda block: "\n" * block[0].count("\n"), path.read_text())
        text = re.sub(r"`[^`\n]*`", "``", MARK.sub("", text))
        for stated in STATED.get(page, ()):
            if stated not in text:
                offenders.append(f"{page}: does not say {stated!r} any more: take it out of STATED")
            text = text.replace(stated, "")
        for number, line in enumerate(text.splitlines(), 1):
            offenders += [f"{page}:{number}: {figure[0]!r} is not marked" for figure in _FIGURE.finditer(line)]
    return offenders
