"""Checks whether a manifest with its texts could be published, and lints it for likely mistakes."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Literal

import msgspec

from holdfast.errors import InstructionError
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.coverage.measure import (
    GATE_K,
    GATE_SHARE_MIN,
    ProbeMiss,
    measure_all_units,
    rank_unit_names,
)
from holdfast.instructions.manifest import validate
from holdfast.instructions.manifest.validate import ManifestDraft, SubmittedApproval
from holdfast.instructions.migration.naming import describe_situation, is_situation
from holdfast.instructions.migration.sections import parse_markdown
from holdfast.instructions.migration.situations import find_situations
from holdfast.instructions.models import Agent, Approval, Manifest, ManifestEntry, Probe, Provenance, UnitCoverage
from holdfast.instructions.recall.boot_stub import check_stub_size, measure_entry_cost
from holdfast.instructions.recall.selection import InstructionSet, make_content
from holdfast.instructions.settings import InstructionSettings
from holdfast.redaction import redact_secrets
from holdfast.retrieval.bm25 import extract_terms
from holdfast.retrieval.encoders.registry import create_semantic_stage
from holdfast.retrieval.index import SearchIndex
from holdfast.retrieval.units import SearchUnit

COSTLY_TOKENS = 120
SAME_TEXT_SHARE = 0.85
SITUATIONS_ASKED_MAX = 12
LintRule = Literal[
    "no-trigger",
    "content-trigger",
    "nonsense-trigger",
    "unjudged-trigger",
    "weak-trigger",
    "joined-topics",
    "headless",
    "same-trigger",
    "same-text",
    "when-finishing",
    "costly-entry",
]
_FINISHING = re.compile(
    r"wrap.?up|finish|checklist|definition of done|hand.?over|before (?:you )?(?:submit|push)", re.I
)
_STARTS_WITHIN = re.compile(r"\s*(?:[-*+]|\d+[.)])\s")
_FINISHING_TRIGGER = re.compile(r"wrap|finish|done|complete|submit|hand", re.I)


class LintFlaw(msgspec.Struct, frozen=True):
    unit: str
    rule: LintRule
    message: str
    fix: str

    @property
    def is_certain(self) -> bool:
        """Whether it is a mistake; otherwise it says what could not be judged."""
        return self.rule != "unjudged-trigger"


def lint_manifest(entries: Sequence[ManifestEntry], texts: Mapping[str, str] | None = None) -> tuple[LintFlaw, ...]:
    """Flaws in the order of the manifest; a flaw of two entries is reported for the second."""
    flaws = [flaw for entry in entries for flaw in _entry_flaws(entry)]
    flaws += [flaw for entry in entries for flaw in _text_flaws(entry, (texts or {}).get(entry.name, ""))]
    flaws += _pair_flaws(entries, texts or {})
    order = {entry.name: position for position, entry in enumerate(entries)}
    return tuple(sorted(flaws, key=lambda flaw: order[flaw.unit]))


def _entry_flaws(entry: ManifestEntry) -> Iterator[LintFlaw]:
    triggers = entry.load_triggers
    if not triggers.intents:
        yield LintFlaw(entry.name, "no-trigger", "it has no intents", "add the situations in which it is needed")
    for intent in triggers.intents:
        # The check knows English only.
        if intent.isascii() and not is_situation(intent):
            message = f"{intent[:80]!a} describes the unit's content"
            fix = f"describe what the agent is about to do: {describe_situation(intent)!a}"
            yield LintFlaw(entry.name, "content-trigger", message, fix)
    about = f"{entry.name} {entry.description}"
    if triggers.intents and _FINISHING.search(about) and not any(map(_FINISHING_TRIGGER.search, triggers.intents)):
        message = "it is needed at the end of a task, but no intent says so"
        yield LintFlaw(entry.name, "when-finishing", message, "add 'wrap up' or 'finish a task'")
    cost = measure_entry_cost(entry).entry_tokens
    if cost > COSTLY_TOKENS:
        message = f"its entry has {cost} tokens"
        yield LintFlaw(entry.name, "costly-entry", message, "shorten the description or remove redundant triggers")


def _text_flaws(entry: ManifestEntry, text: str) -> Iterator[LintFlaw]:
    """Flaws of how a text was cut: two topics in one unit, or a text that begins in the middle of something."""
    headings = [cut for cut in parse_markdown(text).cuts if cut.level] if text.strip() else []
    top = headings[0].level if headings else 0
    beside = [cut.title for cut in headings[1:] if cut.level <= top]
    if beside:
        message = f"it joins topics: {headings[0].title[:60]!a} and {beside[0][:60]!a}"
        yield LintFlaw(entry.name, "joined-topics", message, "make them units of their own")
    if _STARTS_WITHIN.match(text.lstrip("\n")):
        message = "its text begins in the middle of a list"
        yield LintFlaw(entry.name, "headless", message, "begin it with a heading that says what the list is about")
    name_terms = set(extract_terms(f"{entry.name} work on follow the something"))
    for intent in entry.load_triggers.intents:
        if intent.isascii() and set(extract_terms(intent)) <= name_terms:
            message = f"{intent[:80]!a} only repeats the name"
            yield LintFlaw(entry.name, "weak-trigger", message, "say what someone is about to do, or what has happened")


def _pair_flaws(entries: Sequence[ManifestEntry], texts: Mapping[str, str]) -> Iterator[LintFlaw]:
    first_with: dict[tuple[str, ...], str] = {}
    for entry in entries:
        for intent in entry.load_triggers.intents:
            other = first_with.setdefault(tuple(sorted(set(extract_terms(intent)))), entry.name)
            if other != entry.name:
                message = f"{intent[:80]!a} is also an intent of {other[:80]!a}"
                yield LintFlaw(entry.name, "same-trigger", message, "make the intents distinct")
    with_text = (entry.name for entry in entries if entry.name in texts)
    terms_by_name = [(name, frozenset(extract_terms(texts[name]))) for name in with_text]
    for (first, first_terms), (other, other_terms) in combinations(terms_by_name, 2):
        # Jaccard similarity of the terms.
        if first_terms and len(first_terms & other_terms) / len(first_terms | other_terms) >= SAME_TEXT_SHARE:
            message = f"its text is nearly the same as that of {first[:80]!a}"
            yield LintFlaw(other, "same-text", message, "keep one of them")


def credential_warnings(entries: Sequence[ManifestEntry], contents: Mapping[str, str]) -> tuple[str, ...]:
    """A warning for each unit that every heartbeat or recall returns and whose text looks like a credential.

    A prompt injection can make the agent repeat such a text, so nothing confidential belongs in it.
    """
    preloaded = (entry.name for entry in entries if entry.guarantee_load or entry.required_by_task_types)
    return tuple(
        f"{name}: it is loaded without being recalled and contains what looks like a credential; "
        "a prompt injection can make the agent repeat it"
        for name in preloaded
        if redact_secrets(text := contents.get(name, "")) != text
    )


def guarantee_warnings(entries: Sequence[ManifestEntry], guaranteed_count: int, soft_max: int) -> tuple[str, ...]:
    """Only a warning: the binding cap is per agent."""
    if guaranteed_count <= soft_max or not any(entry.guarantee_load for entry in entries):
        return ()
    return (f"{guaranteed_count} units across all agents have guarantee_load; more than {soft_max} is not recommended",)


DRAFT_ID = "draft"


class SituationCheck(msgspec.Struct, frozen=True):
    """How many situations from a unit's own text, or of a person's probe, find it; triggers cannot test themselves."""

    unit: str
    source: Literal["content", "probe"]
    asked: int
    missed: tuple[ProbeMiss, ...]

    @property
    def found_share(self) -> float:
        return 1 - len(self.missed) / self.asked

    @property
    def is_weak(self) -> bool:
        """Below the share that the gate demands of paraphrases; a probe must be found whole."""
        return bool(self.missed) if self.source == "probe" else self.found_share < GATE_SHARE_MIN


def check_situations(
    instruction_set: InstructionSet, probes: Sequence[Probe], *, use_floor: bool
) -> tuple[SituationCheck, ...]:
    """Generated here, from the text: nothing of a unit's content leaves the machine (seed 003, S8)."""
    checks = []
    for entry in instruction_set.manifest.body:
        content = instruction_set.contents.get(entry.name)
        situations = find_situations(content.text)[:SITUATIONS_ASKED_MAX] if content else ()
        asked = [situation for situation in situations if situation not in entry.load_triggers.intents]
        if asked:
            found = ((query, rank_unit_names(instruction_set, query, use_floor=use_floor)[:GATE_K]) for query in asked)
            missed = tuple(ProbeMiss(query, names) for query, names in found if entry.name not in names)
            checks.append(SituationCheck(entry.name, "content", len(asked), missed))
    for probe in probes:
        names = rank_unit_names(instruction_set, probe.intent, use_floor=use_floor)[: probe.k]
        is_found = all(name in names for name in probe.required_units)
        unit = ", ".join(probe.required_units)
        checks.append(SituationCheck(unit, "probe", 1, () if is_found else (ProbeMiss(probe.intent, names),)))
    return tuple(checks)


def find_nonsense_triggers(
    entries: Sequence[ManifestEntry], texts: Mapping[str, str], encoder: str | None
) -> tuple[LintFlaw, ...]:
    """Intents that have neither a word nor a meaning in common with the text that they should find.

    Without an encoder only the words are known: an intent that shares none is named as one that cannot be judged.
    """
    units = [SearchUnit(entry.name, entry.name, "", (), texts[entry.name]) for entry in entries if entry.name in texts]
    index = SearchIndex(units, meaning=create_semantic_stage(encoder) if encoder else None)
    flaws = []
    for entry in entries:
        for intent in entry.load_triggers.intents if entry.name in texts else ():
            hit = index.rank(intent).explain(entry.name)
            if not hit.matched_terms and hit.relevance < index.floor:
                flaws.append(_make_nonsense_flaw(entry.name, intent, is_judged=encoder is not None))
    return tuple(flaws)


def _make_nonsense_flaw(unit: str, intent: str, *, is_judged: bool) -> LintFlaw:
    if is_judged:
        message = f"{intent[:80]!a} has nothing in common with the text"
        return LintFlaw(unit, "nonsense-trigger", message, "describe a situation in which someone needs this text")
    message = f"{intent[:80]!a} shares no word with the text, and without an encoder its meaning cannot be judged"
    return LintFlaw(unit, "unjudged-trigger", message, "install one: pip install 'holdfast-context[semantic]'")


class CheckFailure(msgspec.Struct, frozen=True):
    code: str
    message: str


class DraftCheck(msgspec.Struct, frozen=True):
    """The draft could be published if there are no failures; flaws and situations are warnings."""

    failures: tuple[CheckFailure, ...]
    flaws: tuple[LintFlaw, ...]
    coverage: tuple[UnitCoverage, ...]
    token_count: int
    situations: tuple[SituationCheck, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.failures


def check_draft(
    draft: ManifestDraft,
    texts: Mapping[str, str],
    agent: Agent,
    *,
    settings: InstructionSettings,
    approvals: Sequence[Approval] = (),
    probes: Sequence[Probe] = (),
) -> DraftCheck:
    """Does not compare the version with published ones; a unit without a text here cannot be recalled."""
    uri = validate.manifest_address(agent.deployment, agent.id, draft.version).uri
    mode = validate.infer_migration_mode(draft.entries)
    manifest = Manifest(DRAFT_ID, agent.id, draft.version, uri, 0, draft.entries, 0, mode, Provenance(DRAFT_ID))
    checks: tuple[Callable[[], object], ...] = (
        lambda: validate.check_entries(draft),
        lambda: validate.check_unique_names(draft),
        lambda: validate.check_pointers(draft, deployment=settings.deployment, agent_names=agent.names),
        lambda: validate.check_task_types(draft, settings.wake_reasons),
        lambda: validate.check_approvals(draft, approvals, {}),
        lambda: validate.check_guaranteed_cap(draft),
        lambda: validate.check_manifest_size(draft),
        lambda: check_stub_size(agent, manifest),
    )
    failures = [failure for check in checks for failure in _failures_of(check)]
    coverage: tuple[UnitCoverage, ...] = ()
    flaws: tuple[LintFlaw, ...] = ()
    situations: tuple[SituationCheck, ...] = ()
    # Ranking and linting assume valid entries.
    if not any(failure.code == "manifest_entry_invalid" for failure in failures):
        contents = {name: make_content(text, "stigmem") for name, text in texts.items()}
        instruction_set = InstructionSet(manifest, contents, encoder=settings.encoder)
        coverage = measure_all_units(instruction_set, settings)
        flaws = (
            *lint_manifest(draft.entries, texts),
            *find_nonsense_triggers(draft.entries, texts, settings.encoder),
        )
        situations = check_situations(instruction_set, probes, use_floor=settings.use_floor)
    failures += [_coverage_failure(unit) for unit in coverage if not unit.passed]
    return DraftCheck(tuple(failures), flaws, coverage, draft.token_count, situations)


def assume_submitted(
    submitted: Sequence[SubmittedApproval], agent: Agent, caller: InstructionCaller, *, at: int
) -> tuple[Approval, ...]:
    """Approvals from a folder as if the caller had submitted them; signatures are verified at publication."""
    return tuple(approval.as_approval(DRAFT_ID, agent.id, sender=caller.author, at=at) for approval in submitted)


def _failures_of(check: Callable[[], object]) -> Iterator[CheckFailure]:
    try:
        check()
    except InstructionError as error:
        yield CheckFailure(error.code, str(error))


def _coverage_failure(unit: UnitCoverage) -> CheckFailure:
    if unit.obstacle is not None:
        return CheckFailure("manifest_coverage_failure", f"{unit.unit}: a recall cannot return it; {unit.obstacle}")
    rivals = sorted({probe.found_instead for probe in unit.failures if probe.found_instead})
    instead = f"; found instead: {', '.join(rivals[:3])}" if rivals else ""
    share = 0.0 if unit.coverage_pct is None else unit.coverage_pct
    return CheckFailure("manifest_coverage_failure", f"{unit.unit}: {share:.0%} of its paraphrases find it{instead}")
