"""How long it takes to read, reload and search a library of skills, compared with the reference validator.

That is the package skills-ref, if it is installed; its `validate` reads and checks one folder at a time.
"""

import importlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.sources.skills.discovery import SkillRoot
from holdfast.sources.skills.index import render_skill_index
from holdfast.sources.skills.library import read_skill_library
from holdfast.sources.skills.skill import Skill
from holdfast.sources.skills.store import SkillStore

SKILLS = 1_000
SEARCHED = 3_000
BODY = "Read the file, look at each part, and say what you found in a list. " * 30
WORDS = (
    *("extract", "merge", "review", "deploy", "table", "chart", "invoice"),
    *("test", "schema", "python", "summary", "figure", "audit", "report"),
)
ROUNDS = 5


def run() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(SKILLS):
            _write(Path(folder), number)
        root = SkillRoot(folder, "global")
        library = read_skill_library((root,))
        assert len(library.store) == SKILLS, "a skill of the benchmark does not load"
        yield f"{SKILLS} skills cold, ms", _elapsed_and_processor(lambda: read_skill_library((root,)))
        yield f"{SKILLS} skills warm, ms", _elapsed_and_processor(library.reload)
        strict = _best(lambda: read_skill_library((root,), "strict"))
        yield from _beside_the_reference(Path(folder), strict)
        yield f"index of {SKILLS} skills, ms", f"{_best(lambda: render_skill_index(library.store.list_skills())):.1f}"
    yield from _searches()


def _beside_the_reference(folder: Path, ours: float) -> Iterator[tuple[str, str]]:
    try:
        validate = importlib.import_module("skills_ref.validator").validate
    except ImportError:
        yield "skills-ref", "not installed, skipped"
        return
    theirs = _best(lambda: [validate(skill) for skill in folder.iterdir()], rounds=2)
    yield "skills-ref validate, ms", f"{theirs:.1f}: {theirs / ours:.1f} times as long as ours by the same rules"


def _searches() -> Iterator[tuple[str, str]]:
    random_source = random.Random(7)
    skills = [
        Skill(f"skill-{number}", _description(random_source), "body", "global", Path("skill"))
        for number in range(SEARCHED)
    ]
    store = SkillStore(skills)
    for query in ("invoice", "skill-29", "nothing has this"):
        yield f"search over {SEARCHED} for {query!r}, ms", f"{_best(lambda: store.search(query)):.2f}"  # noqa: B023


def _write(folder: Path, number: int) -> None:
    random_source = random.Random(number)
    skill = folder / f"skill-{number}"
    skill.mkdir()
    front = f"name: skill-{number}\ndescription: {_description(random_source)}\nlicense: MIT"
    if number % 4 == 0:
        front += '\nmetadata:\n  author: someone\n  version: "1.0"'
    (skill / "SKILL.md").write_text(f"---\n{front}\n---\n\n# Skill {number}\n\n{BODY}\n")


def _description(random_source: random.Random) -> str:
    verbs = " and ".join(random_source.sample(WORDS, 8))
    return f"Helps to {verbs}. Use when the user asks for {random_source.choice(WORDS)}."


def _elapsed_and_processor(action: Callable[[], object]) -> str:
    """On a busy machine only the processor time is meaningful."""
    return f"{_best(action):.1f} (processor {_best(action, clock=time.process_time):.1f})"


def _best(
    action: Callable[[], object], *, rounds: int = ROUNDS, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The shortest of some runs, in milliseconds."""
    shortest = float("inf")
    for _ in range(rounds):
        start = clock()
        action()
        shortest = min(shortest, clock() - start)
    return shortest * 1000
