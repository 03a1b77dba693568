"""Which skills a session has, by name, and which of them a query means."""

from collections.abc import Iterable

from holdfast.sources.skills.skill import Skill, SkillFinding

SEARCH_LIMIT = 10


class SkillStore:
    """Skills as they were when they were loaded; nothing here changes, or looks at the disk again."""

    def __init__(self, skills: Iterable[Skill] = (), findings: Iterable[SkillFinding] = ()) -> None:
        by_name = {skill.name: skill for skill in skills}
        self._skills = {name: by_name[name] for name in sorted(by_name)}
        self._words: tuple[tuple[str, str, Skill], ...] | None = None
        self.findings = tuple(findings)

    @classmethod
    def empty(cls) -> "SkillStore":
        return cls()

    def list_skills(self) -> list[Skill]:
        """By name."""
        return list(self._skills.values())

    def get(self, name: str) -> Skill | None:
        return self._skills.get(name)

    def search(self, query: str, *, limit: int = SEARCH_LIMIT) -> list[Skill]:
        """Skills whose name holds the query, then those whose description does, each by name; all for a blank query."""
        limit = max(0, limit)
        wanted = query.strip().lower()
        if not wanted:
            return list(self._skills.values())[:limit]
        if self._words is None:
            # Made once, when first asked for: most sessions never search.
            self._words = tuple((one.name.lower(), one.description.lower(), one) for one in self._skills.values())
        ranked: tuple[list[Skill], ...] = ([], [], [], [])
        for name, description, skill in self._words:
            score = 2 * (wanted in name) + (wanted in description)
            if score:
                ranked[3 - score].append(skill)
        return [skill for rank in ranked for skill in rank][:limit]

    def discovery_index(self) -> list[tuple[str, str]]:
        """Name and description of every skill, by name."""
        return [(skill.name, skill.description) for skill in self._skills.values()]

    def __len__(self) -> int:
        return len(self._skills)

    def __contains__(self, name: object) -> bool:
        return name in self._skills

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SkillStore) and self._skills == other._skills
