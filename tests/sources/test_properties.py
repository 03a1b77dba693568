"""Properties of every text that is read, cut, split or put into a system prompt."""

import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.layers.system_prompt import (
    SYSTEM_PROMPT_DYNAMIC_BOUNDARY,
    SystemPromptBuilder,
    remove_boundary,
    split_at_boundary,
)
from holdfast.sources.environment import Environment
from holdfast.sources.files import cut_utf8, decode_text, format_path, to_one_line
from holdfast.sources.git import GitState
from holdfast.sources.instruction_files import InstructionFile, InstructionFiles, read_instructions
from holdfast.types.blocks import Text

laws = settings(max_examples=100, deadline=None)
few = settings(max_examples=40, deadline=None)

boundary_fragments = st.sampled_from(
    [SYSTEM_PROMPT_DYNAMIC_BOUNDARY, SYSTEM_PROMPT_DYNAMIC_BOUNDARY[:9], SYSTEM_PROMPT_DYNAMIC_BOUNDARY[9:], "__"]
)
tricky = st.lists(boundary_fragments | st.text(max_size=5), max_size=12).map("".join)
any_text = st.text(st.characters(), max_size=20)  # Lone surrogates included.


@laws
@given(tricky)
def test_no_boundary_remains_after_its_removal(text: str) -> None:
    assert SYSTEM_PROMPT_DYNAMIC_BOUNDARY not in remove_boundary(text)


@laws
@given(tricky)
def test_removing_boundaries_keeps_every_other_character(text: str) -> None:
    removed = text.replace(SYSTEM_PROMPT_DYNAMIC_BOUNDARY, "")
    if SYSTEM_PROMPT_DYNAMIC_BOUNDARY not in removed:
        assert remove_boundary(text) == removed


@laws
@given(tricky)
def test_neither_half_of_a_split_text_contains_a_boundary(text: str) -> None:
    assert all(SYSTEM_PROMPT_DYNAMIC_BOUNDARY not in half for half in split_at_boundary(text))


@laws
@given(st.text(max_size=30), tricky)
def test_text_before_the_first_boundary_is_stable_whatever_follows(stable: str, rest: str) -> None:
    halves = split_at_boundary(stable + SYSTEM_PROMPT_DYNAMIC_BOUNDARY + rest)
    assert halves == (stable.rstrip("\r\n"), remove_boundary(rest).lstrip("\r\n"))


@laws
@given(st.text(max_size=30))
def test_a_text_without_a_boundary_is_stable_as_a_whole(text: str) -> None:
    assert split_at_boundary(text) == (text, "")


builders = st.builds(
    lambda style, environment, git, files, config, appended: (
        SystemPromptBuilder(appended=tuple(appended))
        .with_output_style(*style)
        .with_environment(environment)
        .with_project_context(git)
        .with_instructions(InstructionFiles(tuple(files), 1))
        .with_runtime_config(config)
    ),
    st.tuples(tricky, tricky),
    st.builds(Environment, tricky | any_text, tricky),
    st.none() | st.builds(GitState, branch=tricky, status=st.tuples(tricky), diff=tricky | any_text),
    st.lists(st.builds(InstructionFile, tricky, tricky | any_text, st.booleans()), max_size=3),
    st.dictionaries(tricky, tricky, max_size=3),
    st.lists(tricky | any_text, max_size=3),
)


@few
@given(builders)
def test_every_prompt_has_one_boundary_and_no_segment_has_any(builder: SystemPromptBuilder) -> None:
    assert builder.build().count(SYSTEM_PROMPT_DYNAMIC_BOUNDARY) == 1
    assert builder.render().count(SYSTEM_PROMPT_DYNAMIC_BOUNDARY) == 1
    assert all(SYSTEM_PROMPT_DYNAMIC_BOUNDARY not in text for text in sendable_texts(builder))


@few
@given(builders)
def test_segments_never_put_a_changing_part_before_a_stable_one(builder: SystemPromptBuilder) -> None:
    segments = builder.segments()
    assert all(before.stability <= after.stability for before, after in pairwise(segments))
    assert len({segment.name for segment in segments}) == len(segments)


@few
@given(builders)
def test_every_segment_has_text_that_can_be_sent(builder: SystemPromptBuilder) -> None:
    assert all(text.strip() and text.encode() for text in sendable_texts(builder))


def sendable_texts(builder: SystemPromptBuilder) -> list[str]:
    blocks = [
        block
        for segment in builder.segments()
        for block in (*segment.system, *(block for entry in segment.entries for block in entry.content))
    ]
    return [block.text for block in blocks if isinstance(block, Text)]


@laws
@given(st.text(max_size=30), st.integers(0, 60))
def test_a_cut_text_is_the_longest_start_that_fits(text: str, bytes_max: int) -> None:
    start, is_cut = cut_utf8(text, bytes_max)
    assert text.startswith(start)
    assert len(start.encode()) <= bytes_max
    assert is_cut == (start != text)
    if is_cut:
        assert len(text[: len(start) + 1].encode()) > bytes_max


@laws
@given(st.binary(max_size=60))
def test_every_file_becomes_text_without_nul_carriage_return_or_surrogate(raw: bytes) -> None:
    text = decode_text(raw)
    assert not {"\0", "\r"} & set(text)
    assert text.encode().decode() == text


@laws
@given(st.text(st.characters(exclude_characters="\0\r\ufeff", exclude_categories=["Cs"])))
def test_plain_text_is_read_unchanged(text: str) -> None:
    assert decode_text(text.encode()) == text


def test_a_split_character_is_replaced_at_the_end_of_a_file_and_omitted_at_the_read_limit() -> None:
    assert decode_text(b"x\xe2\x82") == "x\ufffd"
    assert decode_text(b"x\xe2\x82", whole=False) == "x"


@laws
@given(st.text(max_size=20), st.integers(0, 80))
def test_the_start_of_a_file_decodes_as_the_start_of_its_text(text: str, size: int) -> None:
    plain = text.replace("\ufeff", "")
    start = decode_text(plain.encode()[:size], whole=False)
    # A line end may be split: its first half is a line end as well.
    assert decode_text(plain.encode()).startswith(start.removesuffix("\n"))


@laws
@given(st.binary(max_size=40))
def test_a_name_is_always_one_line(raw: bytes) -> None:
    line = to_one_line(raw)
    assert len(line.splitlines()) <= 1
    assert not any(character < " " or "\x7f" <= character < "\xa0" for character in line)


@laws
@given(any_text)
def test_every_path_can_be_shown(name: str) -> None:
    assert format_path(name).encode().decode() == format_path(name)
    if name.isascii() and name.isprintable():
        assert format_path(name) == name


@few
@given(
    st.lists(st.text(max_size=30), min_size=1, max_size=5),
    st.integers(1, 20),
    st.integers(1, 40),
)
def test_the_texts_read_stay_within_the_limits_and_appear_once(
    contents: list[str], file_chars_max: int, total_chars_max: int
) -> None:
    names = ("AGENTS.md", "CLAUDE.md", "CLAUDE.local.md", ".claude/CLAUDE.md", ".holdfast/instructions.md")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / ".git").mkdir()
        (root / ".claude").mkdir()
        (root / ".holdfast").mkdir()
        for name, content in zip(names, contents, strict=False):
            (root / name).write_bytes(content.encode())
        instructions = read_instructions(root, file_chars_max=file_chars_max, total_chars_max=total_chars_max)
    lengths = [len(file.text) for file in instructions.files]
    assert all(0 < length <= file_chars_max for length in lengths)
    assert sum(lengths) <= total_chars_max
    assert instructions.omitted == 0 or sum(lengths) == total_chars_max
    complete = [file.text for file in instructions.files if not file.is_truncated]
    assert len(set(complete)) == len(complete)
    # Every file is included, omitted, or skipped with a reason; an omitted one has its reason too.
    assert len(instructions.files) + len(instructions.findings) == len(contents)
