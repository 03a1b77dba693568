"""Shadow mode: report whether lazy recall would have sufficed while all instructions were in the prompt.

A shadow turn is an audit record: what a recall would have loaded, and once it is closed, which units were used.
"""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.catalog.token_count import count_cl100k_tokens
from holdfast.errors import StoreError
from holdfast.instructions.models import Agent, AuditRecord, Manifest
from holdfast.instructions.recall.boot_stub import GENERIC_PROFILE, render_index, render_stub_body
from holdfast.instructions.recall.selection import InstructionSet

# The thresholds for leaving shadow mode are in docs/instructions-rollout.md.
TURNS_MIN = 10
COVERAGE_MIN = 0.95
SMALL_TOKENS, SMALL_SHARE_MAX = 1_500, 0.50
LARGE_TOKENS, LARGE_SHARE_MAX = 3_000, 0.25


class PromptTokens(msgspec.Struct, frozen=True):
    """Tokens in the prompt of every turn: all texts and rules (eager), or stub and index (standing)."""

    eager_tokens: int
    standing_tokens: int


class ShadowTurn(msgspec.Struct, frozen=True):
    """`needed_units` is None if the record was not closed; the agent reported `missed_units` as missed."""

    audit_token: str
    intent: str
    loaded_units: frozenset[str]
    eager_tokens: int
    lazy_tokens: int
    needed_units: frozenset[str] | None = None
    missed_units: frozenset[str] = frozenset()


class ShadowRegression(msgspec.Struct, frozen=True):
    """A turn that would have had none of the units it needed, or lacked one that the agent reported as missed."""

    audit_token: str
    intent: str
    missing_units: tuple[str, ...]


class ShadowReport(msgspec.Struct, frozen=True):
    """For one manifest. Tokens are means over turns; `coverage` is over needed units, null if none was needed.

    `shortfalls` says which threshold is not met; it is empty if lazy recall would have sufficed.
    """

    manifest_version: str
    turns: int
    reported_turns: int
    coverage: float | None
    eager_tokens: int
    lazy_tokens: int
    share: float | None
    share_max: float
    regressions: tuple[ShadowRegression, ...]
    missed_units: dict[str, int]
    shortfalls: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.shortfalls


def measure_prompt_tokens(agent: Agent, instruction_set: InstructionSet) -> PromptTokens:
    rules = sum(map(count_cl100k_tokens, agent.always_rules))
    texts = sum(content.tokens for content in instruction_set.contents.values())
    manifest = instruction_set.manifest
    standing = f"{render_stub_body(agent, manifest, GENERIC_PROFILE)}\n{render_index(manifest.body)}"
    return PromptTokens(rules + texts, count_cl100k_tokens(standing))


def token_share_max(eager_tokens: float) -> float:
    """The largest acceptable share of lazy to eager tokens: half below 1,500 tokens, a quarter above 3,000.

    Linear in between. Stub and index are a fixed cost, so they weigh more the less there is to load.
    """
    position = (eager_tokens - SMALL_TOKENS) / (LARGE_TOKENS - SMALL_TOKENS)
    return SMALL_SHARE_MAX + (LARGE_SHARE_MAX - SMALL_SHARE_MAX) * min(1.0, max(0.0, position))


def make_shadow_report(records: Sequence[AuditRecord], manifest: Manifest) -> ShadowReport:
    """Summarise the shadow turns of this manifest; `records` are oldest first. Raises StoreError for a damaged one."""
    turns = tuple(_turns(records, manifest))
    needs = [(turn, turn.needed_units) for turn in turns if turn.needed_units is not None]
    needed = sum(len(names) for _, names in needs)
    missed = [name for turn, names in needs for name in sorted(names - turn.loaded_units)]
    regressions = tuple(
        ShadowRegression(turn.audit_token, turn.intent, tuple(sorted(names - turn.loaded_units)))
        for turn, names in needs
        # A report of a missing unit counts even if others were there; otherwise one needed unit is enough.
        if turn.missed_units - turn.loaded_units or (names and not names & turn.loaded_units)
    )
    eager, lazy = sum(turn.eager_tokens for turn in turns), sum(turn.lazy_tokens for turn in turns)
    report = ShadowReport(
        manifest.version,
        len(turns),
        len(needs),
        1 - len(missed) / needed if needed else None,
        round(eager / len(turns)) if turns else 0,
        round(lazy / len(turns)) if turns else 0,
        lazy / eager if eager else None,
        token_share_max(eager / len(turns) if turns else 0),
        regressions,
        {name: missed.count(name) for name in sorted(set(missed))},
        (),
    )
    return msgspec.structs.replace(report, shortfalls=tuple(_shortfalls(report)))


def _turns(records: Sequence[AuditRecord], manifest: Manifest) -> Iterator[ShadowTurn]:
    """Units preloaded or recalled in a run stay in its history: every later turn has them and pays for them."""
    listed = {entry.name for entry in manifest.body}
    runs: dict[str, tuple[frozenset[str], int]] = {}
    for record in records:
        is_turn = record.event_type == "shadow" and record.detail.get("manifest_version") == manifest.version
        if not is_turn and record.event_type != "preload":
            continue
        before, tokens = runs.get(record.heartbeat_id, (frozenset(), 0))
        loaded = before | {chunk.name for chunk in record.loaded_chunks}
        tokens += sum(chunk.tokens for chunk in record.loaded_chunks)
        runs[record.heartbeat_id] = (loaded, tokens)
        if not is_turn:
            continue
        try:
            sizes = msgspec.convert(record.detail, PromptTokens)
        except msgspec.ValidationError as error:
            raise StoreError("the audit record of a shadow turn is damaged") from error
        missed = frozenset(record.missed_chunks) & listed
        needed = frozenset(record.used_chunks) & listed | missed
        lazy_tokens = sizes.standing_tokens + tokens
        turn = ShadowTurn(record.audit_token, record.intent, loaded, sizes.eager_tokens, lazy_tokens, needed, missed)
        is_closed = record.audit_closed is not None
        yield turn if is_closed else msgspec.structs.replace(turn, needed_units=None, missed_units=frozenset())


def _shortfalls(report: ShadowReport) -> Iterator[str]:
    if report.reported_turns < TURNS_MIN:
        yield f"{report.reported_turns} turns report what they used, at least {TURNS_MIN} are needed"
    if report.coverage is None:
        yield "no turn used a unit"
    elif report.coverage < COVERAGE_MIN:
        yield f"{report.coverage:.1%} of the needed units would have been loaded, {COVERAGE_MIN:.0%} is required"
    if report.share is not None and report.share >= report.share_max:
        yield f"{report.share:.1%} of the tokens would still be spent, less than {report.share_max:.0%} is required"
    if report.regressions:
        yield f"turns that would have regressed: {len(report.regressions)}"
