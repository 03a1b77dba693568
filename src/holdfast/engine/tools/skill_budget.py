"""Tracks which skills are in a session's context, and enforces the budget for loading more."""

import logging
from collections.abc import Collection

import msgspec
from msgspec.structs import replace

from holdfast.events.payloads.session import SkillLoaded, SkillUsed
from holdfast.sources.files import format_path
from holdfast.sources.skills.skill import BODY_TOKENS_MAX, Skill

logger = logging.getLogger(__name__)

# Seed 000, section 5.2.4, which calls these defaults "picks, not measurements".
MAX_EXPLICIT_ACTIVATIONS_PER_SESSION = 3
WARN_CUMULATIVE_ACTIVATION_TOKENS = 10_000
HARD_CAP_CUMULATIVE_ACTIVATION_TOKENS = BODY_TOKENS_MAX


class ActivationLimits(msgspec.Struct, frozen=True):
    """How many skills a model may load in a session; their tokens together stay below `tokens_max`."""

    loads_max: int = MAX_EXPLICIT_ACTIVATIONS_PER_SESSION
    tokens_warn: int = WARN_CUMULATIVE_ACTIVATION_TOKENS
    tokens_max: int = HARD_CAP_CUMULATIVE_ACTIVATION_TOKENS


class LoadedSkill(msgspec.Struct, frozen=True):
    """A skill whose body is in the history, in the result of the call `tool_use_id`."""

    name: str
    tokens: int
    tool_use_id: str | None = None


class Activations(msgspec.Struct, frozen=True):
    """`preloaded` bodies are part of the system prompt and do not count; `loaded` ones are in the order of loading.

    `used` are the preloaded ones that the model is known to have used.
    """

    preloaded: tuple[str, ...] = ()
    loaded: tuple[LoadedSkill, ...] = ()
    used: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the skills that the model has loaded."""
        return tuple(skill.name for skill in self.loaded)

    @property
    def tokens(self) -> int:
        return sum(skill.tokens for skill in self.loaded)


NO_ACTIVATIONS = Activations()
DEFAULT_LIMITS = ActivationLimits()


def add_activation(before: Activations, event: SkillLoaded) -> Activations:
    """The activations after one more load; a skill that is already active changes nothing."""
    name = event.skill_id
    if event.load_reason == "always":
        return before if name in before.preloaded else replace(before, preloaded=(*before.preloaded, name))
    if name in before.names:
        return before
    loaded = LoadedSkill(name, event.load_size_tokens, event.triggered_by_tool_use_id)
    return replace(before, loaded=(*before.loaded, loaded))


def add_use(before: Activations, event: SkillUsed) -> Activations:
    """The activations after a sign that a preloaded skill was used."""
    return before if event.skill_id in before.used else replace(before, used=(*before.used, event.skill_id))


def remove_activations(before: Activations, tool_use_ids: Collection[str]) -> Activations:
    """The activations after the results of these calls were removed from the history, which frees their budget."""
    remaining = tuple(skill for skill in before.loaded if skill.tool_use_id not in tool_use_ids)
    return before if len(remaining) == len(before.loaded) else replace(before, loaded=remaining)


def load_refusal_reason(active: Activations, skill: Skill, limits: ActivationLimits) -> str | None:
    """Why the budget has no room for a skill, as a message to the model; None if it has."""
    names = ", ".join(active.names)
    hint = (
        f"Already loaded: [{names}]. To free\n"
        "budget, summarize and discard previously loaded skill bodies in your\nnext response."
    )
    count, tokens = len(active.loaded), skill.estimated_body_tokens
    used = "skills already activated this session"
    if count >= limits.loads_max:
        return f"activation budget exhausted: {count} {used}\n(limit {limits.loads_max}). {hint}"
    # Reaching the cap is refused, not only exceeding it (seed 000, section 5.2.4).
    if active.tokens + tokens >= limits.tokens_max:
        used = f"{active.tokens} tokens of {used}, and {skill.name!r} has {tokens}"
        refusal = f"activation budget exhausted: {used}\n(limit {limits.tokens_max}). {hint}"
        if tokens < limits.tokens_max:
            return refusal
        file = format_path(skill.skill_dir / "SKILL.md")
        return f"{refusal} This skill alone is over the limit and is never loaded: read {file} in parts."
    return None


class SkillActivationRegistry:
    """The activations shared by concurrent calls, so that together they cannot exceed the budget."""

    def __init__(self, active: Activations = NO_ACTIVATIONS, limits: ActivationLimits = DEFAULT_LIMITS) -> None:
        self.active = active
        self._limits = limits

    def refusal_reason(self, skill: Skill) -> str | None:
        return load_refusal_reason(self.active, skill, self._limits)

    def activate(self, skill: Skill, tool_use_id: str) -> SkillLoaded:
        """Count a skill as loaded; the caller has to record the returned event."""
        event = skill_loaded_event(skill, tool_use_id)
        before, self.active = self.active.tokens, add_activation(self.active, event)
        # Warn once, when the threshold is crossed.
        if before < self._limits.tokens_warn <= self.active.tokens:
            warning = "the skills that this session has loaded add %d tokens to every later call (%s)"
            logger.warning(warning, self.active.tokens, ", ".join(self.active.names))
        return event


def skill_loaded_event(skill: Skill, tool_use_id: str | None = None) -> SkillLoaded:
    """The event of a body in the context: loaded by the call `tool_use_id`, or preloaded."""
    return SkillLoaded(
        skill_id=skill.name,
        skill_version=skill.version,
        load_reason="on_demand" if tool_use_id is not None else "always",
        load_size_tokens=skill.estimated_body_tokens,
        source=skill.source,
        triggered_by_tool_use_id=tool_use_id,
    )
