"""The default skill folders: the user's, the workspace's, and those of other programs that are turned on."""

from collections.abc import Mapping
from pathlib import Path

from holdfast.runtime.config import Config
from holdfast.sources.home import user_home
from holdfast.sources.skills.found import SkillRoot
from holdfast.sources.skills.library import skill_roots


def usual_roots(config: Config, environ: Mapping[str, str], *, workspace: Path | None) -> tuple[SkillRoot, ...]:
    """The folders to read; a skill in a later folder overrides one of the same name in an earlier one."""
    also = config.also_skills
    home = user_home(environ) if also else None
    return skill_roots(Path(config.home) / "skills", workspace, home=home, also=also)
