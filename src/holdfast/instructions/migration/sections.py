"""Split a Markdown text into sections: at headings, and large ones again between blocks.

Every line is kept once, and no cut breaks a fence, table, quote or list item.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

from holdfast.catalog.token_count import count_cl100k_tokens
from holdfast.sources.skills.frontmatter import (
    SkillFault,
    YamlValue,
    parse_front_matter,
    quote_values,
    split_front_matter,
)

# A heading with less text than the first size is joined with what is below it; sections are split above the second,
# paragraphs without a heading above the third; a section starts at headings up to the fourth number.
SMALL_TOKENS = 20
LARGE_TOKENS = 600
PARAGRAPHS_TOKENS = 200
HEADING_LEVEL_MAX = 4
NESTING_MAX = 30
TITLE_CHARACTERS_MAX = 1_000

# As in `see @docs/style.md`; not after a letter, as in an e-mail address.
_IMPORT = re.compile(r"(?<![^\s(\[])@([^\s@`'\"<>()\[\]{}|,;]+)")
_CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_INLINE = re.compile(r"!?\[([^\[\]]{0,300})\]\([^()]{0,500}\)|[*`]{1,3}|<!--.{0,300}?-->")


class SourceFile(msgspec.Struct, frozen=True):
    """`path` is the display path; `imported_by` is the file that imports it, if any."""

    path: str
    text: str
    imported_by: str | None = None


class LineSpan(msgspec.Struct, frozen=True):
    """Lines of a file, counted from 1, both included."""

    path: str
    first_line: int
    last_line: int


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """`titles` are the headings within it, `parents` those above it."""

    spans: tuple[LineSpan, ...]
    text: str
    tokens: int
    level: int
    titles: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    fields: dict[str, YamlValue] = {}

    @property
    def title(self) -> str:
        return self.titles[0] if self.titles else ""


def split_sections(
    file: SourceFile, *, at: re.Pattern[str] | None = None, stands_apart: Callable[[Section], bool] = lambda _: False
) -> tuple[Section, ...]:
    """Sections in order; together they have every non-blank line once. `stands_apart` ones are never joined."""
    markdown = parse_markdown(file.text)
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


def join_sections(sections: Sequence[Section]) -> Section:
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


class MarkdownCut(msgspec.Struct, frozen=True):
    """A line before which the text may be cut. `level` is the heading level, 0 for any other block."""

    line: int
    level: int = 0
    title: str = ""
    kind: Literal["block", "item"] = "block"


class ParsedMarkdown(msgspec.Struct, frozen=True):
    """Cuts are in line order, from 0; none is inside a fence, table, quote, HTML, list item or the front matter."""

    lines: tuple[str, ...]
    cuts: tuple[MarkdownCut, ...]
    fields: dict[str, YamlValue] = {}


def _starts_section(cut: MarkdownCut, markdown: ParsedMarkdown, at: re.Pattern[str] | None) -> bool:
    if at is not None:
        line = next((line for line in markdown.lines[cut.line :] if line.strip()), "")
        return at.search(line) is not None
    return 0 < cut.level <= HEADING_LEVEL_MAX


def _cut_large(
    path: str, markdown: ParsedMarkdown, start: MarkdownCut, end: int, *, parents: tuple[str, ...]
) -> Iterator[Section]:
    """The section, or if it is too large its parts, split between blocks."""
    whole = _section(path, markdown, start, end, parents=parents)
    # Without a heading nothing says that paragraphs belong together.
    tokens_max = LARGE_TOKENS if start.level else PARAGRAPHS_TOKENS
    if whole.tokens <= tokens_max:
        yield whole
        return
    blocks = _blocks(markdown, (start, *_cuts_between(markdown, start.line + 1, end)), end)
    part, first = 0, blocks[0][0]
    tokens = blocks[0][2]
    for cut, block_end, block_tokens in blocks[1:]:
        if tokens + block_tokens > tokens_max:
            yield _section(path, markdown, first, cut.line, parents=_parent_titles(parents, start, part))
            part, first, tokens = part + 1, cut, 0
        tokens += block_tokens
        end = block_end
    yield _section(path, markdown, first, end, parents=_parent_titles(parents, start, part))


def _parent_titles(parents: tuple[str, ...], start: MarkdownCut, part: int) -> tuple[str, ...]:
    return (*parents, start.title) if part and start.title else parents


def _blocks(markdown: ParsedMarkdown, cuts: Sequence[MarkdownCut], end: int) -> list[tuple[MarkdownCut, int, int]]:
    """Each block with its end and tokens; a list is one block unless it is too large on its own."""
    ends = [cut.line for cut in cuts[1:]] + [end]
    tokens = [count_cl100k_tokens("\n".join(markdown.lines[a.line : b])) for a, b in zip(cuts, ends, strict=True)]
    pieces: list[tuple[MarkdownCut, int, int]] = []
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
    merged: list[tuple[MarkdownCut, int, int]] = []
    for piece in pieces:
        if merged and merged[-1][0].level and merged[-1][1] == piece[0].line and merged[-1][2] <= SMALL_TOKENS * 2:
            before = merged.pop()
            piece = (before[0], piece[1], before[2] + piece[2])
        merged.append(piece)
    return merged


def _section(path: str, markdown: ParsedMarkdown, start: MarkdownCut, end: int, *, parents: tuple[str, ...]) -> Section:
    first_line, end_line = start.line, end
    while first_line < end_line and not markdown.lines[first_line].strip():
        first_line += 1
    while end_line > first_line and not markdown.lines[end_line - 1].strip():
        end_line -= 1
    text = "\n".join(markdown.lines[first_line:end_line])
    titles = [cut.title for cut in _cuts_between(markdown, start.line, end) if cut.title]
    return Section(
        spans=(LineSpan(path, first_line + 1, end_line),) if text else (),
        text=text,
        tokens=count_cl100k_tokens(text),
        level=start.level or (6 if start.line else 1),
        titles=tuple(titles),
        parents=parents,
        fields=markdown.fields if start.line == 0 else {},
    )


def _cuts_between(markdown: ParsedMarkdown, first: int, end: int) -> tuple[MarkdownCut, ...]:
    """The cuts in a range of lines, by bisection because a file may have very many."""
    bounds = (bisect_left(markdown.cuts, line, key=lambda cut: cut.line) for line in (first, end))
    return markdown.cuts[slice(*bounds)]


def _join_small(sections: Sequence[Section], stands_apart: Callable[[Section], bool]) -> tuple[Section, ...]:
    """Join a heading with little text of its own with the first section below it; other sections stay apart."""
    done: list[Section] = []
    joined: Section | None = None
    for section in sections:
        above = done[-1] if done and done[-1] is not joined else None
        is_below = above is not None and above.level < section.level and above.spans[-1].path == section.spans[0].path
        is_small = above is not None and above.tokens < SMALL_TOKENS and not stands_apart(above)
        if above is not None and is_below and is_small and not stands_apart(section):
            done[-1] = joined = join_sections([above, section])
        else:
            done.append(section)
    return tuple(done)


def _join_spans(spans: Iterable[LineSpan]) -> Iterator[LineSpan]:
    merged: LineSpan | None = None
    for span in spans:
        if merged is not None and merged.path == span.path and merged.last_line <= span.first_line:
            merged = LineSpan(merged.path, merged.first_line, span.last_line)
            continue
        if merged is not None:
            yield merged
        merged = span
    if merged is not None:
        yield merged


def parse_markdown(text: str) -> ParsedMarkdown:
    lines = tuple(text.split("\n"))
    front_lines, fields = _front_matter(text)
    # Blank lines in place of the front matter keep the later line numbers.
    tokens = _parser().parse("\n" * front_lines + "\n".join(lines[front_lines:]))
    cuts: dict[int, MarkdownCut] = {}
    for index, token in enumerate(tokens):
        if token.map is None:
            continue
        line = token.map[0]
        if token.level == 0 and token.type == "heading_open":
            cuts[line] = MarkdownCut(line, int(token.tag[1]), _heading_text(tokens[index + 1]))
        elif token.level == 0:
            cuts[line] = MarkdownCut(line)
        elif token.level == 1 and token.type == "list_item_open":
            cuts.setdefault(line, MarkdownCut(line, kind="item"))
    first = min(cuts, default=0)
    if cuts and not any(line.strip() for line in lines[:first]):
        # Blank lines at the start belong to what follows them.
        cuts[0] = msgspec.structs.replace(cuts.pop(first), line=0)
    cuts.setdefault(0, MarkdownCut(0))
    return ParsedMarkdown(lines, tuple(cuts[line] for line in sorted(cuts)), fields)


def find_imports(text: str) -> tuple[str, ...]:
    """The files that a text imports with `@path`, each once; not from code."""
    lines: list[str] = text.split("\n")
    for token in _parser().parse(text):
        if token.type in ("fence", "code_block", "html_block") and token.map is not None:
            lines[token.map[0] : token.map[1]] = [""] * (token.map[1] - token.map[0])
    paths = (path for line in lines for path in _IMPORT.findall(_CODE_SPAN.sub(" ", line)))
    return tuple(dict.fromkeys(path.rstrip(".:!?*_") for path in paths))


def _parser() -> MarkdownIt:
    # Only block structure is needed; a CommonMark parser is used because splitting at lines that start with `#` breaks
    # the first shell script in a fence (decision 0032).
    parser = MarkdownIt("commonmark", {"maxNesting": NESTING_MAX}).enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def _heading_text(inline: Token) -> str:
    return " ".join(_INLINE.sub(lambda match: match[1] or "", inline.content[:TITLE_CHARACTERS_MAX]).split())


def _front_matter(text: str) -> tuple[int, dict[str, YamlValue]]:
    """The number of front matter lines and its fields; none if the text between the rulers is prose."""
    parts = split_front_matter(text)
    if isinstance(parts, SkillFault):
        return 0, {}
    fields = parse_front_matter(parts.front).fields
    if fields is None:
        # Editors' rule files contain `globs: *.ts`, which is not valid YAML.
        fields = parse_front_matter(quote_values(parts.front)[0]).fields
    return (parts.front.count("\n") + 2, fields) if fields else (0, {})
