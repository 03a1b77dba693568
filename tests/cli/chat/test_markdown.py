"""Streamed Markdown is rendered for the width of the terminal, wherever the pieces end."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.chat.markdown import MarkdownStream, render_markdown

REPLY = """# Plan

Some **bold** text that is long.
It goes on.

- one
- two
  and more
1. first
2. second

```python
def f():

    return 1
```
The end"""
SHOWN = """Plan

Some bold text that
is long.
It goes on.

 • one
 • two and more
 1 first
 2 second

 def f():

     return 1


The end
"""


def stream(text: str, ends: list[int], *, width: int = 20) -> str:
    markdown = MarkdownStream(colours=False)
    shown = "".join(markdown.feed(text[start:end], width=width) for start, end in pairwise(ends))
    shown += markdown.finish(width=width)
    assert markdown.is_empty
    return shown


@given(cuts=st.lists(st.integers(0, len(REPLY)), max_size=20))
def test_what_is_shown_does_not_depend_on_how_the_text_arrives(cuts: list[int]) -> None:
    assert stream(REPLY, [0, *sorted(cuts), len(REPLY)]) == SHOWN


@given(text=st.text(alphabet="ab `~#-1.\n>|*", max_size=80), cut=st.integers(0, 80))
def test_no_letter_is_lost(text: str, cut: int) -> None:
    shown = stream(text, [0, min(cut, len(text)), len(text)])
    assert sorted(filter(str.isalpha, shown)) == sorted(filter(str.isalpha, text))


def test_lines_of_a_long_paragraph_appear_before_it_ends() -> None:
    markdown = MarkdownStream(colours=False)
    assert markdown.feed("one two three four five six", width=10) == "one two\nthree four\n"
    assert markdown.feed(" seven", width=10) == ""
    assert markdown.finish(width=10) == "five six\nseven\n"


def test_table_appears_when_it_is_complete() -> None:
    markdown = MarkdownStream(colours=False)
    assert markdown.feed("| a | b |\n| --- | --- |\n| 1 | 2 |\n", width=10) == ""
    assert markdown.finish(width=10).split()[:2] == ["a", "b"]


@pytest.mark.parametrize(
    ("block", "lines"),
    [
        ("## A title", ["A title"]),
        ("Some **bold** words and `code` that are wrapped.", ["Some bold words and", "code that are", "wrapped."]),
        ("A line.\nAnother.", ["A line.", "Another."]),
        ("- an item", [" • an item"]),
        ("[name](https://a.example)", ["name", "(https://a.example)"]),
        ("```\n# no title\n```", [" # no title"]),
    ],
)
def test_block_is_rendered_without_its_marks(block: str, lines: list[str]) -> None:
    assert render_markdown(block, width=20, colours=False) == lines


def test_colours_are_escape_sequences_and_links_stay_text() -> None:
    [shown] = render_markdown("**bold** [name](https://a.example)", width=60, colours=True)
    assert "\x1b[1mbold\x1b[0m" in shown
    assert "\x1b]8" not in shown
