"""How long it takes to read, reload and search a library of skills, and to check it beside the reference validator.

That is skills-ref, whose `validate` reads and checks one folder at a time, in an environment of its own. Both read the
same folders; ours makes skills of them meanwhile. What is compared is processor time.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks._peers import measure_peers
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
PEERS = (
    (
        "skills-ref",
        "0.1.1",
        """
import json, sys, time
from pathlib import Path
from skills_ref import validate
given, best = json.loads(sys.stdin.read()), float("inf")
folders = sorted(Path(given["folder"]).iterdir())
for _ in range(given["rounds"]):
    start = time.process_time()
    problems = [problem for folder in folders for problem in validate(folder)]
    best = min(best, time.process_time() - start)
assert not problems, problems[0]
print(json.dumps(best * 1000))
""",
    ),
)


def run() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        for number in range(SKILLS):
            _write(Path(folder), number)
        root = SkillRoot(folder, "global")
        library = read_skill_library((root,))
        assert len(library.store) == SKILLS, "a skill of the benchmark does not load"
        yield f"{SKILLS} skills cold, ms", _elapsed_and_processor(lambda: read_skill_library((root,)))
        yield f"{SKILLS} skills warm, ms", _elapsed_and_processor(library.reload)
        strict = _best(lambda: read_skill_library((root,), "strict"), clock=time.process_time)
        yield f"holdfast, {SKILLS:,} skills checked", f"{strict:.1f} ms of processor time"
        yield from measure_peers(PEERS, "", {"folder": folder, "rounds": ROUNDS}, _describe_check)
        yield f"index of {SKILLS} skills, ms", f"{_best(lambda: render_skill_index(library.store.list_skills())):.1f}"
    yield from _searches()


def _describe_check(name: str, milliseconds: object) -> Iterator[tuple[str, str]]:
    yield f"{name}, {SKILLS:,} skills checked", f"{milliseconds:.1f} ms of processor time"


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
