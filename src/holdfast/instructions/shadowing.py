"""What lazy recall would have given while all instructions stood in the prompt, and whether that would have done.

A turn in shadow is an audit record: what was recalled beside it, and, once it is closed, which units it used.
"""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.errors import StoreError
from holdfast.instructions.counting import count_cl100k
from holdfast.instructions.index_lines import index_text
from holdfast.instructions.recall import Shelf
from holdfast.instructions.stub import GENERIC, stub_body
from holdfast.instructions.values import Agent, AuditRecord, Manifest

TURNS_MIN = 10
COVERAGE_MIN = 0.95
SMALL_TOKENS, SMALL_SHARE_MAX = 1_500, 0.50
LARGE_TOKENS, LARGE_SHARE_MAX = 3_000, 0.25


class Weighed(msgspec.Struct, frozen=True):
    """What stands in the prompt of every turn: all texts and rules, or stub and index."""

    eager_tokens: int
    standing_tokens: int


class Turn(msgspec.Struct, frozen=True):
    """`needed` is None where nobody said what was used; `went_without` are units that were missed, as was said."""

    audit_token: str
    intent: str
    given: frozenset[str]
    eager_tokens: int
    lazy_tokens: int
    needed: frozenset[str] | None = None
    went_without: frozenset[str] = frozenset()


class Regression(msgspec.Struct, frozen=True):
    """A turn that would have had nothing of what it needed, or would have gone wrong without a unit, as was said."""

    audit_token: str
    intent: str
    without: tuple[str, ...]


class ShadowReport(msgspec.Struct, frozen=True):
    """Of one manifest. Tokens are means over turns; `coverage` is over units that were needed, null where none was.

    `shortfalls` says what is not enough; there is none where lazy recall would have done.
    """

    manifest_version: str
    turns: int
    told: int
    coverage: float | None
    eager_tokens: int
    lazy_tokens: int
    share: float | None
    share_max: float
    regressions: tuple[Regression, ...]
    missed_units: dict[str, int]
    shortfalls: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.shortfalls


def weighed(agent: Agent, shelf: Shelf) -> Weighed:
    rules = sum(map(count_cl100k, agent.always_rules))
    standing = f"{stub_body(agent, shelf.manifest, GENERIC)}\n{index_text(shelf.manifest.body)}"
    return Weighed(rules + sum(one.tokens for one in shelf.contents.values()), count_cl100k(standing))


def share_max(eager_tokens: float) -> float:
    """The less there is to load, the more of it stub and index are: half below 1,500 tokens, a quarter above 3,000."""
    way = (eager_tokens - SMALL_TOKENS) / (LARGE_TOKENS - SMALL_TOKENS)
    return SMALL_SHARE_MAX + (LARGE_SHARE_MAX - SMALL_SHARE_MAX) * min(1.0, max(0.0, way))


def shadow_report(records: Sequence[AuditRecord], manifest: Manifest) -> ShadowReport:
    """By the turns, oldest first, that were recorded with this manifest. Raises StoreError for damaged ones."""
    turns = tuple(_turns(records, manifest))
    needs = [(turn, turn.needed) for turn in turns if turn.needed is not None]
    needed = sum(len(names) for _, names in needs)
    missed = [name for turn, names in needs for name in sorted(names - turn.given)]
    regressions = tuple(
        Regression(turn.audit_token, turn.intent, tuple(sorted(names - turn.given)))
        for turn, names in needs
        if turn.went_without - turn.given or (names and not names & turn.given)
    )
    eager, lazy = (sum(sizes) for sizes in ([one.eager_tokens for one in turns], [one.lazy_tokens for one in turns]))
    report = ShadowReport(
        manifest.version,
        len(turns),
        len(needs),
        1 - len(missed) / needed if needed else None,
        round(eager / len(turns)) if turns else 0,
        round(lazy / len(turns)) if turns else 0,
        lazy / eager if eager else None,
        share_max(eager / len(turns) if turns else 0),
        regressions,
        {name: missed.count(name) for name in sorted(set(missed))},
        (),
    )
    return msgspec.structs.replace(report, shortfalls=tuple(_shortfalls(report)))


def _turns(records: Sequence[AuditRecord], manifest: Manifest) -> Iterator[Turn]:
    """What was preloaded or recalled in a run stays in its history: every later turn of it has it, and pays for it."""
    listed = {entry.name for entry in manifest.body}
    runs: dict[str, tuple[frozenset[str], int]] = {}
    for one in records:
        is_turn = one.event_type == "shadow" and one.detail.get("manifest_version") == manifest.version
        if not is_turn and one.event_type != "preload":
            continue
        before, tokens = runs.get(one.heartbeat_id, (frozenset(), 0))
        given = before | {chunk.name for chunk in one.loaded_chunks}
        tokens += sum(chunk.tokens for chunk in one.loaded_chunks)
        runs[one.heartbeat_id] = (given, tokens)
        if not is_turn:
            continue
        try:
            weights = msgspec.convert(one.detail, Weighed)
        except msgspec.ValidationError as error:
            raise StoreError("a record of a turn in shadow is damaged") from error
        turn = Turn(one.audit_token, one.intent, given, weights.eager_tokens, weights.standing_tokens + tokens)
        if one.audit_closed is not None:
            without = frozenset(one.missed_chunks) & listed
            needed = frozenset(one.used_chunks) & listed | without
            turn = msgspec.structs.replace(turn, needed=needed, went_without=without)
        yield turn


def _shortfalls(report: ShadowReport) -> Iterator[str]:
    if report.told < TURNS_MIN:
        yield f"{report.told} of at least {TURNS_MIN} turns say what they used"
    if report.coverage is None:
        yield "no turn has used a unit"
    elif report.coverage < COVERAGE_MIN:
        yield f"{report.coverage:.1%} of the units that were needed would have been there, and not {COVERAGE_MIN:.0%}"
    if report.share is not None and report.share >= report.share_max:
        yield f"{report.share:.1%} of the tokens would be spent, and not less than {report.share_max:.0%}"
    if report.regressions:
        yield f"turns that would have gone wrong: {len(report.regressions)}"
