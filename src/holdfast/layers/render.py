"""Renders environment, git state, settings and instruction files as prompt text. Equal values give equal bytes."""

from collections.abc import Iterable, Mapping

from holdfast.sources.environment import Environment
from holdfast.sources.files import to_one_line
from holdfast.sources.git import GitState
from holdfast.sources.instruction_files import InstructionFiles

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
