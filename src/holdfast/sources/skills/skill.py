"""What a skill is, and what is said of one that cannot be used as it is."""

import hashlib
from pathlib import Path
from typing import Literal, get_args

import msgspec

SkillSource = Literal["global", "workspace"]
SkillMode = Literal["seed", "strict", "lenient"]
Severity = Literal["error", "warning"]

SKILL_MODES: tuple[SkillMode, ...] = get_args(SkillMode)

NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 1024
COMPATIBILITY_CHARS_MAX = 500
BODY_TOKENS_WARN = 5_000


class Skill(msgspec.Struct, frozen=True):
    """One skill as it was when it was read; `body` is the Markdown behind the front matter, leading newlines gone."""

    name: str
    description: str
    body: str
    source: SkillSource
    skill_dir: Path
    license: str | None = None
    compatibility: str | None = None
    metadata: dict[str, str] | None = None
    allowed_tools: tuple[str, ...] = ()

    @property
    def version(self) -> str:
        """Of the body alone: what it tells an agent to do has changed exactly when this has."""
        return hashlib.sha256(self.body.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def estimated_body_tokens(self) -> int:
        return max(1, len(self.body) // 4)

    @property
    def over_body_token_warn(self) -> bool:
        return self.estimated_body_tokens > BODY_TOKENS_WARN


class SkillFinding(msgspec.Struct, frozen=True):
    """What is wrong, where, by which rule, and how to mend it; an error keeps the skill from loading.

    `line` counts from 1 and is None for what has no line: a folder, a file that cannot be opened.
    """

    file: str
    line: int | None
    rule: str
    message: str
    mend: str
    severity: Severity = "error"

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.message}; {self.mend} ({self.rule})"


class SkillReport(msgspec.Struct, frozen=True):
    """What became of one folder: a skill, or the reasons why there is none.

    `name` is that of the skill; if there is none, what the front matter gives, if it could be read that far.
    """

    path: str
    name: str | None = None
    skill: Skill | None = None
    findings: tuple[SkillFinding, ...] = ()

    @property
    def valid(self) -> bool:
        return self.skill is not None
