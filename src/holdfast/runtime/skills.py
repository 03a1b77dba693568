"""The skills of a session, and their index in its prompt."""

import logging
import os
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from holdfast.engine.state import SessionState
from holdfast.engine.tools.builtin.skills import SKILL_TOOL_NAMES
from holdfast.engine.tools.skill_budget import ActivationLimits, skill_loaded_event
from holdfast.errors import UserError
from holdfast.events.payloads.session import SkillLoaded
from holdfast.layers.padding import SKILL_FOLDER_NOTE
from holdfast.layers.system_prompt import clean_text
from holdfast.runtime.config import Config, default_skill_roots
from holdfast.runtime.options import Options
from holdfast.sources.files import format_path
from holdfast.sources.skills.discovery import SKILL_FILE, SkillLimits, SkillRoot
from holdfast.sources.skills.index import INDEX_TOKENS_MAX, render_skill_index
from holdfast.sources.skills.library import SkillLibrary, load_skill, read_skill_library
from holdfast.sources.skills.skill import Skill
from holdfast.sources.skills.store import SkillStore
from holdfast.types.prompt import LayerText

logger = logging.getLogger(__name__)
SKILLS_LAYER = "skills"
LIBRARIES_MAX = 16

# Skill libraries that this process has read. Reloading one reads only the files whose time or size changed.
_libraries: dict[tuple[tuple[SkillRoot, ...], SkillLimits], SkillLibrary] = {}


class SessionSkills(msgspec.Struct, frozen=True):
    """`store` is None if skills are not configured; the skill tools are in the prompt if `has_tools`."""

    store: SkillStore | None = None
    has_tools: bool = False
    limits: ActivationLimits = ActivationLimits()
    enforce_allowed_tools: bool = False
    workspace: Path | None = None
    index_tokens_max: int | None = INDEX_TOKENS_MAX

    @property
    def skills(self) -> list[Skill]:
        return self.store.list_skills() if self.store is not None else []

    @property
    def bodies(self) -> list[tuple[str, str]]:
        """The bodies that may be preloaded as padding.

        A skill whose allowed tools are enforced is left out, because its rules apply only once it is loaded.
        """
        preloadable = (skill for skill in self.skills if not (self.enforce_allowed_tools and skill.allowed_tools))
        return [(skill.name, self._preloaded_text(skill)) for skill in preloadable if skill.body.strip()]

    def _preloaded_text(self, skill: Skill) -> str:
        folder = skill.skill_dir
        # Relative, so that every checkout of a project has the same prefix, and they share its cache.
        if self.workspace is not None and skill.source == "workspace" and folder.is_relative_to(self.workspace):
            folder = folder.relative_to(self.workspace)
        return clean_text(f"{skill.body.rstrip()}\n\n{SKILL_FOLDER_NOTE}{format_path(folder)}")

    def index(self, preloaded: Collection[str] = ()) -> tuple[LayerText, ...]:
        index = render_skill_index(
            self.skills,
            preloaded=preloaded,
            tokens_max=self.index_tokens_max,
            body_tokens_max=self.limits.tokens_max,
        )
        text = clean_text(index.text)
        return (LayerText(SKILLS_LAYER, text),) if text else ()

    def preloaded_events(self, names: Collection[str]) -> tuple[SkillLoaded, ...]:
        return tuple(skill_loaded_event(skill) for skill in self.skills if skill.name in names)


def load_session_skills(options: Options, config: Config, state: SessionState, workspace: Path | None) -> SessionSkills:
    """The skills of the options; by default a session has them under the seed profile, or if it had them before."""
    if state.model:
        config = replace(config, profile=state.profile)
    is_seed = config.profile == "seed"
    had_tools = any(spec.name in SKILL_TOOL_NAMES for spec in state.tools)
    chosen = options.get("skills", had_tools if state.model else is_seed)
    store = chosen if isinstance(chosen, SkillStore) else _load_store(chosen, config, workspace)
    if store is not None and store.ranking == "lexical":
        store = store.with_ranking(options.get("skill_ranking", config.skill_ranking))
    if state.model and store is not None and (missing := [name for name in state.skills if name not in store]):
        logger.warning("skills that this session had are missing now: %s", ", ".join(missing))
    return SessionSkills(
        store,
        # The seed has both tools for an empty store, too; a stored session has the tools that its prefix declares.
        has_tools=had_tools or bool(store) or (is_seed and store is not None and not state.model),
        limits=ActivationLimits(config.skill_loads_max, config.skill_tokens_warn, config.skill_tokens_max),
        enforce_allowed_tools=options.get("enforce_allowed_tools", False),
        workspace=Path(os.path.abspath(workspace)) if workspace else None,
        # The seed's index has no limit.
        index_tokens_max=None if is_seed else INDEX_TOKENS_MAX,
    )


def _load_store(
    chosen: bool | str | Path | Sequence[str | Path], config: Config, workspace: Path | None
) -> SkillStore | None:
    if chosen is False:
        return None
    limits = SkillLimits(body_tokens_max=config.skill_tokens_max)
    if chosen is True:
        return _read_cached(default_skill_roots(config, os.environ, workspace=workspace), limits)
    mode, nested = config.skills_mode or "seed", config.profile != "seed"
    folders = [chosen] if isinstance(chosen, str | Path) else chosen
    roots = [replace(_root(Path(folder), workspace), mode=mode, nested=nested) for folder in folders]
    skill_roots = [root for root in roots if os.path.lexists(os.path.join(root.path, SKILL_FILE))]
    store = _read_cached(tuple(root for root in roots if root not in skill_roots), limits)
    if not skill_roots:
        return store
    single_skills = (load_skill(root.path, source=root.source, mode=mode) for root in skill_roots)
    return SkillStore((*store.list_skills(), *single_skills))


def _read_cached(roots: tuple[SkillRoot, ...], limits: SkillLimits) -> SkillStore:
    cached = _libraries.get((roots, limits))
    library = cached.reload() if cached is not None else read_skill_library(roots, limits=limits)
    if cached is None and len(_libraries) >= LIBRARIES_MAX:
        _libraries.clear()
    _libraries[roots, limits] = library
    return library.store


def _root(folder: Path, workspace: Path | None) -> SkillRoot:
    """A folder that the caller named. A workspace is untrusted: links that lead out of it are not followed."""
    if not folder.is_dir():
        raise UserError(f"skills: {str(folder)!r} is not a folder")
    path = os.path.abspath(folder)
    if workspace is not None and Path(path).is_relative_to(os.path.abspath(workspace)):
        return SkillRoot(path, "workspace", str(workspace))
    return SkillRoot(path, "global")
