"""Split a text into sections: at headings, small ones joined, large ones split again. Every line is kept once."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from holdfast.instructions.counting import count_cl100k
from holdfast.instructions.migration.markdown import Cut, Markdown, read_markdown
from holdfast.sources.skills.frontmatter import Value

# Sections are joined below the first size, split above the second, and start at headings up to the third.
SMALL_TOKENS = 20
LARGE_TOKENS = 600
HEADING_LEVEL_MAX = 3


class SourceFile(msgspec.Struct, frozen=True):
    """`path` is the display path; `imported_by` is the file that imports it, if any."""

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
    """Sections in order; together they have every non-blank line once. `stands_apart` ones are never joined."""
    markdown = read_markdown(file.text)
    starts = [cut for cut in markdown.cuts if _starts_section(cut, markdown, at)]
    if not starts or starts[0].line != 0:
        starts.insert(0, markdown.cuts[0])
    ends = [cut.line for cut in starts[1:]] + [len(markdown.lines)]
    parents: list[tuple[int, str]] = []
    sections: list[Section] = []
    for start, end in zip(starts, ends, strict=True):
        level = start.level or (HEADING_LEVEL_MAX if start.line else 1)
        while parents and parents[-1][0] >= level:
            parents.pop()
        titles_above = tuple(title for _, title in parents)
        sections += _cut_large(file.path, markdown, start, end, parents=titles_above)
        if start.level:
            parents.append((level, start.title))
    return _join_small([section for section in sections if section.text], stands_apart)


def join(sections: Sequence[Section]) -> Section:
    """One section from neighbouring ones."""
    first = sections[0]
    return Section(
        spans=tuple(_join_spans(span for section in sections for span in section.spans)),
        text="\n\n".join(section.text for section in sections),
        tokens=sum(section.tokens for section in sections),
        level=min(section.level for section in sections),
        titles=tuple(dict.fromkeys(title for section in sections for title in section.titles)),
        parents=first.parents,
        fields=first.fields,
    )


def _starts_section(cut: Cut, markdown: Markdown, at: re.Pattern[str] | None) -> bool:
    if at is not None:
        line = next((line for line in markdown.lines[cut.line :] if line.strip()), "")
        return at.search(line) is not None
    return 0 < cut.level <= HEADING_LEVEL_MAX


def _cut_large(path: str, markdown: Markdown, start: Cut, end: int, *, parents: tuple[str, ...]) -> Iterator[Section]:
    """The section, or if it is too large its parts, split between blocks."""
    whole = _section(path, markdown, start, end, parents=parents)
    if whole.tokens <= LARGE_TOKENS:
        yield whole
        return
    blocks = _blocks(markdown, (start, *_cuts_between(markdown, start.line + 1, end)), end)
    part, first = 0, blocks[0][0]
    tokens = blocks[0][2]
    for cut, block_end, block_tokens in blocks[1:]:
        if tokens + block_tokens > LARGE_TOKENS:
            yield _section(path, markdown, first, cut.line, parents=_parent_titles(parents, start, part))
            part, first, tokens = part + 1, cut, 0
        tokens += block_tokens
        end = block_end
    yield _section(path, markdown, first, end, parents=_parent_titles(parents, start, part))


def _parent_titles(parents: tuple[str, ...], start: Cut, part: int) -> tuple[str, ...]:
    return (*parents, start.title) if part and start.title else parents


def _blocks(markdown: Markdown, cuts: Sequence[Cut], end: int) -> list[tuple[Cut, int, int]]:
    """Each block with its end and tokens; a list is one block unless it is too large on its own."""
    ends = [cut.line for cut in cuts[1:]] + [end]
    tokens = [count_cl100k("\n".join(markdown.lines[a.line : b])) for a, b in zip(cuts, ends, strict=True)]
    pieces: list[tuple[Cut, int, int]] = []
    index = 0
    while index < len(cuts):
        next_index = index + 1
        while next_index < len(cuts) and cuts[next_index].kind == "item":
            next_index += 1
        if sum(tokens[index:next_index]) > LARGE_TOKENS:
            pieces += zip(cuts[index:next_index], ends[index:next_index], tokens[index:next_index], strict=True)
        else:
            pieces.append((cuts[index], ends[next_index - 1], sum(tokens[index:next_index])))
        index = next_index
    # A heading stays with the block below it.
    merged: list[tuple[Cut, int, int]] = []
    for piece in pieces:
        if merged and merged[-1][0].level and merged[-1][1] == piece[0].line and merged[-1][2] <= SMALL_TOKENS * 2:
            before = merged.pop()
            piece = (before[0], piece[1], before[2] + piece[2])
        merged.append(piece)
    return merged


def _section(path: str, markdown: Markdown, start: Cut, end: int, *, parents: tuple[str, ...]) -> Section:
    first_line, end_line = start.line, end
    while first_line < end_line and not markdown.lines[first_line].strip():
        first_line += 1
    while end_line > first_line and not markdown.lines[end_line - 1].strip():
        end_line -= 1
    text = "\n".join(markdown.lines[first_line:end_line])
    titles = [cut.title for cut in _cuts_between(markdown, start.line, end) if cut.title]
    return Section(
        spans=(Span(path, first_line + 1, end_line),) if text else (),
        text=text,
        tokens=count_cl100k(text),
        level=start.level or (6 if start.line else 1),
        titles=tuple(titles),
        parents=parents,
        fields=markdown.fields if start.line == 0 else {},
    )


def _cuts_between(markdown: Markdown, first: int, end: int) -> tuple[Cut, ...]:
    """The cuts in a range of lines, by bisection because a file may have very many."""
    places = (bisect_left(markdown.cuts, line, key=lambda cut: cut.line) for line in (first, end))
    return markdown.cuts[slice(*places)]


def _join_small(sections: Sequence[Section], stands_apart: Callable[[Section], bool]) -> tuple[Section, ...]:
    """Join small sections with the next one, or with the previous one where that is not possible."""
    done: list[Section] = []
    small: list[Section] = []

    def flush_small() -> None:
        before = [done.pop()] if small and done and not stands_apart(done[-1]) else []
        if small:
            done.append(join([*before, *small]))
        small.clear()

    for section in sections:
        if stands_apart(section):
            flush_small()
            done.append(section)
            continue
        small.append(section)
        if sum(section.tokens for section in small) >= SMALL_TOKENS:
            done.append(join(small))
            small.clear()
    flush_small()
    return tuple(done)


def _join_spans(spans: Iterable[Span]) -> Iterator[Span]:
    merged: Span | None = None
    for span in spans:
        if merged is not None and merged.path == span.path and merged.last_line <= span.first_line:
            merged = Span(merged.path, merged.first_line, span.last_line)
            continue
        if merged is not None:
            yield merged
        merged = span
    if merged is not None:
        yield merged
