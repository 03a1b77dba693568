"""Which skills a session has, by name, and which of them a query means."""

import threading
from collections.abc import Iterable
from typing import Literal, get_args

from holdfast.errors import UserError
from holdfast.retrieval.index import Answer, Index
from holdfast.retrieval.meaning import check_installed, meaning_stage
from holdfast.retrieval.units import Unit
from holdfast.sources.skills.skill import Skill, SkillFinding

SEARCH_LIMIT = 10
BODY_CHARACTERS_RANKED_MAX = 4_000
"""How much of a body is ranked by its meaning; what a skill is for stands at its beginning."""

SkillRanking = Literal["lexical", "semantic"]
SKILL_RANKINGS: tuple[SkillRanking, ...] = get_args(SkillRanking)


class SkillStore:
    """Skills as they were when they were loaded; nothing here changes, or looks at the disk again."""

    def __init__(
        self,
        skills: Iterable[Skill] = (),
        findings: Iterable[SkillFinding] = (),
        *,
        ranking: SkillRanking = "lexical",
    ) -> None:
        if ranking not in SKILL_RANKINGS:
            raise UserError(f"skill_ranking must be one of {', '.join(SKILL_RANKINGS)}, not {ranking!r}")
        if ranking == "semantic":
            check_installed()
        by_name = {skill.name: skill for skill in skills}
        self._skills = {name: by_name[name] for name in sorted(by_name)}
        self._words: tuple[tuple[str, str, Skill], ...] | None = None
        self._index: Index | None = None
        self._lock = threading.Lock()
        self._ranked_otherwise: SkillStore | None = None
        self.findings = tuple(findings)
        self.ranking: SkillRanking = ranking

    @classmethod
    def empty(cls) -> "SkillStore":
        return cls()

    def with_ranking(self, ranking: SkillRanking) -> "SkillStore":
        """The same skills, searched in this way; the same store each time, with what it has prepared."""
        if ranking == self.ranking:
            return self
        if self._ranked_otherwise is None or self._ranked_otherwise.ranking != ranking:
            self._ranked_otherwise = SkillStore(self._skills.values(), self.findings, ranking=ranking)
        return self._ranked_otherwise

    def list_skills(self) -> list[Skill]:
        """By name."""
        return list(self._skills.values())

    def get(self, name: str) -> Skill | None:
        return self._skills.get(name)

    def search(self, query: str, *, limit: int = SEARCH_LIMIT) -> list[Skill]:
        """Skills whose name holds the query, then those whose description does, each by name; all for a blank query.

        Where the ranking is semantic, those that fit the query, best first.
        """
        limit = max(0, limit)
        wanted = query.strip().lower()
        if not wanted:
            return list(self._skills.values())[:limit]
        if self.ranking == "semantic":
            return [self._skills[one.id] for one in self.ranked(query, limit=limit).found]
        if self._words is None:
            # Made once, when first asked for: most sessions never search.
            self._words = tuple((one.name.lower(), one.description.lower(), one) for one in self._skills.values())
        ranked: tuple[list[Skill], ...] = ([], [], [], [])
        for name, description, skill in self._words:
            score = 2 * (wanted in name) + (wanted in description)
            if score:
                ranked[3 - score].append(skill)
        return [skill for rank in ranked for skill in rank][:limit]

    def ranked(self, query: str, *, limit: int = SEARCH_LIMIT) -> Answer:
        """Which skills fit by words and meaning, and why; the first time takes as long as all skills take to read."""
        with self._lock:
            if self._index is None:
                self._index = Index(map(_unit, self._skills.values()), meaning=meaning_stage())
            return self._index.search(query, limit=limit)

    def discovery_index(self) -> list[tuple[str, str]]:
        """Name and description of every skill, by name."""
        return [(skill.name, skill.description) for skill in self._skills.values()]

    def __len__(self) -> int:
        return len(self._skills)

    def __contains__(self, name: object) -> bool:
        return name in self._skills

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SkillStore) and self._skills == other._skills


def _unit(skill: Skill) -> Unit:
    return Unit(skill.name, skill.name, skill.description, content=skill.body[:BODY_CHARACTERS_RANKED_MAX])
