"""Propose a migration: units, entries that fit a manifest, rules for the boot stub. For review, never published."""

import re
from collections.abc import Sequence

import msgspec

from holdfast.instructions.addresses import Address, read_address
from holdfast.instructions.counting import count_cl100k
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.migration.classes import Kind, is_always, task_types_of
from holdfast.instructions.migration.fitting import grouped
from holdfast.instructions.migration.naming import description_of, names_of, title_of
from holdfast.instructions.migration.sections import Section, SourceFile, Span, join, sections_of
from holdfast.instructions.migration.triggers import Candidate, Meaning, found_intents, intents_of, told_apart
from holdfast.instructions.publication import MANIFEST_TOKENS_MAX, Draft
from holdfast.instructions.recall import DEFAULT_TOKEN_BUDGET
from holdfast.instructions.stub import check_stub
from holdfast.instructions.values import Agent, Entry, MigrationMode, Triggers

# Below the limit, so that people can still edit a description. A manifest of 1,000 tokens has about 18 entries
# (decision 0032); the stub keeps half of its 500 tokens for rules.
TOKENS_AIM = MANIFEST_TOKENS_MAX - 40
STUB_RULES_TOKENS_MAX = 250
PRELOADED_TOKENS_MAX = 1000
GROUPS_MAX = 60
TEXT_CHARACTERS_MAX = 1_500_000


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Agent, deployment, version and mode of the proposed manifest."""

    agent_id: str = "main"
    deployment: str = "local"
    version: str = "v1"
    mode: MigrationMode = "coexistence"


class ProposedUnit(msgspec.Struct, frozen=True):
    name: str
    kind: Kind
    tokens: int
    spans: tuple[Span, ...]
    entry: Entry
    entry_tokens: int
    content: str


class ProposedRule(msgspec.Struct, frozen=True):
    """A rule that goes into the boot stub verbatim, with continuation lines indented by two spaces."""

    text: str
    tokens: int
    spans: tuple[Span, ...]


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    agent_id: str
    version: str
    migration_mode: MigrationMode
    units: tuple[ProposedUnit, ...]
    rules: tuple[ProposedRule, ...]
    manifest_tokens: int
    files: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def draft(self) -> Draft:
        return Draft(self.version, tuple(unit.entry for unit in self.units), self.migration_mode)


class _Detail(msgspec.Struct, frozen=True):
    """How detailed an entry may be; the levels are tried from generous to terse until the manifest fits."""

    intents: int
    description_characters: int
    has_estimate: bool


_DETAILS = (_Detail(3, 120, True), _Detail(2, 90, True), _Detail(1, 60, False))


def propose(
    files: Sequence[SourceFile],
    target: Wanted,
    *,
    at: re.Pattern[str] | None = None,
    meaning: Meaning = lambda: None,
) -> Proposal:
    """Put every line that is not blank into exactly one unit or rule; `at` matches the lines at which sections start.

    Raises InstructionError.
    """
    read_address(Address(target.deployment, target.agent_id, "unit", target.version).uri)
    characters = sum(len(file.text) for file in files)
    if characters > TEXT_CHARACTERS_MAX:
        raise InstructionError(
            "migration_too_large",
            f"the files have {characters} characters, at most {TEXT_CHARACTERS_MAX} fit one agent: "
            "migrate them in parts, for several agents",
        )
    by_file = [sections_of(file, at=at, stands_apart=is_always) for file in files]
    sections, rules = _split_rules([section for file_sections in by_file for section in file_sections], target)
    if not sections:
        raise InstructionError("migration_empty", "nothing to migrate: the files have no text")
    units, tokens, without_intents = _fit_units(sections, target, meaning)
    return Proposal(
        agent_id=target.agent_id,
        version=target.version,
        migration_mode=target.mode,
        units=units,
        rules=rules,
        manifest_tokens=tokens,
        files=tuple(file.path for file in files),
        warnings=_warnings(units, without_intents, joined=len(sections) - len(units)),
    )


def _split_rules(sections: list[Section], target: Wanted) -> tuple[list[Section], tuple[ProposedRule, ...]]:
    """Move always-sections into the stub's rules while there is room; at least one section stays a unit."""
    rules: list[ProposedRule] = []
    units: list[Section] = []
    tokens_left = STUB_RULES_TOKENS_MAX
    for index, section in enumerate(sections):
        rule = _stub_rule(section)
        is_only_unit = not units and index == len(sections) - 1
        if is_always(section) and rule.tokens <= tokens_left and not is_only_unit:
            tokens_left -= rule.tokens
            rules.append(rule)
        else:
            units.append(section)
    agent = Agent(target.agent_id, target.deployment, 0, always_rules=tuple(rule.text for rule in rules))
    check_stub(agent, None)
    return units, tuple(rules)


def _stub_rule(section: Section) -> ProposedRule:
    # Indented, the lines form one item of the stub's list, including nested lists.
    text = "\n".join(f"  {line}" if number and line else line for number, line in enumerate(section.text.split("\n")))
    return ProposedRule(text, count_cl100k(text), section.spans)


def _fit_units(
    sections: Sequence[Section], target: Wanted, meaning: Meaning
) -> tuple[tuple[ProposedUnit, ...], int, tuple[str, ...]]:
    """Shorten the entries first, then join neighbouring sections, until the manifest fits."""
    # More groups than this never fit a manifest, and naming and counting thousands of sections takes too long.
    groups: Sequence[Section] = tuple(join(group) for group in grouped(sections, GROUPS_MAX))
    details = iter(_DETAILS[1:])
    detail = _DETAILS[0]
    without_intents: tuple[str, ...] = ()
    while True:
        candidates = _candidates(groups, detail)
        tokens = _manifest_tokens(candidates, groups, target, detail)
        if tokens <= TOKENS_AIM:
            candidates, without_intents = found_intents(candidates, meaning)
            tokens = _manifest_tokens(candidates, groups, target, detail)
        if tokens <= TOKENS_AIM or len(groups) == 1:
            break
        terser = next(details, None)
        if terser is not None:
            detail = terser
        else:
            group_count = min(len(groups) - 1, len(groups) * TOKENS_AIM // tokens + 1)
            groups = tuple(join(group) for group in grouped(sections, max(1, group_count)))
    entries = _entries(candidates, groups, target, detail)
    units = tuple(
        ProposedUnit(
            entry.name,
            "task_type" if entry.required_by_task_types else "lazy",
            section.tokens,
            section.spans,
            entry,
            count_cl100k(msgspec.json.encode(entry).decode()),
            section.text,
        )
        for entry, section in zip(entries, groups, strict=True)
    )
    return units, Draft(target.version, entries).token_count, without_intents


def _manifest_tokens(
    candidates: Sequence[Candidate], sections: Sequence[Section], target: Wanted, detail: _Detail
) -> int:
    return Draft(target.version, _entries(candidates, sections, target, detail)).token_count


def _candidates(sections: Sequence[Section], detail: _Detail) -> tuple[Candidate, ...]:
    candidates = (
        Candidate(
            name,
            description_of(section, characters_max=detail.description_characters),
            intents_of(section, count=detail.intents),
            section.text,
            title_of(section),
        )
        for name, section in zip(names_of(sections), sections, strict=True)
    )
    return told_apart(tuple(candidates), count=detail.intents)


def _entries(
    candidates: Sequence[Candidate], sections: Sequence[Section], target: Wanted, detail: _Detail
) -> tuple[Entry, ...]:
    tokens_left = PRELOADED_TOKENS_MAX
    entries = []
    for candidate, section in zip(candidates, sections, strict=True):
        required = task_types_of(section) if section.tokens <= tokens_left else ()
        tokens_left -= section.tokens if required else 0
        address = Address(target.deployment, target.agent_id, candidate.name, target.version)
        entries.append(
            Entry(
                name=candidate.name,
                description=candidate.description,
                required_by_task_types=required,
                load_triggers=Triggers(intents=candidate.intents),
                fact_uri=None if target.mode == "file" else address.uri,
                path=None if target.mode == "stigmem" else f"{candidate.name}.md",
                token_estimate=section.tokens if detail.has_estimate else None,
            )
        )
    return tuple(entries)


def _warnings(units: Sequence[ProposedUnit], without_intents: Sequence[str], *, joined: int) -> tuple[str, ...]:
    warnings = []
    if joined > 0:
        warnings.append(
            f"{joined} sections were joined with others: a manifest has at most {MANIFEST_TOKENS_MAX} tokens"
        )
    long = [unit.name for unit in units if unit.tokens > DEFAULT_TOKEN_BUDGET]
    if long:
        warnings.append(
            f"{len(long)} units are longer than a recall loads by default ({DEFAULT_TOKEN_BUDGET} tokens), such as "
            f"{long[0]}: split the files between several agents"
        )
    warnings += [
        f"{name}: no intent was found that distinguishes it from the other units; write one" for name in without_intents
    ]
    return tuple(warnings)
