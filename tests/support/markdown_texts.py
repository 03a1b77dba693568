"""Markdown as users write it, in blocks that must not be split, and checks that they were not."""

from collections import Counter
from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from holdfast.instructions.migration.proposal import MigrationProposal

WORDS = (
    "test",
    "release",
    "never",
    "deploy",
    "the",
    "review",
    "café",
    "索引",
    "`make check`",
    "**bold**",
    "a_b",
    "x.py",
)

words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
paragraphs = st.lists(words, min_size=1, max_size=3).map(tuple)


@st.composite
def headings(draw: st.DrawFn) -> tuple[str, ...]:
    title = draw(words)
    if draw(st.booleans()):
        return (f"{'#' * draw(st.integers(1, 6))} {title}",)
    return (title, draw(st.sampled_from(("===", "---"))))


@st.composite
def fences(draw: st.DrawFn) -> tuple[str, ...]:
    fence = draw(st.sampled_from(("```", "~~~", "````")))
    inner = st.one_of(words.map(lambda text: f"## {text}"), words, st.just(""), st.just("---"), st.just("| a | b |"))
    return (f"{fence}bash", *draw(st.lists(inner, max_size=4)), fence)


@st.composite
def tables(draw: st.DrawFn) -> tuple[str, ...]:
    rows = draw(st.lists(words, min_size=1, max_size=3))
    return ("| a | b |", "| --- | --- |", *(f"| {row} | x |" for row in rows))


@st.composite
def nested_lists(draw: st.DrawFn) -> tuple[str, ...]:
    lines: list[str] = []
    for text in draw(st.lists(words, min_size=1, max_size=3)):
        lines.append(f"- {text}")
        for inner in draw(st.lists(words, max_size=2)):
            lines += [f"  - {inner}", f"    - deeper {inner}"]
        if draw(st.booleans()):
            lines += ["", "  ```", "  # no heading", "  ```"]
        if draw(st.booleans()):
            lines += ["", "  ## A heading of this item", "", f"  {text}"]
    return tuple(lines)


frontmatters = st.sampled_from(
    (("---", "description: How we test", "---"), ("---", "globs: *.ts", "alwaysApply: true", "---"))
)
unsplittable_blocks = st.one_of(fences(), tables(), nested_lists())
blocks = st.one_of(headings(), paragraphs, unsplittable_blocks, st.just(("<!-- note", "## not a heading", "-->")))


@st.composite
def documents(draw: st.DrawFn) -> tuple[tuple[str, ...], ...]:
    """Blocks in order; the first may be front matter."""
    head = draw(st.one_of(st.just(()), frontmatters.map(lambda one: (one,))))
    return (*head, *draw(st.lists(blocks, min_size=1, max_size=12)))


def text_of(document: Iterable[Sequence[str]]) -> str:
    return "\n\n".join("\n".join(block) for block in document) + "\n"


def lines_in(texts: Iterable[str]) -> Counter[str]:
    """How often each line occurs, ignoring blank lines and surrounding white space."""
    return Counter(line.strip() for text in texts for line in text.split("\n") if line.strip())


def proposed_texts(proposal: MigrationProposal) -> list[str]:
    return [unit.content for unit in proposal.units] + [rule.text for rule in proposal.rules]


def is_unsplit(block: Sequence[str], text: str) -> bool:
    """Whether the lines of a block are consecutive in a text, with their indentation or all indented further."""
    lines = text.split("\n")
    wanted = list(block)
    for start in range(len(lines) - len(wanted) + 1):
        here = lines[start : start + len(wanted)]
        if here == wanted:
            return True
        # In the stub, all lines of a rule except the first are indented.
        if [line.removeprefix("  ") for line in here] == [line.removeprefix("  ") for line in wanted]:
            return True
    return False
