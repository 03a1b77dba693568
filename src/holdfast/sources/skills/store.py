"""The skills of a session by name, and searching them."""

import threading
from collections.abc import Iterable

from holdfast.errors import UserError
from holdfast.retrieval.encoders.registry import check_installed, create_semantic_stage
from holdfast.retrieval.index import SearchIndex, SearchResult
from holdfast.retrieval.units import SearchUnit
from holdfast.sources.skills.skill import SKILL_RANKINGS, Skill, SkillFinding, SkillRanking

SEARCH_LIMIT = 10
BODY_CHARACTERS_RANKED_MAX = 4_000
"""How much of a body is ranked by meaning; a skill describes its purpose at the beginning."""


class SkillStore:
    """An immutable snapshot of loaded skills; it never reads the disk again."""

    def __init__(
        self, skills: Iterable[Skill] = (), findings: Iterable[SkillFinding] = (), *, ranking: SkillRanking = "lexical"
    ) -> None:
        if ranking not in SKILL_RANKINGS:
            raise UserError(f"skill_ranking must be one of {', '.join(SKILL_RANKINGS)}, not {ranking!r}")
        if ranking == "semantic":
            check_installed()
        by_name = {skill.name: skill for skill in skills}
        self._skills = {name: by_name[name] for name in sorted(by_name)}
        self._lowercase: tuple[tuple[str, str, Skill], ...] | None = None
        self._index: SearchIndex | None = None
        self._lock = threading.Lock()
        self._other_ranking: SkillStore | None = None
        self.findings = tuple(findings)
        self.ranking: SkillRanking = ranking

    @classmethod
    def empty(cls) -> "SkillStore":
        return cls()

    def with_ranking(self, ranking: SkillRanking) -> "SkillStore":
        """The same skills with another ranking; returns the same store each time, so that its index is built once."""
        if ranking == self.ranking:
            return self
        if self._other_ranking is None or self._other_ranking.ranking != ranking:
            self._other_ranking = SkillStore(self._skills.values(), self.findings, ranking=ranking)
        return self._other_ranking

    def list_skills(self) -> list[Skill]:
        """All skills, sorted by name."""
        return list(self._skills.values())

    def get(self, name: str) -> Skill | None:
        return self._skills.get(name)

    def search(self, query: str, *, limit: int = SEARCH_LIMIT) -> list[Skill]:
        """Skills whose name contains the query, then those whose description does, sorted by name; all if it is blank.

        With the semantic ranking, the matching skills, best first.
        """
        limit = max(0, limit)
        needle = query.strip().lower()
        if not needle:
            return list(self._skills.values())[:limit]
        if self.ranking == "semantic":
            return [self._skills[match.id] for match in self.rank(query, limit=limit).hits]
        if self._lowercase is None:
            # Built on first use, because most sessions never search.
            self._lowercase = tuple(
                (skill.name.lower(), skill.description.lower(), skill) for skill in self._skills.values()
            )
        by_rank: tuple[list[Skill], ...] = ([], [], [], [])
        for name, description, skill in self._lowercase:
            score = 2 * (needle in name) + (needle in description)
            if score:
                by_rank[3 - score].append(skill)
        return [skill for rank in by_rank for skill in rank][:limit]

    def rank(self, query: str, *, limit: int = SEARCH_LIMIT) -> SearchResult:
        """Skills ranked by words and meaning, with reasons; the first call is slow because it indexes all skills."""
        with self._lock:
            if self._index is None:
                self._index = SearchIndex(map(_search_unit, self._skills.values()), meaning=create_semantic_stage())
            return self._index.search(query, limit=limit)

    def discovery_index(self) -> list[tuple[str, str]]:
        """Name and description of every skill, sorted by name."""
        return [(skill.name, skill.description) for skill in self._skills.values()]

    def __len__(self) -> int:
        return len(self._skills)

    def __contains__(self, name: object) -> bool:
        return name in self._skills

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SkillStore) and self._skills == other._skills


def _search_unit(skill: Skill) -> SearchUnit:
    return SearchUnit(skill.name, skill.name, skill.description, content=skill.body[:BODY_CHARACTERS_RANKED_MAX])
