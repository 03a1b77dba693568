"""Renders a streamed reply as Markdown, wrapped at the width of the terminal, line by line as it arrives."""

import io
import re

# A line that begins an item of a list at the left margin: the item before it is complete.
_ITEM = re.compile(r"(?:[-*+]|\d{1,9}[.)])\s")
_FENCE = re.compile(r"(?m)^ {0,3}(`{3,}|~{3,})")
_HEADING = re.compile(r"(?m)^#{1,6}[ \t]+(.*?)[ \t]*#*$")
_TABLE = re.compile(r"(?m)^ {0,3}\|")
_MAY_BEGIN_BLOCK = re.compile(r"\s*[-*+#`~|>\d]")
# What models write as lines, such as a poem, are lines; Markdown alone would join them.
_SOFT_BREAK = re.compile(r"(?<!  )\n(?=\S)")


class MarkdownStream:
    """Turns text that arrives in pieces into lines for the terminal.

    Each block is rendered on its own: it ends at an empty line outside a code fence, or before the next item of a list.
    Of an unfinished block all lines but the last are shown, because later words can only change that one; of a table
    none, because its columns can still grow.
    """

    def __init__(self, *, colours: bool) -> None:
        self._colours = colours
        self._line = ""
        self._block: list[str] = []
        self._fence = ""
        self._lines_shown = 0
        self._characters_rendered = 0

    def feed(self, text: str, *, width: int) -> str:
        """What can be printed now."""
        *lines, self._line = (self._line + text).split("\n")
        finished = "".join(self._add_line(line, width) for line in lines)
        return finished + self._show_unfinished(width)

    def finish(self, *, width: int) -> str:
        """The rest, complete or not."""
        rest = self._add_line(self._line, width) if self._line else ""
        rest += self._end_block(width)
        self._line = self._fence = ""
        return rest

    @property
    def is_empty(self) -> bool:
        return not (self._line or self._block)

    def _add_line(self, line: str, width: int) -> str:
        shown = ""
        fence = _FENCE.match(line)
        if self._fence:
            # Only as many of the same characters, and nothing after them, close a fence.
            if fence and fence[1].startswith(self._fence) and not line.strip().strip(fence[1][0]):
                self._fence = ""
        elif fence:
            self._fence = fence[1]
        elif not line.strip():
            return self._end_block(width, gap="\n")
        elif _ITEM.match(line):
            shown = self._end_block(width)
        self._block.append(line)
        return shown

    def _end_block(self, width: int, *, gap: str = "") -> str:
        block, self._block = "\n".join(self._block), []
        lines_shown, self._lines_shown, self._characters_rendered = self._lines_shown, 0, 0
        if not block.strip():
            return ""
        lines = render_markdown(block, width=width, colours=self._colours)
        return "".join(f"{line}\n" for line in lines[lines_shown:]) + gap

    def _show_unfinished(self, width: int) -> str:
        # The last line may still become an item, a heading or a fence, with which another block begins.
        is_certain = not self._block or self._fence or not _MAY_BEGIN_BLOCK.match(self._line)
        block = "\n".join((*self._block, self._line if is_certain else ""))
        # Once for each line that it can fill: rendering it with every token would be quadratic in its length.
        if len(block) - self._characters_rendered < width or _TABLE.search(block):
            return ""
        self._characters_rendered = len(block)
        lines = render_markdown(block, width=width, colours=self._colours)[:-1]
        shown, self._lines_shown = lines[self._lines_shown :], max(self._lines_shown, len(lines))
        return "".join(f"{line}\n" for line in shown)


def render_markdown(block: str, *, width: int, colours: bool) -> list[str]:
    """The block as lines for a terminal. rich would center headings, so they become bold text."""
    from rich.console import Console
    from rich.markdown import Markdown

    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=colours, color_system="standard" if colours else None, highlight=False
    )
    if not (_FENCE.search(block) or _TABLE.search(block)):
        block = _SOFT_BREAK.sub("  \n", _HEADING.sub(r"**\1**", block))
    # No hyperlinks: an escape sequence could show another address than the one it opens.
    console.print(Markdown(block, hyperlinks=False, code_theme="ansi_light" if colours else "bw"))
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n")).strip("\n").split("\n")
