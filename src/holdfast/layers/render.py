"""How what was read from disk is put into words: the same values, the same bytes."""

from collections.abc import Iterable, Mapping

from holdfast.sources.environment import Environment
from holdfast.sources.git import GitState
from holdfast.sources.instructions import Instructions
from holdfast.sources.text import one_line

TRUNCATED = "[truncated]"


def section(title: str, *paragraphs: str) -> str:
    """A heading, then its paragraphs; bullets stand directly below it."""
    first, *rest = paragraphs
    gap = "\n" if first.startswith(" - ") else "\n\n"
    return f"# {title}{gap}" + "\n\n".join((first, *rest))


def bullets(items: Iterable[str]) -> str:
    return "\n".join(f" - {item}" for item in items)


def render_environment(environment: Environment) -> str:
    return section(
        "Environment context",
        bullets(
            (
                f"Model: {environment.model}",
                f"Working directory: {environment.cwd}",
                f"Date: {environment.date}",
                f"Platform: {environment.platform}",
                f"Shell: {environment.shell}",
                f"OS version: {environment.os_version}",
            )
        ),
    )


def render_project_context(git: GitState | None) -> str:
    """Branch, status, diff, recent commits, as far as they are known; empty if nothing is."""
    if git is None:
        return ""
    paragraphs = []
    if git.branch is not None:
        paragraphs.append(bullets((f"Branch: {git.branch}",)))
    if git.status is not None:
        status = _marked("\n".join(git.status), git.status_truncated)
        paragraphs.append(f"Git status:\n{status}" if status else "Git status: clean")
    if git.diff:
        diff = _marked(git.diff.rstrip("\n"), git.diff_truncated)
        paragraphs.append(f"Git diff:\n{diff}")
    if git.commits:
        paragraphs.append("Recent commits:\n" + "\n".join(git.commits))
    return section("Project context", *paragraphs) if paragraphs else ""


def render_session(name: str) -> str:
    """What there is to say of the session itself."""
    return section("Session", bullets((f"Name: {one_line(name.encode('utf-8', 'replace'))}",)))


def render_settings(project: Mapping[str, str]) -> str:
    """What the configuration says of the project, short texts first; empty if it says nothing."""
    short = [f"{key}: {text}" for key, text in project.items() if "\n" not in text]
    paragraphs = [bullets(short)] if short else []
    paragraphs += [f"## {key}\n\n{text}" for key, text in project.items() if "\n" in text]
    return section("Project", *paragraphs) if paragraphs else ""


def render_instructions(instructions: Instructions) -> str:
    """Every file below its path, then how many there was no room for; empty if there is nothing to say."""
    paragraphs = []
    for file in instructions.files:
        paragraphs.append(f"## {file.path}\n\n{_marked(file.text, file.truncated)}")
    if instructions.omitted:
        files = "file" if instructions.omitted == 1 else "files"
        paragraphs.append(f"[{instructions.omitted} more instruction {files} omitted]")
    return section("Project instructions", *paragraphs) if paragraphs else ""


def _marked(text: str, truncated: bool) -> str:
    return f"{text}\n\n{TRUNCATED}" if truncated else text
