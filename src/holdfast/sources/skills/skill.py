"""A skill, and the findings of its validation."""

import hashlib
from pathlib import Path
from typing import Literal, get_args

import msgspec

SkillSource = Literal["global", "workspace"]
SkillMode = Literal["seed", "strict", "lenient"]
Severity = Literal["error", "warning"]
SKILL_MODES: tuple[SkillMode, ...] = get_args(SkillMode)
SkillRanking = Literal["lexical", "semantic"]
SKILL_RANKINGS: tuple[SkillRanking, ...] = get_args(SkillRanking)
OWN_FOLDER = ".holdfast/skills"
SEED_FOLDER = ".metis/skills"
OPTIONAL_FOLDERS = (".agents/skills", ".claude/skills", SEED_FOLDER)
"""Skill folders of other programs, below a home or a workspace; read only on request."""

NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 1024
COMPATIBILITY_CHARS_MAX = 500
BODY_TOKENS_WARN = 5_000
BODY_TOKENS_MAX = 30_000
"""The default of `skill_tokens_max`: a session refuses to load a body of this size, even as its first."""


BODY_CAP_RULE = "body-cap"


class Skill(msgspec.Struct, frozen=True):
    """One skill as read from disk; `body` is the Markdown after the front matter, without leading newlines."""

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
        """A digest of the body alone: it changes exactly when the instructions for the agent change."""
        return hashlib.sha256(self.body.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @property
    def estimated_body_tokens(self) -> int:
        # The rule of seed 001: four characters per token.
        return max(1, len(self.body) // 4)

    @property
    def over_body_token_warn(self) -> bool:
        return self.estimated_body_tokens > BODY_TOKENS_WARN


class SkillFinding(msgspec.Struct, frozen=True):
    """A broken rule, its location and how to fix it; an error keeps the skill from loading.

    `line` counts from 1; it is None for a folder or a file that cannot be opened.
    """

    file: str
    line: int | None
    rule: str
    message: str
    fix: str
    severity: Severity = "error"

    def __str__(self) -> str:
        location = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{location}: {self.message}; {self.fix} ({self.rule})"


class SkillReport(msgspec.Struct, frozen=True):
    """The result of reading one folder: a skill, or the reasons why there is none.

    `name` is the name of the skill; without a skill, the name in the front matter if that could be read.
    """

    path: str
    name: str | None = None
    skill: Skill | None = None
    findings: tuple[SkillFinding, ...] = ()

    @property
    def valid(self) -> bool:
        return self.skill is not None

    @property
    def loadable(self) -> bool:
        """Whether a session can load the body; it can list a valid skill, but not load one that is too large."""
        return self.valid and all(finding.rule != BODY_CAP_RULE for finding in self.findings)
