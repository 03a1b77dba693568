"""Propose a migration: units, entries that fit a manifest, rules for the boot stub. For review, never published."""

import re
from collections.abc import Sequence

import msgspec

from holdfast.catalog.token_count import count_cl100k_tokens
from holdfast.errors import InstructionError
from holdfast.instructions.manifest.validate import MANIFEST_TOKENS_MAX, ManifestDraft
from holdfast.instructions.migration.classify import (
    SectionKind,
    applies_always,
    find_always_title,
    find_task_types,
    group_sections,
)
from holdfast.instructions.migration.naming import describe_section, name_sections, section_title
from holdfast.instructions.migration.sections import LineSpan, Section, SourceFile, join_sections, split_sections
from holdfast.instructions.migration.triggers import (
    MakeMeaningStage,
    TriggerCandidate,
    make_intents_distinct,
    propose_intents,
    select_working_intents,
)
from holdfast.instructions.models import Agent, LoadTriggers, ManifestEntry, MigrationMode
from holdfast.instructions.recall.boot_stub import check_stub_size, measure_entry_cost
from holdfast.instructions.recall.selection import DEFAULT_TOKEN_BUDGET
from holdfast.instructions.uri import UnitAddress, parse_unit_uri

# Below the limit, so that people can still edit a description. A manifest of 1,000 tokens has about 18 entries
# (decision 0032); the stub keeps half of its 500 tokens for rules.
MANIFEST_TOKENS_TARGET = MANIFEST_TOKENS_MAX - 40
STUB_RULES_TOKENS_MAX = 250
PRELOADED_TOKENS_MAX = 1000
GROUPS_MAX = 60
TEXT_CHARACTERS_MAX = 1_500_000


class MigrationTarget(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str = "main"
    deployment: str = "local"
    version: str = "v1"
    mode: MigrationMode = "coexistence"


class ProposedUnit(msgspec.Struct, frozen=True):
    name: str
    kind: SectionKind
    tokens: int
    spans: tuple[LineSpan, ...]
    entry: ManifestEntry
    entry_tokens: int
    content: str


class ProposedRule(msgspec.Struct, frozen=True):
    """A rule that goes into the boot stub verbatim, with continuation lines indented by two spaces."""

    text: str
    tokens: int
    spans: tuple[LineSpan, ...]


class MigrationProposal(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    version: str
    migration_mode: MigrationMode
    units: tuple[ProposedUnit, ...]
    rules: tuple[ProposedRule, ...]
    manifest_tokens: int
    files: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def draft(self) -> ManifestDraft:
        return ManifestDraft(self.version, tuple(unit.entry for unit in self.units), self.migration_mode)


class _Detail(msgspec.Struct, frozen=True):
    """How detailed an entry may be; the levels are tried from generous to terse until the manifest fits."""

    intents: int
    description_characters: int
    has_estimate: bool


_DETAILS = (_Detail(3, 120, True), _Detail(2, 90, True), _Detail(2, 50, True), _Detail(1, 40, False))


def propose_migration(
    files: Sequence[SourceFile],
    target: MigrationTarget,
    *,
    at: re.Pattern[str] | None = None,
    meaning: MakeMeaningStage = lambda: None,
) -> MigrationProposal:
    """Put every line that is not blank into exactly one unit or rule; `at` matches the lines at which sections start.

    Raises InstructionError.
    """
    parse_unit_uri(UnitAddress(target.deployment, target.agent_id, "unit", target.version).uri)
    characters = sum(len(file.text) for file in files)
    if characters > TEXT_CHARACTERS_MAX:
        raise InstructionError(
            "migration_too_large",
            f"the files have {characters} characters, at most {TEXT_CHARACTERS_MAX} fit one agent: "
            "migrate them in parts, for several agents",
        )
    by_file = [split_sections(file, at=at, stands_apart=applies_always) for file in files]
    sections, rules = _split_rules([section for file_sections in by_file for section in file_sections], target)
    if not sections:
        raise InstructionError("migration_empty", "nothing to migrate: the files have no text")
    units, tokens, without_intents = _fit_units(sections, target, meaning)
    return MigrationProposal(
        agent_id=target.agent_id,
        version=target.version,
        migration_mode=target.mode,
        units=units,
        rules=rules,
        manifest_tokens=tokens,
        files=tuple(file.path for file in files),
        warnings=(
            *_describe_always(sections, tokens_left=STUB_RULES_TOKENS_MAX - sum(rule.tokens for rule in rules)),
            *_warnings(units, without_intents, joined=len(sections) - len(units)),
        ),
    )


def _split_rules(sections: list[Section], target: MigrationTarget) -> tuple[list[Section], tuple[ProposedRule, ...]]:
    """Move always-sections into the stub's rules while there is room; at least one section stays a unit."""
    rules: list[ProposedRule] = []
    units: list[Section] = []
    tokens_left = STUB_RULES_TOKENS_MAX
    for index, section in enumerate(sections):
        rule = _stub_rule(section)
        is_only_unit = not units and index == len(sections) - 1
        if applies_always(section) and rule.tokens <= tokens_left and not is_only_unit:
            tokens_left -= rule.tokens
            rules.append(rule)
        else:
            units.append(section)
    agent = Agent(target.agent_id, target.deployment, 0, always_rules=tuple(rule.text for rule in rules))
    check_stub_size(agent, None)
    return units, tuple(rules)


def _describe_always(sections: Sequence[Section], *, tokens_left: int) -> tuple[str, ...]:
    """A warning for each heading whose rules apply to every task and are too long for the boot stub."""
    tokens: dict[str, int] = {}
    for section in sections:
        title = find_always_title(section)
        if title is not None:
            tokens[title] = tokens.get(title, 0) + section.tokens
    return tuple(
        f"{title!r} seems to apply to every task, and would cost {count} tokens in the boot stub, which has "
        f"{tokens_left} left: put the rules that must never be missed into always_rules, in short"
        for title, count in tokens.items()
    )


def _stub_rule(section: Section) -> ProposedRule:
    # Indented, the lines form one item of the stub's list, including nested lists.
    text = "\n".join(f"  {line}" if number and line else line for number, line in enumerate(section.text.split("\n")))
    return ProposedRule(text, count_cl100k_tokens(text), section.spans)


def _fit_units(
    sections: Sequence[Section], target: MigrationTarget, meaning: MakeMeaningStage
) -> tuple[tuple[ProposedUnit, ...], int, tuple[str, ...]]:
    """Shorten the entries first, then join neighbouring sections, until the manifest fits."""
    # More groups than this never fit a manifest, and naming and counting thousands of sections takes too long.
    groups: Sequence[Section] = tuple(join_sections(group) for group in group_sections(sections, GROUPS_MAX))
    details = iter(_DETAILS[1:])
    detail = _DETAILS[0]
    without_intents: tuple[str, ...] = ()
    while True:
        candidates = _candidates(groups, detail)
        entries = _entries(candidates, groups, target, detail)
        tokens = ManifestDraft(target.version, entries).token_count
        if tokens <= MANIFEST_TOKENS_TARGET:
            candidates, without_intents = select_working_intents(candidates, meaning)
            entries = _entries(candidates, groups, target, detail)
            tokens = ManifestDraft(target.version, entries).token_count
        if tokens <= MANIFEST_TOKENS_TARGET or len(groups) == 1:
            break
        terser = next(details, None)
        if terser is not None:
            detail = terser
        else:
            group_count = min(len(groups) - 1, len(groups) * MANIFEST_TOKENS_TARGET // tokens + 1)
            groups = tuple(join_sections(group) for group in group_sections(sections, max(1, group_count)))
    units = tuple(
        ProposedUnit(
            entry.name,
            "task_type" if entry.required_by_task_types else "lazy",
            section.tokens,
            section.spans,
            entry,
            measure_entry_cost(entry).entry_tokens,
            section.text,
        )
        for entry, section in zip(entries, groups, strict=True)
    )
    return units, tokens, without_intents


def _candidates(sections: Sequence[Section], detail: _Detail) -> tuple[TriggerCandidate, ...]:
    candidates = (
        TriggerCandidate(
            name,
            describe_section(section, characters_max=detail.description_characters),
            propose_intents(section, count=detail.intents),
            section.text,
            section_title(section),
        )
        for name, section in zip(name_sections(sections), sections, strict=True)
    )
    return make_intents_distinct(tuple(candidates), count=detail.intents)


def _entries(
    candidates: Sequence[TriggerCandidate], sections: Sequence[Section], target: MigrationTarget, detail: _Detail
) -> tuple[ManifestEntry, ...]:
    tokens_left = PRELOADED_TOKENS_MAX
    entries = []
    for candidate, section in zip(candidates, sections, strict=True):
        required = find_task_types(section) if section.tokens <= tokens_left else ()
        tokens_left -= section.tokens if required else 0
        address = UnitAddress(target.deployment, target.agent_id, candidate.name, target.version)
        entries.append(
            ManifestEntry(
                name=candidate.name,
                description=candidate.description,
                required_by_task_types=required,
                load_triggers=LoadTriggers(intents=candidate.intents),
                fact_uri=None if target.mode == "file" else address.uri,
                path=None if target.mode == "stigmem" else f"{candidate.name}.md",
                token_estimate=section.tokens if detail.has_estimate else None,
            )
        )
    return tuple(entries)


def _warnings(units: Sequence[ProposedUnit], without_intents: Sequence[str], *, joined: int) -> tuple[str, ...]:
    warnings = []
    if joined > 0:
        limit = f"a manifest has at most {MANIFEST_TOKENS_MAX} tokens"
        warnings.append(f"{joined} sections were joined with others: {limit}")
    long = [unit.name for unit in units if unit.tokens > DEFAULT_TOKEN_BUDGET]
    if long:
        warnings.append(
            f"{len(long)} units are longer than a recall loads by default ({DEFAULT_TOKEN_BUDGET} tokens), such as "
            f"{long[0]}: split the files between several agents"
        )
    for name in without_intents:
        warnings.append(f"{name}: no intent was found that distinguishes it from the other units; write one")
    return tuple(warnings)
