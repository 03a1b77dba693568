"""Find the lines at which a Markdown text can be cut without breaking a block."""

import re
from typing import Literal

import msgspec
from markdown_it import MarkdownIt
from markdown_it.token import Token

from holdfast.sources.skills.frontmatter import Fault, Value, mended, read_front, split

NESTING_MAX = 30
TITLE_CHARACTERS_MAX = 1_000

# As in `see @docs/style.md`; not after a letter, as in an e-mail address.
_IMPORT = re.compile(r"(?<![^\s(\[])@([^\s@`'\"<>()\[\]{}|,;]+)")
_CODE_SPAN = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_INLINE = re.compile(r"!?\[([^\[\]]{0,300})\]\([^()]{0,500}\)|[*`]{1,3}|<!--.{0,300}?-->")


class Cut(msgspec.Struct, frozen=True):
    """A line before which the text may be cut. `level` is the heading level, 0 for any other block."""

    line: int
    level: int = 0
    title: str = ""
    kind: Literal["block", "item"] = "block"


class Markdown(msgspec.Struct, frozen=True):
    """Cuts are in line order, from 0; none is inside a fence, table, quote, HTML, list item or the front matter."""

    lines: tuple[str, ...]
    cuts: tuple[Cut, ...]
    fields: dict[str, Value] = {}


def read_markdown(text: str) -> Markdown:
    lines = tuple(text.split("\n"))
    front_lines, fields = _front_matter(text)
    # Blank lines in place of the front matter keep the later line numbers.
    tokens = _parser().parse("\n" * front_lines + "\n".join(lines[front_lines:]))
    cuts: dict[int, Cut] = {}
    for index, token in enumerate(tokens):
        if token.map is None:
            continue
        line = token.map[0]
        if token.level == 0 and token.type == "heading_open":
            cuts[line] = Cut(line, int(token.tag[1]), _heading_text(tokens[index + 1]))
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
    """The text of a heading without inline markup."""
    return " ".join(_INLINE.sub(lambda match: match[1] or "", inline.content[:TITLE_CHARACTERS_MAX]).split())


def _front_matter(text: str) -> tuple[int, dict[str, Value]]:
    """The number of front matter lines and its fields; none if the text between the rulers is prose."""
    parts = split(text)
    if isinstance(parts, Fault):
        return 0, {}
    fields = read_front(parts.front).fields
    if fields is None:
        # Editors' rule files contain `globs: *.ts`, which is not valid YAML.
        fields = read_front(mended(parts.front)[0]).fields
    return (parts.front.count("\n") + 2, fields) if fields else (0, {})
