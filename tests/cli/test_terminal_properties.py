"""Properties of text from models, tools and files before it reaches a terminal."""

import contextlib
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from holdfast.cli.chat.app import simulate_chat_reply
from holdfast.cli.chat.format import (
    clean_streamed_text,
    divide_bar_cells,
    format_file_diff,
    format_tool_call,
    split_visible_lines,
)
from holdfast.cli.chat.session import format_confirmation
from holdfast.cli.tables import PIPED_WIDTH, fit_columns, fold_cell, get_table_width, print_table
from holdfast.engine.tools.permissions import ConfirmationRequest
from holdfast.types.blocks import ToolUse, make_user_message

texts = st.text(st.characters(exclude_categories=()), max_size=60)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(texts)
def test_streamed_text_cannot_move_the_cursor(text: str) -> None:
    assert all(character == "\n" or character.isprintable() for character in clean_streamed_text(text))


@given(texts)
def test_a_confirmation_shows_every_line_and_every_printable_character(text: str) -> None:
    lines = split_visible_lines(text)
    assert len(lines) == text.count("\n") + 1
    assert all(line.isprintable() or "\ufffd" in line for line in lines)
    assert all(character.isprintable() for line in lines for character in line)
    printable = [character for character in text if character.isprintable()]
    output = iter("".join(lines))
    assert all(character in output for character in printable)


@given(st.text(max_size=20), st.one_of(texts, jsons.map(repr), st.text()), st.integers(0, 100))
def test_any_call_is_one_line_that_fits(name: str, arguments: str, width: int) -> None:
    line = format_tool_call(name, arguments, width)
    assert len(line) <= max(width, 1)
    assert all(character.isprintable() for character in line)


@given(st.dictionaries(st.sampled_from(("path", "command", "text", "x")), jsons, max_size=3))
def test_any_arguments_are_one_line(arguments: dict[str, object]) -> None:
    line = format_tool_call("tool", json.dumps(arguments), 200)
    assert line.startswith("tool")
    assert all(character.isprintable() for character in line)


@given(
    st.sampled_from(("run_command", "write_file", "edit_file", "other")),
    st.dictionaries(st.sampled_from(("path", "command", "content", "old_text", "new_text")), texts, max_size=5),
)
def test_any_request_can_be_confirmed(tool: str, arguments: dict[str, str]) -> None:
    request = ConfirmationRequest("id", tool, "write", tool, json.dumps(arguments), 0.0)
    lines = format_confirmation(request, Path("/nonexistent"))
    assert lines
    assert all(character.isprintable() for line in lines for character in line)


@given(st.lists(st.integers(0, 10**9), max_size=8), st.integers(0, 200))
def test_a_bar_has_its_exact_width_and_no_part_is_off_by_a_cell(amounts: list[int], width: int) -> None:
    cells = divide_bar_cells(amounts, width)
    total = sum(amounts)
    assert sum(cells) == (width if total else 0)
    assert all(abs(cell - amount * width / total) < 1 for cell, amount in zip(cells, amounts, strict=True) if total)


lines = st.lists(st.sampled_from("abc"), max_size=8).map(lambda some: "".join(letter + "\n" for letter in some))


@given(lines, lines)
def test_a_shown_change_removes_the_old_lines_and_adds_the_new_ones(before: str, after: str) -> None:
    diff = format_file_diff(before, after, "f")
    removed = sorted(line[1:] for line in diff[1:] if line.startswith("-"))
    added = sorted(line[1:] for line in diff[1:] if line.startswith("+"))
    assert sorted([*before.split(), *added]) == sorted([*after.split(), *removed])


@given(texts)
def test_the_simulated_model_answers_anything(text: str) -> None:
    reply = simulate_chat_reply([make_user_message(text)])
    assert reply.content
    assert all(isinstance(block, ToolUse) or block for block in reply.content)


@given(st.lists(st.tuples(texts, texts, texts), max_size=5))
def test_a_table_in_a_pipe_is_what_rich_prints(rows: list[tuple[str, str, str]]) -> None:
    headings = ("name", "calls", "long heading")
    table = Table(*(Column(heading, no_wrap=True) for heading in headings), box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(Text("".join(one if one.isprintable() else " " for one in cell)) for cell in row))
    expected, printed = io.StringIO(), io.StringIO()
    Console(file=expected, width=PIPED_WIDTH).print(table)
    with contextlib.redirect_stdout(printed):
        assert get_table_width() == PIPED_WIDTH
        print_table(headings, rows)
    assert printed.getvalue().split("\n") == [line.rstrip() for line in expected.getvalue().split("\n")]


cells = st.one_of(
    st.from_regex(r"[a-z]{1,12}([-/ .][a-z0-9]{1,12}){0,3}", fullmatch=True),
    st.from_regex(r"\$?[0-9]{1,3}(,[0-9]{3}){0,2}(\.[0-9]+)?%?", fullmatch=True),
    st.just(""),
    st.just("日本語の名前"),
)


@given(st.lists(st.tuples(cells, cells, cells, cells), max_size=5), st.integers(1, 60))
def test_a_narrow_table_loses_nothing_and_breaks_no_number(rows: list[tuple[str, ...]], width: int) -> None:
    headings = ("name", "sent again", "tokens", "dollars")
    widths = fit_columns(headings, rows, width=width)
    for fitted, *column in zip(widths, headings, *rows, strict=True):
        for cell in column:
            folded = fold_cell(cell, fitted)
            assert all(cell_len(line) <= fitted for line in folded)
            assert "".join(folded).replace(" ", "") == cell.replace(" ", "")
            numbers = [word for word in cell.split() if word[-1:].isdigit() and not any(map(str.isalpha, word))]
            assert all(any(number in line for line in folded) for number in numbers)
    natural = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    assert all(fitted <= whole for fitted, whole in zip(widths, natural, strict=True))
    if sum(natural) + 6 <= width:
        assert widths == natural
    if sum(widths) + 6 > width:
        for most, *column in zip(widths, headings, *rows, strict=True):
            unbroken = [
                *column[0].split(),
                *(cell for cell in column if cell.isalnum() or not any(map(str.isalpha, cell))),
            ]
            assert most <= max(8, *map(len, unbroken)), "text is broken before the terminal is exceeded"


def test_an_id_that_other_commands_take_is_whole() -> None:
    rows = [("01M7TZM0R", "2026-11-19", "simulated chat", "$0.0329"), ("01M7TZPXA", "2026-11-19", "demo", "$0.0329")]
    assert fit_columns(("session", "date", "project", "spent"), rows, width=32) == [9, 10, 8, 7]


@pytest.mark.parametrize(
    ("width", "names"),
    [
        (40, ["anthropic:claude-sonnet-5-5"]),
        (36, ["anthropic:claude-sonnet-", "5-5"]),
        (9, ["anthropi", "c:claude", "-sonnet-", "5-5"]),
    ],
)
def test_a_column_of_names_is_broken_after_a_sign_and_one_of_numbers_never(width: int, names: list[str]) -> None:
    headings, row = ("model", "tokens"), ("anthropic:claude-sonnet-5-5", "1,142,548")
    first, second = fit_columns(headings, [row], width=width)
    assert second == 9
    assert fold_cell(row[0], first) == names
