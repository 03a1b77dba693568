"""What a migration proposes: units, entries that fit a manifest, rules for the stub; for review, never published."""

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

TOKENS_AIM = MANIFEST_TOKENS_MAX - 40
STUB_RULES_TOKENS_MAX = 250
PRELOADED_TOKENS_MAX = 1000
GROUPS_MAX = 60
TEXT_CHARACTERS_MAX = 1_500_000


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Whose instructions they will be."""

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
    """What stands in the stub as it is; its lines are those of the file, set in by two blanks."""

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


class _Thrift(msgspec.Struct, frozen=True):
    """How much an entry may say."""

    intents: int
    description_characters: int
    has_estimate: bool


_THRIFTS = (_Thrift(3, 120, True), _Thrift(2, 90, True), _Thrift(1, 60, False))


def propose(
    files: Sequence[SourceFile],
    wanted: Wanted,
    *,
    at: re.Pattern[str] | None = None,
    meaning: Meaning = lambda: None,
) -> Proposal:
    """Every line of the files that is not blank is in one unit, or in one rule; `at` is where sections begin.

    Raises InstructionError.
    """
    read_address(Address(wanted.deployment, wanted.agent_id, "unit", wanted.version).uri)
    characters = sum(len(file.text) for file in files)
    if characters > TEXT_CHARACTERS_MAX:
        raise InstructionError(
            "migration_too_large",
            f"the files have {characters} characters, at most {TEXT_CHARACTERS_MAX} become one agent's units: "
            "migrate them in parts, for several agents",
        )
    by_file = [sections_of(file, at=at, stands_apart=is_always) for file in files]
    sections, rules = _without_rules([one for some in by_file for one in some], wanted)
    if not sections:
        raise InstructionError("migration_empty", "nothing to migrate: the files have no text")
    units, tokens, given_up = _fitted(sections, wanted, meaning)
    return Proposal(
        agent_id=wanted.agent_id,
        version=wanted.version,
        migration_mode=wanted.mode,
        units=units,
        rules=rules,
        manifest_tokens=tokens,
        files=tuple(file.path for file in files),
        warnings=_warnings(units, given_up, joined=len(sections) - len(units)),
    )


def _without_rules(sections: list[Section], wanted: Wanted) -> tuple[list[Section], tuple[ProposedRule, ...]]:
    """Rules for the stub as long as it has room; at least one section stays a unit."""
    rules: list[ProposedRule] = []
    kept: list[Section] = []
    left = STUB_RULES_TOKENS_MAX
    for place, section in enumerate(sections):
        rule = _rule(section)
        is_last_hope = not kept and place == len(sections) - 1
        if is_always(section) and rule.tokens <= left and not is_last_hope:
            left -= rule.tokens
            rules.append(rule)
        else:
            kept.append(section)
    agent = Agent(wanted.agent_id, wanted.deployment, 0, always_rules=tuple(rule.text for rule in rules))
    check_stub(agent, None)
    return kept, tuple(rules)


def _rule(section: Section) -> ProposedRule:
    # Set in, the lines are one item of the stub's list, with whatever lists there are in them.
    text = "\n".join(f"  {line}" if number and line else line for number, line in enumerate(section.text.split("\n")))
    return ProposedRule(text, count_cl100k(text), section.spans)


def _fitted(
    sections: Sequence[Section], wanted: Wanted, meaning: Meaning
) -> tuple[tuple[ProposedUnit, ...], int, tuple[str, ...]]:
    """Say less first; then join neighbours until the entries fit."""
    # No more than these can ever fit; to name and count thousands of others would be in vain.
    groups: Sequence[Section] = tuple(join(group) for group in grouped(sections, GROUPS_MAX))
    thrifts = iter(_THRIFTS[1:])
    thrift = _THRIFTS[0]
    given_up: tuple[str, ...] = ()
    while True:
        candidates = _candidates(groups, thrift)
        tokens = _tokens(candidates, groups, wanted, thrift)
        if tokens <= TOKENS_AIM:
            candidates, given_up = found_intents(candidates, meaning)
            tokens = _tokens(candidates, groups, wanted, thrift)
        if tokens <= TOKENS_AIM or len(groups) == 1:
            break
        following = next(thrifts, None)
        if following is not None:
            thrift = following
        else:
            fitting = min(len(groups) - 1, len(groups) * TOKENS_AIM // tokens + 1)
            groups = tuple(join(group) for group in grouped(sections, max(1, fitting)))
    entries = _entries(candidates, groups, wanted, thrift)
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
    return units, Draft(wanted.version, entries).token_count, given_up


def _tokens(candidates: Sequence[Candidate], sections: Sequence[Section], wanted: Wanted, thrift: _Thrift) -> int:
    return Draft(wanted.version, _entries(candidates, sections, wanted, thrift)).token_count


def _candidates(sections: Sequence[Section], thrift: _Thrift) -> tuple[Candidate, ...]:
    candidates = (
        Candidate(
            name,
            description_of(section, characters_max=thrift.description_characters),
            intents_of(section, count=thrift.intents),
            section.text,
            title_of(section),
        )
        for name, section in zip(names_of(sections), sections, strict=True)
    )
    return told_apart(tuple(candidates), count=thrift.intents)


def _entries(
    candidates: Sequence[Candidate], sections: Sequence[Section], wanted: Wanted, thrift: _Thrift
) -> tuple[Entry, ...]:
    left = PRELOADED_TOKENS_MAX
    entries = []
    for candidate, section in zip(candidates, sections, strict=True):
        required = task_types_of(section) if section.tokens <= left else ()
        left -= section.tokens if required else 0
        address = Address(wanted.deployment, wanted.agent_id, candidate.name, wanted.version)
        entries.append(
            Entry(
                name=candidate.name,
                description=candidate.description,
                required_by_task_types=required,
                load_triggers=Triggers(intents=candidate.intents),
                fact_uri=None if wanted.mode == "file" else address.uri,
                path=None if wanted.mode == "stigmem" else f"{candidate.name}.md",
                token_estimate=section.tokens if thrift.has_estimate else None,
            )
        )
    return tuple(entries)


def _warnings(units: Sequence[ProposedUnit], given_up: Sequence[str], *, joined: int) -> tuple[str, ...]:
    told = []
    if joined > 0:
        told.append(f"{joined} sections joined others: a manifest has at most {MANIFEST_TOKENS_MAX} tokens")
    long = [unit.name for unit in units if unit.tokens > DEFAULT_TOKEN_BUDGET]
    if long:
        told.append(
            f"{len(long)} units are longer than a recall loads by default ({DEFAULT_TOKEN_BUDGET} tokens), such as "
            f"{long[0]}: give parts of the files to agents of their own"
        )
    told += [f"{name}: no intent was found that tells it from the others; write one" for name in given_up]
    return tuple(told)
