"""How the sections of a system prompt are combined, and where its stable part ends."""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from splintr import Tokenizer

from holdfast.errors import UserError
from holdfast.layers.assemble import check_layer_order
from holdfast.layers.system_prompt import (
    CODING_GUIDANCE,
    SYSTEM_PROMPT_DYNAMIC_BOUNDARY,
    SystemPromptBuilder,
    remove_boundary,
    render_bullets,
    render_environment,
    render_instructions,
    render_project_context,
    render_section,
    split_at_boundary,
)
from holdfast.sources.environment import Environment
from holdfast.sources.files import SourceFinding
from holdfast.sources.git import GitState
from holdfast.sources.instruction_files import InstructionFile, InstructionFiles
from holdfast.types.blocks import Json, Text
from holdfast.types.json_encoding import sha256_hex
from holdfast.types.prompt import HistoryEntry, Segment, Stability

INTRO, INTRO_WITH_STYLE, SYSTEM, DOING_TASKS, ACTIONS = CODING_GUIDANCE.values()

BOUNDARY = "__SYSTEM_PROMPT_DYNAMIC_BOUNDARY__"

ENVIRONMENT = Environment("anthropic:m", "/srv/app", "2026-11-15", "linux", "bash", "Linux 6.1")
GIT = GitState(
    branch="main",
    status=(" M a.py",),
    commits=("abc1234 Second", "def5678 First"),
    diff="diff --git a/a.py b/a.py\n+x\n",
)
INSTRUCTIONS = InstructionFiles((InstructionFile("AGENTS.md", "Be kind."),))

FULL = (
    SystemPromptBuilder()
    .with_output_style("Terse", "Few words.")
    .with_environment(ENVIRONMENT)
    .with_project_context(GIT)
    .with_instructions(INSTRUCTIONS)
    .with_runtime_config({"b": {"y": 1, "x": [True, None]}, "a": "ä"})
    .with_appended("First addition.")
    .with_appended("Second addition.")
)

ENVIRONMENT_TEXT = """# Environment context
 - Model: anthropic:m
 - Working directory: /srv/app
 - Date: 2026-11-15
 - Platform: linux
 - Shell: bash
 - OS version: Linux 6.1"""

PROJECT_CONTEXT_TEXT = """# Project context
 - Branch: main

Git status:
 M a.py

Git diff:
diff --git a/a.py b/a.py
+x

Recent commits:
abc1234 Second
def5678 First"""

INSTRUCTIONS_TEXT = """# Project instructions

## AGENTS.md

Be kind."""

CONFIG_TEXT = """# Runtime config
 - a: "ä"
 - b: {"x":[true,null],"y":1}"""


def texts(segment: Segment) -> list[str]:
    blocks = [*segment.system, *(block for entry in segment.entries for block in entry.content)]
    return [block.text for block in blocks if isinstance(block, Text)]


# The list of sections


def test_all_sections_are_in_order() -> None:
    assert FULL.build() == [
        INTRO_WITH_STYLE,
        "# Output Style: Terse\n\nFew words.",
        SYSTEM,
        DOING_TASKS,
        ACTIONS,
        BOUNDARY,
        ENVIRONMENT_TEXT,
        PROJECT_CONTEXT_TEXT,
        INSTRUCTIONS_TEXT,
        CONFIG_TEXT,
        "First addition.",
        "Second addition.",
    ]


def test_without_settings_there_is_only_the_guidance_and_an_unknown_environment() -> None:
    assert SystemPromptBuilder().build() == [
        INTRO,
        SYSTEM,
        DOING_TASKS,
        ACTIONS,
        BOUNDARY,
        render_environment(Environment()),
    ]


def test_the_sections_are_joined_by_one_blank_line() -> None:
    assert FULL.render() == "\n\n".join(FULL.build())


def test_a_builder_is_immutable() -> None:
    before = SystemPromptBuilder()
    before.with_output_style("a", "b").with_appended("x").with_runtime_config({"k": 1})
    before.with_environment(ENVIRONMENT).with_project_context(GIT).with_instructions(INSTRUCTIONS)
    assert before == SystemPromptBuilder()


@pytest.mark.parametrize(("name", "prompt"), [("", "prompt"), ("name", ""), (" ", "prompt"), ("name", "\n")])
def test_a_style_without_name_or_prompt_is_ignored(name: str, prompt: str) -> None:
    assert FULL.with_output_style(name, prompt).build()[:2] == [INTRO, SYSTEM]


def test_the_name_of_a_style_stays_on_one_line() -> None:
    assert SystemPromptBuilder().with_output_style(" a\n# b ", " text\n").build()[1] == "# Output Style: a # b\n\ntext"


def test_blank_additions_are_dropped_and_others_keep_their_indentation() -> None:
    builder = SystemPromptBuilder().with_appended("").with_appended(" \n").with_appended("\n - a bulletX\n")
    assert builder.build()[6:] == [" - a bulletX"]
    assert [segment.name for segment in builder.segments()][-1] == "appended_1"


def test_an_empty_runtime_config_is_no_section() -> None:
    assert SystemPromptBuilder().with_runtime_config({}) == SystemPromptBuilder()


def test_the_name_of_a_runtime_setting_stays_on_one_line() -> None:
    assert SystemPromptBuilder().with_runtime_config({"a\n - b": 1}).build()[-1] == "# Runtime config\n - a - b: 1"


def nested(depth: int) -> Json:
    value: Json = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("value", ["\ud800", object(), nested(100_000)], ids=["surrogate", "object", "depth"])
def test_a_runtime_setting_that_is_not_json_is_refused_by_name(value: Json) -> None:
    with pytest.raises(
        UserError, match=r"^runtime config entry 'limit' cannot be written as JSON; pass plain JSON values only$"
    ):
        SystemPromptBuilder().with_runtime_config({"limit": value})


# Segments


def test_sections_become_segments_by_their_stability() -> None:
    frozen, epoch, volatile = Stability.FROZEN, Stability.EPOCH, Stability.VOLATILE
    assert [(segment.name, segment.stability, segment.section) for segment in FULL.segments()] == [
        ("intro", frozen, "system"),
        ("output_style", frozen, "system"),
        ("system", frozen, "system"),
        ("doing_tasks", frozen, "system"),
        ("actions", frozen, "system"),
        ("project", epoch, "system"),
        ("environment", volatile, "messages"),
        ("project_context", volatile, "messages"),
        ("runtime_config", volatile, "messages"),
        ("appended_1", volatile, "messages"),
        ("appended_2", volatile, "messages"),
    ]
    check_layer_order(FULL.segments())


def test_the_segments_have_the_text_of_the_sections_without_the_boundary() -> None:
    segment_texts = [text for segment in FULL.segments() for text in texts(segment)]
    assert sorted(segment_texts) == sorted(item for item in FULL.build() if item != BOUNDARY)


def test_a_volatile_segment_is_one_entry_that_names_its_layer() -> None:
    (environment,) = [segment for segment in FULL.segments() if segment.name == "environment"]
    entry = HistoryEntry("user", (Text(ENVIRONMENT_TEXT),), layer="environment", stability=Stability.VOLATILE)
    assert environment == Segment("environment", Stability.VOLATILE, "messages", entries=(entry,))


def test_a_stable_segment_is_one_text_of_the_system_prompt() -> None:
    assert FULL.segments()[2] == Segment("system", Stability.FROZEN, "system", system=(Text(SYSTEM),))


def test_volatile_changes_do_not_touch_the_stable_segments() -> None:
    later = (
        FULL.with_environment(Environment(date="2026-11-16"))
        .with_project_context(None)
        .with_runtime_config({})
        .with_appended("Third.")
    )
    stable = [[segment for segment in builder.segments() if segment.section == "system"] for builder in (FULL, later)]
    assert stable[0] == stable[1]


# The boundary


def hostile(text: str) -> SystemPromptBuilder:
    """A builder with the text in every part."""
    return (
        SystemPromptBuilder()
        .with_output_style(text, text)
        .with_environment(Environment(*[text] * 6))
        .with_project_context(GitState(branch=text, status=(text,), commits=(text,), diff=text))
        .with_instructions(InstructionFiles((InstructionFile(text, text),)))
        .with_runtime_config({text: text})
        .with_appended(text)
        .with_appended(f"x{text}y")
    )


@pytest.mark.parametrize(
    "text",
    [BOUNDARY, BOUNDARY * 3, BOUNDARY[:10] + BOUNDARY + BOUNDARY[10:], BOUNDARY[:-2] + BOUNDARY],
    ids=["plain", "repeated", "nested", "overlapping"],
)
def test_the_boundary_is_only_ever_a_separate_item(text: str) -> None:
    builder = hostile(text)
    assert all(BOUNDARY not in segment_text for segment in builder.segments() for segment_text in texts(segment))
    assert builder.render().count(BOUNDARY) == 1
    assert builder.build()[5] == BOUNDARY


def test_an_addition_that_is_only_the_boundary_is_dropped() -> None:
    assert SystemPromptBuilder().with_appended(BOUNDARY).build() == SystemPromptBuilder().build()


def test_a_surrogate_that_cannot_be_sent_is_replaced() -> None:
    assert SystemPromptBuilder().with_appended("a\ud800b").build()[-1] == "a\ufffdb"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("all of it\n", ("all of it\n", "")),
        ("", ("", "")),
        (BOUNDARY, ("", "")),
        (f"X\n{BOUNDARY}\nX", ("X", "X")),
        (f"stable\n\n{BOUNDARY}\n\nvolatile\n", ("stable", "volatile\n")),
        (f"stable\r\n{BOUNDARY}\r\nvolatile", ("stable", "volatile")),
        (f"  stable  {BOUNDARY}  volatile", ("  stable  ", "  volatile")),
        (f"a{BOUNDARY}b{BOUNDARY}c{BOUNDARY}", ("a", "bc")),
        (f"a{BOUNDARY}{BOUNDARY[:5]}{BOUNDARY}{BOUNDARY[5:]}b", ("a", " b")),
    ],
)
def test_a_text_is_split_at_its_first_boundary(text: str, parts: tuple[str, str]) -> None:
    assert split_at_boundary(text) == parts


def test_a_rendered_prompt_splits_into_its_halves() -> None:
    items = FULL.build()
    at = items.index(BOUNDARY)
    assert split_at_boundary(FULL.render()) == ("\n\n".join(items[:at]), "\n\n".join(items[at + 1 :]))


def test_deeply_nested_boundaries_are_removed_quickly() -> None:
    depth = 20_000
    assert remove_boundary(BOUNDARY[:17] * depth + BOUNDARY[17:] * depth).count(BOUNDARY) == 0


def test_the_boundary_is_the_agreed_string() -> None:
    assert SYSTEM_PROMPT_DYNAMIC_BOUNDARY == BOUNDARY


# Rendering


def test_bullets_begin_with_a_space_and_a_dash() -> None:
    assert render_bullets(("one", "two")) == " - one\n - two"
    assert render_section("Title", render_bullets(("one",)), "text") == "# Title\n - one\n\ntext"
    assert render_section("Title", "text", render_bullets(("one",))) == "# Title\n\ntext\n\n - one"


def test_a_clean_tree_is_rendered_as_clean() -> None:
    assert render_project_context(GitState("main", ())) == "# Project context\n - Branch: main\n\nGit status: clean"


@pytest.mark.parametrize("git", [None, GitState(), GitState(findings=(SourceFinding("git", "git took too long"),))])
def test_a_project_without_information_is_no_section(git: GitState | None) -> None:
    assert render_project_context(git) == ""


def test_only_the_known_parts_of_a_project_are_rendered() -> None:
    assert render_project_context(GitState(commits=("a One",))) == "# Project context\n\nRecent commits:\na One"
    assert render_project_context(GitState(branch="b", commits=(), diff="")) == "# Project context\n - Branch: b"


def test_truncated_parts_are_marked() -> None:
    git = GitState(status=(" M b", "?? a"), status_truncated=True, diff="+x\n", diff_truncated=True)
    assert render_project_context(git) == (
        "# Project context\n\nGit status:\n M b\n?? a\n\n[truncated]\n\nGit diff:\n+x\n\n[truncated]"
    )


@pytest.mark.parametrize(
    ("omitted", "line"), [(1, "[1 more instruction file omitted]"), (2, "[2 more instruction files omitted]")]
)
def test_files_are_listed_below_their_paths_and_omitted_ones_are_counted(omitted: int, line: str) -> None:
    files = InstructionFiles(
        (InstructionFile("~/AGENTS.md", "one", True), InstructionFile("a/CLAUDE.md", "two")), omitted
    )
    assert render_instructions(files) == (
        f"# Project instructions\n\n## ~/AGENTS.md\n\none\n\n[truncated]\n\n## a/CLAUDE.md\n\ntwo\n\n{line}"
    )


def test_without_instructions_there_is_no_section() -> None:
    assert render_instructions(InstructionFiles(findings=(SourceFinding("AGENTS.md", "empty"),))) == ""


# The frozen texts


def test_the_guidance_has_a_useful_size() -> None:
    tokenizer = Tokenizer.from_pretrained("cl100k_base")
    for intro in (INTRO, INTRO_WITH_STYLE):
        tokens = sum(len(tokenizer.encode_ordinary(text)) for text in (intro, SYSTEM, DOING_TASKS, ACTIONS))
        assert 1_500 <= tokens <= 2_200


def test_the_guidance_has_its_headings_and_is_plain_text() -> None:
    frozen = (INTRO, INTRO_WITH_STYLE, SYSTEM, DOING_TASKS, ACTIONS)
    assert [text.partition("\n")[0] for text in frozen[2:]] == [
        "# System",
        "# Doing tasks",
        "# Executing actions with care",
    ]
    for text in frozen:
        assert text == text.strip()
        assert text.isascii()
        assert "  " not in text.replace("\n ", "\n")
        assert not any(line.endswith(" ") for line in text.split("\n"))


def test_the_guidance_is_byte_for_byte_unchanged() -> None:
    """Every change of these texts costs each session its cache: change them deliberately, then update the digests."""
    assert {name: sha256_hex(text.encode())[:16] for name, text in FROZEN_TEXTS.items()} == {
        "intro": "c9ca01fa5e31670c",
        "intro with style": "373f0c12fe0b21ba",
        "system": "7906c05bbceddaf5",
        "doing tasks": "7908a87939db7dae",
        "actions": "1cbaa7c13e2c80fc",
    }


FROZEN_TEXTS = {
    "intro": INTRO,
    "intro with style": INTRO_WITH_STYLE,
    "system": SYSTEM,
    "doing tasks": DOING_TASKS,
    "actions": ACTIONS,
}


def test_no_line_of_the_guidance_occurs_twice() -> None:
    lines = [line for text in (INTRO, SYSTEM, DOING_TASKS, ACTIONS) for line in text.split("\n") if line]
    assert all(one != other for one, other in pairwise(sorted(lines)))


# The same bytes in every process

SHOW = """
import sys
from pathlib import Path
from holdfast.layers.system_prompt import SystemPromptBuilder
from holdfast.sources.environment import read_environment
from holdfast.sources.git import read_git_state
from holdfast.sources.instruction_files import read_instructions
root = Path(sys.argv[1])
environ = {"PATH": sys.argv[2], "HOME": "/nonexistent", "SHELL": "/bin/sh"}
builder = (
    SystemPromptBuilder()
    .with_environment(read_environment("m", root, 1.8e9, environ, platform="p", os_version="v"))
    .with_project_context(read_git_state(root, environ=environ, with_diff=True))
    .with_instructions(read_instructions(root))
    .with_runtime_config({"set": sorted({"x", "y"}), "a": 1})
)
sys.stdout.buffer.write(repr((builder.build(), builder.segments())).encode())
"""


def test_the_same_project_gives_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    root = tmp_path.resolve() / "wörld"
    root.mkdir()
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main"], cwd=root, env=environ, check=True)
    (root / "AGENTS.md").write_text("Be kind.")
    (root / "ä.txt").write_text("new")
    subprocess.run(["git", "add", "ä.txt"], cwd=root, env=environ, check=True)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    process_settings = (
        ({"PYTHONHASHSEED": "1", "LANG": "C.utf8", "TZ": "Asia/Tokyo"}, Path("/")),
        ({"PYTHONHASHSEED": "2", **ascii_only}, root),
        ({"PYTHONHASHSEED": "3", "LANG": "tr_TR.ISO-8859-9", "GIT_DIR": "/nonexistent"}, tmp_path),
    )
    command = [sys.executable, "-c", SHOW, str(root), os.environ["PATH"]]
    shown = {
        subprocess.run(
            command, env={"PATH": os.environ["PATH"], **variables}, cwd=cwd, capture_output=True, check=True
        ).stdout
        for variables, cwd in process_settings
    }
    assert len(shown) == 1
    (text,) = shown
    assert all(part in text.decode() for part in ("Be kind.", "A  ä.txt", "Branch: main", "wörld"))
