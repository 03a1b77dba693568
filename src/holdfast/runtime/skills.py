"""Which skills a session has, and what its prompt says of them."""

import logging
import os
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from holdfast.canonical.view import LayerText
from holdfast.engine.activation import ActivationLimits, loaded_event
from holdfast.engine.builtin.skills import NAMES
from holdfast.engine.state import State
from holdfast.errors import UserError
from holdfast.events.payloads import SkillLoaded
from holdfast.layers.builder import sendable
from holdfast.runtime.config import Config
from holdfast.runtime.options import Options
from holdfast.runtime.skill_folders import usual_roots
from holdfast.sources.skills.found import SKILL_FILE, SkillRoot
from holdfast.sources.skills.index import skill_index
from holdfast.sources.skills.library import SkillLibrary, load_skill, read_library
from holdfast.sources.skills.skill import SKILL_MODES, Skill, SkillMode
from holdfast.sources.skills.store import SkillStore

logger = logging.getLogger(__name__)

LAYER = "skills"
LIBRARIES_MAX = 16

_libraries: dict[tuple[tuple[SkillRoot, ...], SkillMode], SkillLibrary] = {}
"""What sessions of this process have read before: of an unchanged file, only its time and size are looked at."""


class SessionSkills(msgspec.Struct, frozen=True):
    """`store` is None where skills are not configured; the model is told of the tools where they are `offered`."""

    store: SkillStore | None = None
    offered: bool = False
    limits: ActivationLimits = ActivationLimits()
    enforced: bool = False

    @property
    def skills(self) -> list[Skill]:
        return self.store.list_skills() if self.store is not None else []

    @property
    def bodies(self) -> list[tuple[str, str]]:
        """What may be told from the start. Rules that are enforced bind once a skill is loaded, and not before."""
        told = (skill for skill in self.skills if skill.body.strip() and not (self.enforced and skill.allowed_tools))
        return [(skill.name, sendable(skill.body)) for skill in told]

    def index(self, preloaded: Collection[str] = ()) -> tuple[LayerText, ...]:
        text = sendable(skill_index(self.skills, preloaded=preloaded).text)
        return (LayerText(LAYER, text),) if text else ()

    def preloaded_events(self, names: Collection[str]) -> tuple[SkillLoaded, ...]:
        return tuple(loaded_event(skill) for skill in self.skills if skill.name in names)


def session_skills(options: Options, config: Config, state: State, *, workspace: Path | None) -> SessionSkills:
    """What the caller asked for; unasked, a session has skills in the seed profile, or if it had them before."""
    usual = any(spec.name in NAMES for spec in state.tools) if state.model else config.profile == "seed"
    chosen = options.get("skills", usual)
    store = chosen if isinstance(chosen, SkillStore) else _loaded(chosen, options, config, workspace)
    if store is not None and store.ranking == "lexical":
        store = store.with_ranking(options.get("skill_ranking", config.skill_ranking))
    if state.model and store is not None and (gone := [name for name in state.skills if name not in store]):
        logger.warning("skills of this session are not there any more: %s", ", ".join(gone))
    limits = ActivationLimits(config.skill_loads_max, config.skill_tokens_warn, config.skill_tokens_max)
    return SessionSkills(store, bool(store) or usual, limits, options.get("enforce_allowed_tools", False))


def _loaded(
    chosen: bool | str | Path | Sequence[str | Path], options: Options, config: Config, workspace: Path | None
) -> SkillStore | None:
    if chosen is False:
        return None
    mode = options.get("skills_mode", "seed")
    if mode not in SKILL_MODES:
        raise UserError(f"skills_mode must be one of {', '.join(SKILL_MODES)}, not {mode!r}")
    if chosen is True:
        return _read(usual_roots(config, os.environ, workspace=workspace), mode)
    named = [_root(Path(folder), workspace) for folder in ([chosen] if isinstance(chosen, str | Path) else chosen)]
    single = [root for root in named if os.path.lexists(os.path.join(root.path, SKILL_FILE))]
    store = _read(tuple(root for root in named if root not in single), mode)
    if not single:
        return store
    return SkillStore((*store.list_skills(), *(load_skill(one.path, source=one.source, mode=mode) for one in single)))


def _read(roots: tuple[SkillRoot, ...], mode: SkillMode) -> SkillStore:
    before = _libraries.get((roots, mode))
    library = before.reloaded() if before is not None else read_library(roots, mode)
    if before is None and len(_libraries) >= LIBRARIES_MAX:
        _libraries.clear()
    _libraries[roots, mode] = library
    return library.store


def _root(folder: Path, workspace: Path | None) -> SkillRoot:
    """A folder that the caller named: the user's own, or the workspace's, whose links are not followed out of it."""
    if not folder.is_dir():
        raise UserError(f"skills: {str(folder)!r} is not a folder")
    path = os.path.abspath(folder)
    if workspace is not None and Path(path).is_relative_to(os.path.abspath(workspace)):
        return SkillRoot(path, "workspace", str(workspace))
    return SkillRoot(path, "global")
