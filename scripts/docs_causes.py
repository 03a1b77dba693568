"""Writes a reference page for each verdict, each cause of a change and each error: what it means and what to do.

The texts are those of `docs/verdicts.md` and `docs/errors.md`, where people read them side by side; classes, remedies,
docstrings and the lines of errors come from the code.
"""

import ast
import functools
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, get_args

import holdfast
import holdfast.errors
from holdfast.cli.costs.report import CAUSE_MEANINGS
from holdfast.ledger.cache.verdicts import EXPECTED_KINDS, NO_BREAKS, UNEXPECTED_KINDS, VerdictKind
from holdfast.ledger.spending_actions import REMEDIES
from holdfast.types.prompt import PrefixChangeCause

ROOT = Path(__file__).resolve().parents[1]
LINES_MAX = 8


class ErrorRow(NamedTuple):
    """A row of `docs/errors.md`; `status` is empty for what is not an answer over HTTP."""

    name: str
    is_kind: bool
    status: str
    cause: str
    fix: str

    @property
    def path(self) -> str:
        return f"reference/errors/{'provider-' if self.is_kind else ''}{self.name}.md"


def verdict_pages() -> dict[str, str]:
    """Path below `docs/` -> Markdown, in the order of `docs/verdicts.md`."""
    text = (ROOT / "docs/verdicts.md").read_text()
    pages = {
        f"reference/verdicts/{kind}.md": _verdict_page(kind, _section(text, kind)) for kind in get_args(VerdictKind)
    }
    for cause in get_args(PrefixChangeCause):
        links = "[What changed](../../verdicts.md#what-changed) has the other causes."
        name = cause.replace(" ", "-")
        pages[f"reference/changes/{name}.md"] = _page(f"Changed: {cause}", _section(text, cause), links)
    return pages


def error_pages() -> dict[str, str]:
    """Path below `docs/` -> Markdown, in the order of `docs/errors.md`."""
    lines = _lines_by_code()
    return {row.path: _error_page(row, lines.get(row.name, ())) for row in read_error_rows()}


def read_error_rows() -> list[ErrorRow]:
    """What `docs/errors.md` lists, but for the exit codes."""
    rows = []
    for table in re.findall(r"(?m)(?:^\|.*\|\n)+", (ROOT / "docs/errors.md").read_text()):
        headings, _, *lines = (re.split(r" *\| *", line.strip("| ")) for line in table.splitlines())
        if headings[-1] == "do":
            is_kind = headings[0] == "`ProviderError.kind`"
            for name, *status, cause, fix in lines:
                rows.append(ErrorRow(name.strip("`"), is_kind, "".join(status), cause, fix))
    return rows


def link_error_names(markdown: str) -> str:
    """The page of errors with a link from each row to the page of that error."""
    for row in read_error_rows():
        markdown = markdown.replace(f"\n| `{row.name}` |", f"\n| [`{row.name}`]({row.path}) |", 1)
    return markdown


def _verdict_page(kind: VerdictKind, section: str) -> str:
    classes = {**dict.fromkeys(EXPECTED_KINDS, "expected"), **dict.fromkeys(UNEXPECTED_KINDS, "unexpected")}
    rows = [
        ("in a report", CAUSE_MEANINGS.get(kind, "not listed: nothing was lost")),
        ("class", classes.get(kind, "none: the cache did what its rules promise")),
    ]
    if remedy := REMEDIES.get(kind):
        rows.append(("what avoids it", remedy))
    table = "\n".join(("| | |", "| --- | --- |", *(f"| {name} | {text} |" for name, text in rows)))
    where = (
        "" if kind in NO_BREAKS else f"`holdfast sessions list --verdict {kind}` lists the sessions that lost by it. "
    )
    links = (
        f"{where}[All verdicts](../../verdicts.md) are on one page; [how they are decided](../../concepts/verdicts.md) "
        "has a drawing."
    )
    return _page(kind, section, table, links)


def _error_page(row: ErrorRow, lines: Sequence[str]) -> str:
    parts = [f"HTTP status: {row.status}."] if row.status else []
    kind = getattr(holdfast.errors, row.name, None)
    if kind is not None:
        parts.append(inspect.cleandoc(kind.__doc__ or ""))
    parts.append(f"**Cause:** {_move_links(row.cause)}.")
    parts.append(f"**Fix:** {_move_links(row.fix)}." if row.fix else "**Fix:** none is needed.")
    if lines:
        parts += ["The line that comes with it:", "\n".join(f"- {line}" for line in lines)]
    if row.name in holdfast.__all__:
        parts.append(f"[`holdfast.{row.name}`](../python.md#holdfast.{row.name}) has its fields.")
    title = f"ProviderError: {row.name}" if row.is_kind else row.name
    return _page(title, *parts, "[All errors and exit codes](../../errors.md) are on one page.")


def _section(text: str, title: str) -> str:
    section = re.search(rf"(?ms)^##+ {re.escape(title)}\n+(.*?)(?=^##|\Z)", text)
    assert section is not None, title
    return _move_links(section[1].strip())


def _move_links(text: str) -> str:
    """Links of a page in `docs/`, as they are from two folders below."""
    text = re.sub(r"\]\(#", "](../../verdicts.md#", text)
    return re.sub(r"\]\((?!https?:|\.\./)", "](../../", text)


@functools.cache
def _lines_by_code() -> Mapping[str, Sequence[str]]:
    """Code -> the lines that the package raises it with; `...` stands for what is filled in."""
    lines: dict[str, dict[str, None]] = {}
    for path in sorted((ROOT / "src/holdfast").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                for code, line in _raised_line(node.func.id, node.args):
                    lines.setdefault(code, {})[line] = None
    return {code: tuple(found)[:LINES_MAX] for code, found in lines.items()}


def _raised_line(function: str, arguments: Sequence[ast.expr]) -> Iterator[tuple[str, str]]:
    position = {"ApiError": 1, "InstructionError": 0}.get(function)
    if position is None or len(arguments) < position + 2:
        return
    code, message = arguments[position], " ".join(_template(arguments[position + 1]).split())
    if isinstance(code, ast.Constant) and isinstance(code.value, str) and message.strip(". "):
        yield code.value, f"`{message}`" if "`" not in message else f"`` {message} ``"


def _template(message: ast.expr) -> str:
    match message:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return re.sub(r"(?:\.\.\.)+", "...", "".join(_template(value) for value in values))
        case ast.FormattedValue():
            return "..."
        case _:
            return ""


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", "Generated from the code when the site is built.", *parts)) + "\n"
