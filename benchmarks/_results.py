"""Figures of RESULTS.md, and the marks by which pages quote them.

A page quotes a figure between two comments, which neither GitHub nor the site shows:

    <!-- result: turn / holdfast, 10 messages #2 -->2.5 ms<!-- end -->

Between them is one number, the second of that row; without `#` it is the first. `*` in the name of a row stands for
anything, such as the version of a peer.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("RESULTS.md")

MARK = re.compile(r"<!-- result: (?P<figure>.+?) -->(?P<text>[^\n]*?)<!-- end -->")
_NUMBER = re.compile(r"(?<![\w.,])[-+]?\d+(?:,\d{3})*(?:\.\d+)?")


class UnknownFigure(LookupError):
    """RESULTS.md has no such figure, or more than one."""


def describe_benchmark(module: ModuleType) -> str:
    """What a benchmark measures: the line below the name of its section."""
    return (module.__doc__ or "").splitlines()[0]


def read_sections(text: str) -> dict[str, str]:
    return dict(section.split("\n", 1) for section in text.split("\n## ")[1:])


def read_rows(section: str) -> list[str]:
    """The rows of a section, as `name: figure`."""
    return re.findall(r"(?m)^- (.+)$", section)


def find_figure(sections: Mapping[str, str], name: str) -> str:
    """The number with this name, as it is written in its row.

    Raises UnknownFigure.
    """
    section, _, row = name.partition(" / ")
    row, _, place = row.partition(" #")
    if section not in sections:
        raise UnknownFigure(f"RESULTS.md has no section {section!r}")
    found = [figure for line in read_rows(sections[section]) if (figure := _figure_of(line, row)) is not None]
    if len(found) != 1:
        raise UnknownFigure(f"section {section!r} has {len(found)} rows named {row!r}")
    numbers, number = _NUMBER.findall(found[0]), int(place or 1)
    if len(numbers) < number:
        raise UnknownFigure(f"row {row!r} of section {section!r} has no number {number}: {found[0]}")
    return str(numbers[number - 1])


def _figure_of(line: str, row: str) -> str | None:
    """What follows the name of a row, if the line is that row; names may contain colons."""
    matched = re.match(".*?".join(map(re.escape, row.split("*"))) + ": ", line)
    return line[matched.end() :] if matched else None


def find_stale_marks(page: str, sections: Mapping[str, str]) -> Iterator[str]:
    """The marks of a page whose number is not that of RESULTS.md, or that name no figure."""
    for mark in MARK.finditer(page):
        numbers = _NUMBER.findall(mark["text"])
        try:
            figure = find_figure(sections, mark["figure"])
        except UnknownFigure as error:
            yield str(error)
            continue
        if len(numbers) != 1:
            yield f"{mark['figure']}: one number can be quoted, not {mark['text']!r}"
        elif numbers[0] != figure:
            yield f"{mark['figure']}: {numbers[0]}, but {figure} in RESULTS.md"


def update_marks(page: str, sections: Mapping[str, str]) -> str:
    """The page with the numbers of RESULTS.md; a mark that names no figure stays as it is, for the test to report."""

    def replace(mark: re.Match[str]) -> str:
        try:
            figure = find_figure(sections, mark["figure"])
        except UnknownFigure:
            return mark[0]
        text = _NUMBER.sub(lambda _: figure, mark["text"], count=1)
        return f"<!-- result: {mark['figure']} -->{text}<!-- end -->"

    return MARK.sub(replace, page)


def list_pages(root: Path = ROOT) -> list[Path]:
    """The pages that quote figures. Decisions do not: their figures are those of the day."""
    pages = (path for path in root.glob("docs/**/*.md") if "decisions" not in path.parts)
    return sorted((root / "README.md", *pages))


def update_pages() -> list[Path]:
    """Write the figures of RESULTS.md into the pages that quote them; returns the pages that changed."""
    sections, changed = read_sections(RESULTS.read_text()), []
    for path in list_pages():
        page = path.read_text()
        if (updated := update_marks(page, sections)) != page:
            path.write_text(updated)
            changed.append(path)
    return changed
