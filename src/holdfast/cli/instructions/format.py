"""Prints migration proposals, check results and lint findings."""

from collections.abc import Sequence

import click
import msgspec

from holdfast.cli.format import format_count
from holdfast.cli.tables import print_table, print_text
from holdfast.instructions.manifest.check import DraftCheck, LintFlaw, SituationCheck
from holdfast.instructions.manifest.validate import MANIFEST_TOKENS_MAX
from holdfast.instructions.migration.proposal import MigrationProposal
from holdfast.instructions.migration.sections import LineSpan

UNIT_KIND_LABELS = {"lazy": "lazy", "task_type": "preload", "always": "always"}


def encode_proposal(proposal: MigrationProposal, warnings: Sequence[str]) -> str:
    document = {
        "agent_id": proposal.agent_id,
        "manifest": proposal.draft,
        "manifest_tokens": proposal.manifest_tokens,
        "always_rules": proposal.rules,
        "units": proposal.units,
        "files": proposal.files,
        "warnings": warnings,
    }
    return msgspec.json.format(msgspec.json.encode(document)).decode()


def show_proposal(proposal: MigrationProposal, warnings: Sequence[str]) -> None:
    units = [
        (unit.name, UNIT_KIND_LABELS[unit.kind], str(unit.tokens), str(unit.entry_tokens), _from(unit.spans))
        for unit in proposal.units
    ]
    rules = [("(boot stub)", "always", str(rule.tokens), "", _from(rule.spans)) for rule in proposal.rules]
    print_table(("unit", "kind", "tokens", "entry", "lines"), [*rules, *units])
    for unit in proposal.units:
        click.echo(f"\n{unit.name}: {unit.entry.description}")
        for intent in unit.entry.load_triggers.intents:
            click.echo(f"  - {intent}")
    sum_of_units = sum(unit.tokens for unit in proposal.units)
    click.echo(
        f"\n{format_count(len(proposal.units), 'unit')} with {sum_of_units} tokens; the manifest has "
        f"{proposal.manifest_tokens} of at most {MANIFEST_TOKENS_MAX}"
    )
    for warning in warnings:
        print_text(f"warning: {warning}")


def _from(spans: Sequence[LineSpan]) -> str:
    return ", ".join(f"{span.path}:{span.first_line}-{span.last_line}" for span in spans)


def show_check_result(checked: DraftCheck) -> None:
    for failure in checked.failures:
        print_text(f"{failure.code}: {failure.message}")
    show_flaws(checked.flaws)
    for situation in checked.situations:
        if situation.is_weak:
            _show_weak_situation(situation)
    shares = [unit.coverage_pct for unit in checked.coverage if unit.coverage_pct is not None]
    lowest = f"; lowest coverage of a unit: {min(shares):.0%} of its paraphrases" if shares else ""
    print_text(f"{checked.token_count} of {MANIFEST_TOKENS_MAX} tokens{lowest}")
    print_text("it can be published" if checked.passed else "it cannot be published")


def _show_weak_situation(checked: SituationCheck) -> None:
    """How well what stands in a unit, or a person's probe, finds it: a warning, because the gate asks triggers only."""
    miss = checked.missed[0]
    found = ", ".join(miss.first_units) or "nothing"
    if checked.source == "probe":
        print_text(f"warning: the probe {miss.intent!r} must find {checked.unit} and finds {found}")
        return
    share = f"{checked.asked - len(checked.missed)} of {format_count(checked.asked, 'situation')} from its text"
    print_text(f"warning: {checked.unit}: only {share} find it; {miss.intent!r} finds {found}")


def show_flaws(flaws: Sequence[LintFlaw]) -> None:
    for flaw in flaws:
        print_text(f"{flaw.unit}: {flaw.message}; {flaw.fix} [{flaw.rule}]")
