"""Where a Markdown text may be cut without breaking anything that belongs together."""

import re
from typing import Literal

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

from holdfast.sources.skills.frontmatter import Fault, Value, mended, read_front, split

NESTING_MAX = 30
TITLE_CHARACTERS_MAX = 1_000

# As in `see @docs/style.md`; behind a letter, as in an address, it is none.
_IMPORT = re.compile(r"(?<![^\s(\[])@([^\s@`'\"<>()\[\]{}|,;]+)")
_CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_INLINE = re.compile(r"!?\[([^\[\]]{0,300})\]\([^()]{0,500}\)|[*`]{1,3}|<!--.{0,300}?-->")


class Cut(msgspec.Struct, frozen=True):
    """A line before which the text may be cut. `level` is that of a heading, 0 for any other block."""

    line: int
    level: int = 0
    title: str = ""
    kind: Literal["block", "item"] = "block"


class Markdown(msgspec.Struct, frozen=True):
    """Cuts rise by line, from 0; none is within a fence, a table, a quote, HTML, a list item or the front matter."""

    lines: tuple[str, ...]
    cuts: tuple[Cut, ...]
    fields: dict[str, Value] = {}


def read_markdown(text: str) -> Markdown:
    lines = tuple(text.split("\n"))
    head, fields = _front(text)
    # Blank lines in its place keep the numbers of the lines behind it.
    tokens = _parser().parse("\n" * head + "\n".join(lines[head:]))
    cuts: dict[int, Cut] = {}
    for place, token in enumerate(tokens):
        if token.map is None:
            continue
        line = token.map[0]
        if token.level == 0 and token.type == "heading_open":
            cuts[line] = Cut(line, int(token.tag[1]), _plain(tokens[place + 1]))
        elif token.level == 0:
            cuts[line] = Cut(line)
        elif token.level == 1 and token.type == "list_item_open":
            cuts.setdefault(line, Cut(line, kind="item"))
    first = min(cuts, default=0)
    if cuts and not any(line.strip() for line in lines[:first]):
        # Blank lines at the start belong to what follows them.
        cuts[0] = msgspec.structs.replace(cuts.pop(first), line=0)
    cuts.setdefault(0, Cut(0))
    return Markdown(lines, tuple(cuts[line] for line in sorted(cuts)), fields)


def imports_of(text: str) -> tuple[str, ...]:
    """The files that a text names to be read with it, each once; what stands in code names none."""
    lines: list[str] = text.split("\n")
    for token in _parser().parse(text):
        if token.type in ("fence", "code_block", "html_block") and token.map is not None:
            lines[token.map[0] : token.map[1]] = [""] * (token.map[1] - token.map[0])
    found = (one for line in lines for one in _IMPORT.findall(_CODE_SPAN.sub(" ", line)))
    return tuple(dict.fromkeys(one.rstrip(".:!?*_") for one in found))


def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": NESTING_MAX}).enable("table")
    parser.core.ruler.enableOnly(["normalize", "block"])
    return parser


def _plain(inline: Token) -> str:
    """The words of a heading, without what marks them up."""
    return " ".join(_INLINE.sub(lambda found: found[1] or "", inline.content[:TITLE_CHARACTERS_MAX]).split())


def _front(text: str) -> tuple[int, dict[str, Value]]:
    """How many lines the front matter takes, and its fields; none where what stands between the lines is prose."""
    parts = split(text)
    if isinstance(parts, Fault):
        return 0, {}
    fields = read_front(parts.front).fields
    if fields is None:
        # Rules of editors say `globs: *.ts`, which is no YAML.
        fields = read_front(mended(parts.front)[0]).fields
    return (parts.front.count("\n") + 2, fields) if fields else (0, {})
