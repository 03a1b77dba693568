"""Builds a coding agent's system prompt section by section, with the boundary at which its stable part ends.

| section | stability |
| --- | --- |
| intro, output style, system, doing tasks, actions | FROZEN |
| the boundary, which is never sent | |
| environment, project context | VOLATILE |
| project: instruction files | EPOCH |
| runtime config, appended sections | VOLATILE |
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

import msgspec

from holdfast.errors import UserError
from holdfast.sources.environment import Environment
from holdfast.sources.files import to_one_line
from holdfast.sources.git import GitState
from holdfast.sources.instruction_files import InstructionFiles
from holdfast.types.blocks import Json, Text, replace_surrogates
from holdfast.types.json_encoding import canonical_json
from holdfast.types.prompt import HistoryEntry, Segment, Stability

SYSTEM_PROMPT_DYNAMIC_BOUNDARY = "__SYSTEM_PROMPT_DYNAMIC_BOUNDARY__"


def _read_guidance() -> dict[str, str]:
    """The frozen sections, each after a comment `<!-- NAME -->`. Byte for byte the same within a release."""
    content = Path(__file__).with_name("coding_guidance.md").read_text(encoding="utf-8")
    _, *names_and_texts = re.split(r"<!-- (\w+) -->\n", content)
    return dict(zip(names_and_texts[::2], (text.rstrip("\n") for text in names_and_texts[1::2]), strict=True))


CODING_GUIDANCE = _read_guidance()


class OutputStyle(msgspec.Struct, frozen=True):
    name: str
    prompt: str


class _Section(msgspec.Struct, frozen=True):
    name: str
    stability: Stability
    text: str


class SystemPromptBuilder(msgspec.Struct, frozen=True):
    """Immutable: every `with_` method returns a new builder."""

    output_style: OutputStyle | None = None
    environment: Environment = Environment()
    git: GitState | None = None
    instructions: InstructionFiles = InstructionFiles()
    runtime_config: tuple[tuple[str, str], ...] = ()
    appended: tuple[str, ...] = ()

    def with_output_style(self, name: str, prompt: str) -> Self:
        """Set the output style; if the name or the prompt is blank, there is none."""
        style = OutputStyle(_line(name), prompt.strip()) if name.strip() and prompt.strip() else None
        return msgspec.structs.replace(self, output_style=style)

    def with_environment(self, environment: Environment) -> Self:
        return msgspec.structs.replace(self, environment=environment)

    def with_project_context(self, git: GitState | None) -> Self:
        return msgspec.structs.replace(self, git=git)

    def with_instructions(self, instructions: InstructionFiles) -> Self:
        return msgspec.structs.replace(self, instructions=instructions)

    def with_runtime_config(self, config: Mapping[str, Json]) -> Self:
        """Values are shown to the model as they are: leave out secrets."""
        # Sorted, so that the order in which a config was built does not change the bytes.
        entries = tuple((_line(name), _json_text(name, config[name])) for name in sorted(config))
        return msgspec.structs.replace(self, runtime_config=entries)

    def with_appended(self, text: str) -> Self:
        """Append a section; blank text adds none."""
        return msgspec.structs.replace(self, appended=(*self.appended, text)) if text.strip() else self

    def build(self) -> list[str]:
        """All sections in order, with the boundary between the frozen ones and the others."""
        items: list[str] = []
        for section in self._sections():
            if section.stability is not Stability.FROZEN and SYSTEM_PROMPT_DYNAMIC_BOUNDARY not in items:
                items.append(SYSTEM_PROMPT_DYNAMIC_BOUNDARY)
            items.append(section.text)
        return items

    def render(self) -> str:
        """The prompt as text for people to read; it still contains the boundary."""
        return "\n\n".join(self.build())

    def segments(self) -> tuple[Segment, ...]:
        """The sections as prompt segments, most stable first; volatile ones go after the history."""
        return tuple(_segment(section) for section in sorted(self._sections(), key=lambda section: section.stability))

    def _sections(self) -> Iterator[_Section]:
        frozen, epoch, volatile = Stability.FROZEN, Stability.EPOCH, Stability.VOLATILE
        style = self.output_style
        config = render_bullets(f"{name}: {value}" for name, value in self.runtime_config)
        sections = (
            ("intro", frozen, CODING_GUIDANCE["INTRO_WITH_STYLE" if style else "INTRO"]),
            ("output_style", frozen, render_section(f"Output Style: {style.name}", style.prompt) if style else ""),
            ("system", frozen, CODING_GUIDANCE["SYSTEM"]),
            ("doing_tasks", frozen, CODING_GUIDANCE["DOING_TASKS"]),
            ("actions", frozen, CODING_GUIDANCE["ACTIONS"]),
            ("environment", volatile, render_environment(self.environment)),
            ("project_context", volatile, render_project_context(self.git)),
            ("project", epoch, render_instructions(self.instructions)),
            ("runtime_config", volatile, render_section("Runtime config", config) if config else ""),
            *((f"appended_{number}", volatile, text) for number, text in enumerate(self.appended, 1)),
        )
        # Text from files must not bring a boundary of its own, which would move the end of the stable part.
        for name, stability, text in sections:
            cleaned = clean_text(text).strip("\n")
            if cleaned.strip():
                yield _Section(name, stability, cleaned)


def split_at_boundary(text: str) -> tuple[str, str]:
    """Split a system prompt into the stable text before the first boundary and the volatile text after it.

    Without a boundary all of it is stable. Line breaks next to the boundary are dropped, further boundaries removed.
    """
    stable, boundary, volatile = text.partition(SYSTEM_PROMPT_DYNAMIC_BOUNDARY)
    if not boundary:
        return text, ""
    return stable.rstrip("\r\n"), remove_boundary(volatile).lstrip("\r\n")


def clean_text(text: str) -> str:
    """The text without boundary markers and lone surrogates, neither of which may be sent to a provider."""
    return remove_boundary(replace_surrogates(text))


def remove_boundary(text: str) -> str:
    removed = text.replace(SYSTEM_PROMPT_DYNAMIC_BOUNDARY, "")
    # Removing one boundary can join two halves of another. Replace that one by a space, so that none can form again.
    return removed.replace(SYSTEM_PROMPT_DYNAMIC_BOUNDARY, " ")


def _segment(section: _Section) -> Segment:
    content = (Text(section.text),)
    if section.stability is Stability.VOLATILE:
        entry = HistoryEntry("user", content, layer=section.name, stability=section.stability)
        return Segment(section.name, section.stability, "messages", entries=(entry,))
    return Segment(section.name, section.stability, "system", system=content)


def _line(text: str) -> str:
    return " ".join(text.split())


def _json_text(name: str, value: Json) -> str:
    try:
        return canonical_json(value).decode()
    except (TypeError, ValueError, RecursionError):
        reason = "cannot be written as JSON; pass plain JSON values only"
        raise UserError(f"runtime config entry {name!r} {reason}") from None


TRUNCATION_NOTE = "[truncated]"


def render_section(title: str, *paragraphs: str) -> str:
    """A heading and its paragraphs; a list follows the heading without a blank line."""
    first, *rest = paragraphs
    separator = "\n" if first.startswith(" - ") else "\n\n"
    return f"# {title}{separator}" + "\n\n".join((first, *rest))


def render_bullets(items: Iterable[str]) -> str:
    return "\n".join(f" - {item}" for item in items)


def render_environment(environment: Environment) -> str:
    lines = (
        f"Model: {environment.model}",
        f"Working directory: {environment.cwd}",
        f"Date: {environment.date}",
        f"Platform: {environment.platform}",
        f"Shell: {environment.shell}",
        f"OS version: {environment.os_version}",
    )
    return render_section("Environment context", render_bullets(lines))


def render_project_context(git: GitState | None) -> str:
    """Branch, status, diff and recent commits, as far as they are known; empty if none is."""
    if git is None:
        return ""
    paragraphs = []
    if git.branch is not None:
        paragraphs.append(render_bullets((f"Branch: {git.branch}",)))
    if git.status is not None:
        status = _with_truncation_note("\n".join(git.status), git.status_truncated)
        paragraphs.append(f"Git status:\n{status}" if status else "Git status: clean")
    if git.diff:
        paragraphs.append("Git diff:\n" + _with_truncation_note(git.diff.rstrip("\n"), git.diff_truncated))
    if git.commits:
        paragraphs.append("Recent commits:\n" + "\n".join(git.commits))
    return render_section("Project context", *paragraphs) if paragraphs else ""


def render_session(name: str) -> str:
    """The session's name."""
    return render_section("Session", render_bullets((f"Name: {to_one_line(name.encode('utf-8', 'replace'))}",)))


def render_settings(project: Mapping[str, str]) -> str:
    """The `[project]` settings, single lines first; empty if there are none."""
    short = [f"{key}: {text}" for key, text in project.items() if "\n" not in text]
    paragraphs = [render_bullets(short)] if short else []
    paragraphs += [f"## {key}\n\n{text}" for key, text in project.items() if "\n" in text]
    return render_section("Project", *paragraphs) if paragraphs else ""


def render_instructions(instructions: InstructionFiles) -> str:
    """Every file below its path, then the number of files left out for size; empty if there are none."""
    texts = ((file.path, _with_truncation_note(file.text, file.is_truncated)) for file in instructions.files)
    paragraphs = [f"## {path}\n\n{text}" for path, text in texts]
    if instructions.omitted:
        files = "file" if instructions.omitted == 1 else "files"
        paragraphs.append(f"[{instructions.omitted} more instruction {files} omitted]")
    return render_section("Project instructions", *paragraphs) if paragraphs else ""


def _with_truncation_note(text: str, truncated: bool) -> str:
    return f"{text}\n\n{TRUNCATION_NOTE}" if truncated else text
