"""The page of `audit --html` and `report --html`: charts and tables in one file that loads and runs nothing."""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from holdfast.cli.costs.report import (
    CAUSE_MEANINGS,
    has_no_price,
    make_group_rows,
    make_kind_rows,
    make_reread_rows,
    make_tool_rows,
    row_usd,
    shorten_name,
    usd,
)
from holdfast.ledger.requests.format import strip_control_characters
from holdfast.ledger.spending import KIND_LABELS, KINDS, Spending, SpendingRow, format_day

WIDTH = 1_120
SESSIONS_SHOWN_MAX = 12
ROWS_SHOWN_MAX = 12
LABEL_WIDTH = 80
COLUMNS_MAX = 92
"""With more days than this, a column is a week: narrower columns cannot be distinguished."""
KIND_HEADINGS = ("Kind", "Tokens", "Share of tokens", "Dollars", "Share of dollars")
TOOL_HEADINGS = ("Results of", "Results", "Tokens", "Tokens sent again", "Share", "Cost of sending again")
REREAD_HEADINGS = ("Sent again", "Tokens of context", "Share of the context", "Share of what was sent again")
GROUP_HEADINGS = ("Calls", "Tokens", "Dollars", "Share", "Lost")

# The dashboard's colours: teal is read from the cache, amber and red were written to it, grey is neither.
_CLASSES = {
    "cache_read": "series-0",
    "cache_write_5m": "series-1",
    "cache_write_1h": "series-5",
    "cache_write_other": "series-4",
    "input": "outcome uncached",
    "output": "series-2",
    "thinking": "series-3",
    "other": "layer-6",
}
_STYLE = """
main { max-width: 1240px; }
svg { width: 100%; height: auto; }
svg .name { font-size: 12px; fill: var(--ink); }
ol.actions li { margin: .5rem 0; }
.line { fill: none; stroke: var(--ink); stroke-width: 1.2; }
footer { margin: 1rem 0; }
"""


def render_spending_page(spending: Spending) -> str:
    """The whole page. Names come from transcripts, so every one of them is escaped."""
    style = files("holdfast.service.dashboard").joinpath("static/style.css").read_text(encoding="utf-8") + _STYLE
    total = spending.total
    days = f"{format_day(spending.from_at)} to {format_day(spending.to_at)}"
    tools = make_tool_rows(spending, ROWS_SHOWN_MAX)
    models = make_group_rows(spending.models, total, ROWS_SHOWN_MAX, whole_names=True)
    projects = make_group_rows(spending.projects, total, ROWS_SHOWN_MAX, whole_names=True)
    sections = (
        _section("What to do", _list_actions(spending)),
        _section("Spending by day and kind of token", _chart_days(spending) + _legend(total)),
        _section("Where it went", _table(KIND_HEADINGS, make_kind_rows(total))),
        _section("Most expensive sessions", _chart_sessions(spending) + _legend(total)),
        _section("Losses by cause", _chart_losses(spending)),
        _section(_name_worst(spending), _chart_context(spending)),
        _section("What is sent again: results by tool", _table(TOOL_HEADINGS, tools) if tools else ""),
        _section("How often context is sent again", _table(REREAD_HEADINGS, make_reread_rows(spending))),
        _section("By model", _table(("Model", *GROUP_HEADINGS), models)),
        _section("By project", _table(("Project", *GROUP_HEADINGS), projects)),
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Spending, {days}</title>\n<style>\n{style}</style></head>\n<body><main>"
        f"<h1>Spending, {days}</h1>\n{_tiles(spending)}\n{''.join(sections)}"
        '<footer class="small">Made by <code>holdfast audit</code>. Prices are those of each day; what is saved, and '
        "what each tool's results cost, are estimates from prompt sizes and times.</footer></main></body></html>\n"
    )


def _text(value: object) -> str:
    """Escaped, and on one line: control characters and those that change the direction of text are gone."""
    return escape(strip_control_characters(str(value)))


def _section(title: str, content: str) -> str:
    if not content:
        return ""
    return f'<section class="block" aria-label="{_text(title)}"><h2>{_text(title)}</h2>{content}</section>\n'


def _tiles(spending: Spending) -> str:
    total, weeks = spending.total, spending.weeks
    tiles = [
        ("spent", row_usd(total), "" if has_no_price(total) else f"about {usd(float(total.usd) / weeks)} a week"),
        ("calls", f"{total.calls:,}", f"in {len(spending.sessions):,} sessions"),
        ("without a cache", usd(total.uncached_usd), "the same calls"),
        ("read from the cache", f"{spending.usage.read_share:.1%}", "of prompt tokens"),
        ("lost", usd(total.lost_usd), f"in {total.cache_misses:,} cache misses"),
    ]
    if has_no_price(total):
        tiles = [tile for tile in tiles if tile[0] not in ("without a cache", "lost")]
    if total.unpriced_calls:
        tiles.append(("unpriced", f"{total.unpriced_calls:,} calls", f"{total.unpriced_tokens:,} tokens"))
    cells = (
        f'<div class="tile"><span class="label">{label}</span><strong data-figure="{label}">{_text(figure)}</strong>'
        f'<span class="small">{_text(note)}</span></div>'
        for label, figure, note in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _list_actions(spending: Spending) -> str:
    if not spending.actions:
        return '<p class="none">Nothing that would save 1 % of it was found.</p>'
    items = (
        f"<li><strong>{_text(action.action)}</strong>: about {usd(action.usd_a_week)} a week less.<br>"
        f'{_mark_code(action.how)}.<br><span class="small">Assumed: {_text(action.assumption)}.</span></li>'
        for action in spending.actions
    )
    return f'<ol class="actions">{"".join(items)}</ol>'


def _mark_code(text: str) -> str:
    """Every second part between backticks is code."""
    parts = (f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(_text(text).split("`")))
    return "".join(parts)


def _legend(row: SpendingRow) -> str:
    items = (
        f'<li><i class="swatch {_CLASSES[amount.kind]}"></i>{KIND_LABELS[amount.kind]}</li>'
        for amount in row.kinds
        if amount.usd
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


_Row = tuple[str, dict[str, float]]
"""A label, and dollars by kind."""


def _amounts(row: SpendingRow) -> dict[str, float]:
    return {amount.kind: float(amount.usd) for amount in row.kinds}


def _chart_days(spending: Spending) -> str:
    rows: list[_Row] = [(row.name, _amounts(row)) for row in spending.days if not has_no_price(row)]
    if len(rows) > COLUMNS_MAX:
        rows = [_merge(rows[at : at + 7]) for at in range(0, len(rows), 7)]
    if not rows:
        return ""
    left, top, height = 60, 10, 200
    bottom, step = top + height, min(110.0, (WIDTH - left) / len(rows))
    highest = max(sum(kinds.values()) for _, kinds in rows) or 1.0
    parts = [_axis(left, bottom - height * share, usd(highest * share) if share else "$0") for share in (0.0, 0.5, 1.0)]
    every = max(1, -(-LABEL_WIDTH // max(1, int(step))))
    for index, (name, kinds) in enumerate(rows):
        x, y = left + index * step + 1, float(bottom)
        for kind in KINDS:
            size = max(0.0, kinds.get(kind, 0.0)) / highest * height
            y -= size
            if size > 0:
                rectangle = f'x="{x:.1f}" y="{y:.1f}" width="{max(1.0, step - 2):.1f}" height="{size:.1f}"'
                parts.append(f'<rect class="{_CLASSES[kind]}" {rectangle}/>')
        # A label at the right edge would be cut off.
        if index % every == 0 and x + LABEL_WIDTH < WIDTH:
            parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 15}">{_text(name)}</text>')
        hover = f'x="{x:.1f}" y="{top}" width="{step:.1f}" height="{height}"'
        parts.append(f'<rect class="hover" {hover}><title>{_describe(name, kinds)}</title></rect>')
    return _svg("Spending by day", bottom + 22, parts)


def _merge(rows: Sequence[_Row]) -> _Row:
    kinds = {kind: sum(amounts.get(kind, 0.0) for _, amounts in rows) for kind in KINDS}
    return rows[0][0], kinds


def _describe(name: str, kinds: dict[str, float]) -> str:
    lines = [f"{KIND_LABELS[kind]}: {usd(amount)}" for kind, amount in kinds.items() if amount]
    return _text(f"{name}: {usd(sum(kinds.values()))}") + "".join(f"\n{_text(line)}" for line in lines)


def _chart_sessions(spending: Spending) -> str:
    rows = []
    priced = [session for session in spending.sessions if not has_no_price(session.amounts)]
    for session in priced[:SESSIONS_SHOWN_MAX]:
        name = session.name or shorten_name(session.project)
        label = f"{session.id[:8]}  {format_day(session.started_at)}  {name}"
        rows.append((label, _amounts(session.amounts)))
    if not rows:
        return ""
    return _chart_bars("Most expensive sessions", rows, 330)


def _chart_losses(spending: Spending) -> str:
    if not spending.losses:
        return '<p class="none">No call is known to have lost anything.</p>'
    rows = []
    for loss in spending.losses[:ROWS_SHOWN_MAX]:
        name = f"{loss.cause} {loss.component}".strip()
        rows.append((f"{name}: {CAUSE_MEANINGS.get(loss.cause, '')}".rstrip(": "), {"input": float(loss.lost_usd)}))
    return _chart_bars("Losses by cause", rows, 470, one_class="series-5")


def _chart_bars(label: str, rows: Sequence[_Row], names_width: int, one_class: str = "") -> str:
    row_height, end = 26, 90
    width = WIDTH - names_width - end
    highest = max((sum(kinds.values()) for _, kinds in rows), default=0.0) or 1.0
    parts = []
    for index, (name, kinds) in enumerate(rows):
        x, y = float(names_width), index * row_height
        characters = names_width // 7
        shown = name if len(name) <= characters else name[: characters - 1] + "…"
        parts.append(f'<text class="name end" x="{names_width - 10}" y="{y + 17}">{_text(shown)}</text>')
        for kind in KINDS:
            size = max(0.0, kinds.get(kind, 0.0)) / highest * width
            if size > 0:
                rectangle = f'x="{x:.1f}" y="{y + 4}" width="{size:.1f}" height="{row_height - 8}"'
                parts.append(f'<rect class="{one_class or _CLASSES[kind]}" {rectangle}/>')
            x += size
        parts.append(f'<text class="name" x="{x + 8:.1f}" y="{y + 17}">{usd(sum(kinds.values()))}</text>')
        title = _text(f"{name}: {usd(sum(kinds.values()))}") if one_class else _describe(name, kinds)
        hover = f'x="0" y="{y}" width="{WIDTH}" height="{row_height}"'
        parts.append(f'<rect class="hover" {hover}><title>{title}</title></rect>')
    return _svg(label, len(rows) * row_height + 4, parts)


def _name_worst(spending: Spending) -> str:
    if not spending.sessions:
        return "Context of the most expensive session"
    worst = spending.sessions[0]
    return f"Context of the most expensive session, {worst.id[:8]}: tokens sent by each call"


def _chart_context(spending: Spending) -> str:
    points = spending.worst_session_context
    if len(points) < 2:
        return ""
    left, top, height = 60, 10, 200
    bottom, step = top + height, (WIDTH - left - 10) / (len(points) - 1)
    highest = max(point.tokens for point in points) or 1

    def path(values: Iterable[int]) -> str:
        pairs = (
            f"{left + index * step:.1f} {bottom - value / highest * height:.1f}" for index, value in enumerate(values)
        )
        return "L".join(pairs)

    right = left + (len(points) - 1) * step
    parts = [_axis(left, bottom - height * share, f"{highest * share:,.0f}") for share in (0.0, 0.5, 1.0)]
    for name, values in (
        ("series-1", [point.tokens for point in points]),
        ("series-0", [point.read_tokens for point in points]),
    ):
        parts.append(f'<path class="{name}" d="M{left} {bottom}L{path(values)}L{right:.1f} {bottom}z"/>')
    parts.append(f'<path class="line" d="M{path(point.tokens for point in points)}"/>')
    first, last = format_day(points[0].at), format_day(points[-1].at)
    parts.append(f'<text class="tick" x="{left}" y="{bottom + 15}">first call, {first}</text>')
    parts.append(f'<text class="tick end" x="{right:.1f}" y="{bottom + 15}">last call, {last}</text>')
    legend = (
        '<ul class="legend"><li><i class="swatch series-0"></i>read from the cache</li>'
        '<li><i class="swatch series-1"></i>written, or sent without a cache</li></ul>'
    )
    return _svg("Context of the most expensive session", bottom + 22, parts) + legend


def _axis(left: float, y: float, label: str) -> str:
    line = f'<path class="grid" d="M{left} {y:.1f}H{WIDTH}"/>'
    return f'{line}<text class="tick end" x="{left - 6}" y="{y + 4:.1f}">{_text(label)}</text>'


def _svg(label: str, height: float, parts: Iterable[str]) -> str:
    view = f'viewBox="0 0 {WIDTH} {height}"'
    return f'<svg {view} role="img" aria-label="{_text(label)}">{"".join(parts)}</svg>'


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column is text, the others are numbers."""
    head = "".join(f"<th{_class_of(index)}>{_text(name)}</th>" for index, name in enumerate(headings))
    body = []
    for row in rows:
        cells = (
            f'<td{_class_of(index)} data-heading="{_text(headings[index])}">{_text(cell)}</td>'
            for index, cell in enumerate(row)
        )
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _class_of(column: int) -> str:
    return ' class="number"' if column else ""
