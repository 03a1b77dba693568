"""How a coding agent's system prompt is put together, section by section, and where its stable part ends.

| section | stability |
| --- | --- |
| intro, output style, system, doing tasks, actions | FROZEN |
| the boundary, which is never sent | |
| environment, project context | VOLATILE |
| project: instruction files | EPOCH |
| runtime config, appended sections | VOLATILE |
"""

from collections.abc import Iterator, Mapping
from typing import Self

import msgspec

from holdfast.canonical.blocks import Json, Text, mend_surrogates
from holdfast.canonical.encoding import canonical_json
from holdfast.canonical.prompt import Passage, Segment, Stability
from holdfast.errors import UserError
from holdfast.layers.guidance import ACTIONS, DOING_TASKS, INTRO, INTRO_WITH_STYLE, SYSTEM
from holdfast.layers.render import (
    bullets,
    render_environment,
    render_instructions,
    render_project_context,
    section,
)
from holdfast.sources.environment import Environment
from holdfast.sources.git import GitState
from holdfast.sources.instructions import Instructions

SYSTEM_PROMPT_DYNAMIC_BOUNDARY = "__SYSTEM_PROMPT_DYNAMIC_BOUNDARY__"


class OutputStyle(msgspec.Struct, frozen=True):
    name: str
    prompt: str


class _Section(msgspec.Struct, frozen=True):
    name: str
    stability: Stability
    text: str


class SystemPromptBuilder(msgspec.Struct, frozen=True):
    """Every `with_` gives a new builder and leaves this one as it is."""

    output_style: OutputStyle | None = None
    environment: Environment = Environment()
    git: GitState | None = None
    instructions: Instructions = Instructions()
    runtime_config: tuple[tuple[str, str], ...] = ()
    appended: tuple[str, ...] = ()

    def with_output_style(self, name: str, prompt: str) -> Self:
        """A style takes both a name and a prompt; without one of them there is none."""
        style = OutputStyle(_line(name), prompt.strip()) if name.strip() and prompt.strip() else None
        return msgspec.structs.replace(self, output_style=style)

    def with_environment(self, environment: Environment) -> Self:
        return msgspec.structs.replace(self, environment=environment)

    def with_project_context(self, git: GitState | None) -> Self:
        return msgspec.structs.replace(self, git=git)

    def with_instructions(self, instructions: Instructions) -> Self:
        return msgspec.structs.replace(self, instructions=instructions)

    def with_runtime_config(self, config: Mapping[str, Json]) -> Self:
        """Shown to the model as it is given: leave out what is secret."""
        entries = tuple((_line(name), _json_text(name, config[name])) for name in sorted(config))
        return msgspec.structs.replace(self, runtime_config=entries)

    def with_appended(self, text: str) -> Self:
        """One more section at the end; text that is blank adds none."""
        return msgspec.structs.replace(self, appended=(*self.appended, text)) if text.strip() else self

    def build(self) -> list[str]:
        """All sections in order, and between the frozen ones and the others the boundary."""
        items: list[str] = []
        for part in self._sections():
            if part.stability is not Stability.FROZEN and SYSTEM_PROMPT_DYNAMIC_BOUNDARY not in items:
                items.append(SYSTEM_PROMPT_DYNAMIC_BOUNDARY)
            items.append(part.text)
        return items

    def render(self) -> str:
        """For people to look at: the boundary is still in it."""
        return "\n\n".join(self.build())

    def segments(self) -> tuple[Segment, ...]:
        """The sections as parts of a prompt, most stable first; what is volatile goes behind the history."""
        return tuple(_segment(part) for part in sorted(self._sections(), key=lambda part: part.stability))

    def _sections(self) -> Iterator[_Section]:
        frozen, epoch, volatile = Stability.FROZEN, Stability.EPOCH, Stability.VOLATILE
        style = self.output_style
        config = bullets(f"{name}: {value}" for name, value in self.runtime_config)
        named = (
            ("intro", frozen, INTRO_WITH_STYLE if style else INTRO),
            ("output_style", frozen, section(f"Output Style: {style.name}", style.prompt) if style else ""),
            ("system", frozen, SYSTEM),
            ("doing_tasks", frozen, DOING_TASKS),
            ("actions", frozen, ACTIONS),
            ("environment", volatile, render_environment(self.environment)),
            ("project_context", volatile, render_project_context(self.git)),
            ("project", epoch, render_instructions(self.instructions)),
            ("runtime_config", volatile, section("Runtime config", config) if config else ""),
            *((f"appended_{number}", volatile, text) for number, text in enumerate(self.appended, 1)),
        )
        for name, stability, text in named:
            sendable = without_boundary(mend_surrogates(text)).strip("\n")
            if sendable.strip():
                yield _Section(name, stability, sendable)


def split_at_boundary(text: str) -> tuple[str, str]:
    """What stands before the first boundary, and what stands behind it; without one, all of it is stable.

    Line breaks next to the boundary belong to it, and every further boundary is taken out.
    """
    stable, boundary, volatile = text.partition(SYSTEM_PROMPT_DYNAMIC_BOUNDARY)
    if not boundary:
        return text, ""
    return stable.rstrip("\r\n"), without_boundary(volatile).lstrip("\r\n")


def sendable(text: str) -> str:
    """The text without boundary and without lone surrogates, neither of which may reach the wire."""
    return without_boundary(mend_surrogates(text))


def without_boundary(text: str) -> str:
    removed = text.replace(SYSTEM_PROMPT_DYNAMIC_BOUNDARY, "")
    # Taking one out may have joined the halves of another; a space, which is in no boundary, parts them.
    return removed.replace(SYSTEM_PROMPT_DYNAMIC_BOUNDARY, " ")


def _segment(part: _Section) -> Segment:
    content = (Text(part.text),)
    if part.stability is Stability.VOLATILE:
        passage = Passage("user", content, layer=part.name, stability=part.stability)
        return Segment(part.name, part.stability, "messages", passages=(passage,))
    return Segment(part.name, part.stability, "system", system=content)


def _line(text: str) -> str:
    return " ".join(text.split())


def _json_text(name: str, value: Json) -> str:
    try:
        return canonical_json(value).decode()
    except (TypeError, ValueError, RecursionError):
        raise UserError(
            f"runtime config entry {name!r} cannot be written as JSON; give plain JSON values only"
        ) from None
