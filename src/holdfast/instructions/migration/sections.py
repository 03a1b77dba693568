"""Which sections a text has: cut at headings, small ones joined, large ones cut again; no line is lost or doubled."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from holdfast.instructions.counting import count_cl100k
from holdfast.instructions.migration.markdown import Cut, Markdown, read_markdown
from holdfast.sources.skills.frontmatter import Value

SMALL_TOKENS = 20
LARGE_TOKENS = 600
HEADING_LEVEL_MAX = 3


class SourceFile(msgspec.Struct, frozen=True):
    """`path` is as it is told to people; `imported_by` is the file that names it, where one does."""

    path: str
    text: str
    imported_by: str | None = None


class Span(msgspec.Struct, frozen=True):
    """Lines of a file, counted from 1, both included."""

    path: str
    first_line: int
    last_line: int


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """`titles` are the headings within it, `parents` those above it."""

    spans: tuple[Span, ...]
    text: str
    tokens: int
    level: int
    titles: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    fields: dict[str, Value] = {}

    @property
    def title(self) -> str:
        return self.titles[0] if self.titles else ""


def sections_of(
    file: SourceFile, *, at: re.Pattern[str] | None = None, stands_apart: Callable[[Section], bool] = lambda _: False
) -> tuple[Section, ...]:
    """In order; together they have every line of the file that is not blank, once. What stands apart is not joined."""
    markdown = read_markdown(file.text)
    starts = [cut for cut in markdown.cuts if _begins(cut, markdown, at)]
    if not starts or starts[0].line != 0:
        starts.insert(0, markdown.cuts[0])
    ends = [cut.line for cut in starts[1:]] + [len(markdown.lines)]
    parents: list[tuple[int, str]] = []
    whole: list[Section] = []
    for start, end in zip(starts, ends, strict=True):
        level = start.level or (HEADING_LEVEL_MAX if start.line else 1)
        while parents and parents[-1][0] >= level:
            parents.pop()
        above = tuple(title for _, title in parents)
        whole += _cut_large(file.path, markdown, start, end, parents=above)
        if start.level:
            parents.append((level, start.title))
    return _joined_small([one for one in whole if one.text], stands_apart)


def join(sections: Sequence[Section]) -> Section:
    """Neighbours as one."""
    first = sections[0]
    return Section(
        spans=tuple(_joined_spans(span for one in sections for span in one.spans)),
        text="\n\n".join(one.text for one in sections),
        tokens=sum(one.tokens for one in sections),
        level=min(one.level for one in sections),
        titles=tuple(dict.fromkeys(title for one in sections for title in one.titles)),
        parents=first.parents,
        fields=first.fields,
    )


def _begins(cut: Cut, markdown: Markdown, at: re.Pattern[str] | None) -> bool:
    if at is not None:
        line = next((line for line in markdown.lines[cut.line :] if line.strip()), "")
        return at.search(line) is not None
    return 0 < cut.level <= HEADING_LEVEL_MAX


def _cut_large(path: str, markdown: Markdown, start: Cut, end: int, *, parents: tuple[str, ...]) -> Iterator[Section]:
    """The section, or parts of it, cut where the text allows it."""
    whole = _section(path, markdown, start, end, parents=parents)
    if whole.tokens <= LARGE_TOKENS:
        yield whole
        return
    pieces = _pieces(markdown, (start, *_within(markdown, start.line + 1, end)), end)
    part, first = 0, pieces[0][0]
    tokens = pieces[0][2]
    for cut, piece_end, piece_tokens in pieces[1:]:
        if tokens + piece_tokens > LARGE_TOKENS:
            yield _section(path, markdown, first, cut.line, parents=_above(parents, start, part))
            part, first, tokens = part + 1, cut, 0
        tokens += piece_tokens
        end = piece_end
    yield _section(path, markdown, first, end, parents=_above(parents, start, part))


def _above(parents: tuple[str, ...], start: Cut, part: int) -> tuple[str, ...]:
    return (*parents, start.title) if part and start.title else parents


def _pieces(markdown: Markdown, cuts: Sequence[Cut], end: int) -> list[tuple[Cut, int, int]]:
    """Each block with its end and its tokens; a list is one block unless it alone is too large."""
    ends = [cut.line for cut in cuts[1:]] + [end]
    tokens = [count_cl100k("\n".join(markdown.lines[a.line : b])) for a, b in zip(cuts, ends, strict=True)]
    pieces: list[tuple[Cut, int, int]] = []
    place = 0
    while place < len(cuts):
        after = place + 1
        while after < len(cuts) and cuts[after].kind == "item":
            after += 1
        if sum(tokens[place:after]) > LARGE_TOKENS:
            pieces += zip(cuts[place:after], ends[place:after], tokens[place:after], strict=True)
        else:
            pieces.append((cuts[place], ends[after - 1], sum(tokens[place:after])))
        place = after
    # A heading stays with what stands below it.
    held: list[tuple[Cut, int, int]] = []
    for piece in pieces:
        if held and held[-1][0].level and held[-1][1] == piece[0].line and held[-1][2] <= SMALL_TOKENS * 2:
            before = held.pop()
            piece = (before[0], piece[1], before[2] + piece[2])
        held.append(piece)
    return held


def _section(path: str, markdown: Markdown, start: Cut, end: int, *, parents: tuple[str, ...]) -> Section:
    first, last = start.line, end
    while first < last and not markdown.lines[first].strip():
        first += 1
    while last > first and not markdown.lines[last - 1].strip():
        last -= 1
    text = "\n".join(markdown.lines[first:last])
    titles = [cut.title for cut in _within(markdown, start.line, end) if cut.title]
    return Section(
        spans=(Span(path, first + 1, last),) if text else (),
        text=text,
        tokens=count_cl100k(text),
        level=start.level or (6 if start.line else 1),
        titles=tuple(titles),
        parents=parents,
        fields=markdown.fields if start.line == 0 else {},
    )


def _within(markdown: Markdown, first: int, end: int) -> tuple[Cut, ...]:
    """The cuts at these lines; there may be very many in all."""
    places = (bisect_left(markdown.cuts, line, key=lambda cut: cut.line) for line in (first, end))
    return markdown.cuts[slice(*places)]


def _joined_small(sections: Sequence[Section], stands_apart: Callable[[Section], bool]) -> tuple[Section, ...]:
    """What is small joins the section behind it, or where that cannot be the one before it."""
    done: list[Section] = []
    waiting: list[Section] = []

    def settle() -> None:
        before = [done.pop()] if waiting and done and not stands_apart(done[-1]) else []
        if waiting:
            done.append(join([*before, *waiting]))
        waiting.clear()

    for section in sections:
        if stands_apart(section):
            settle()
            done.append(section)
            continue
        waiting.append(section)
        if sum(one.tokens for one in waiting) >= SMALL_TOKENS:
            done.append(join(waiting))
            waiting.clear()
    settle()
    return tuple(done)


def _joined_spans(spans: Iterable[Span]) -> Iterator[Span]:
    held: Span | None = None
    for span in spans:
        if held is not None and held.path == span.path and held.last_line <= span.first_line:
            held = Span(held.path, held.first_line, span.last_line)
            continue
        if held is not None:
            yield held
        held = span
    if held is not None:
        yield held
