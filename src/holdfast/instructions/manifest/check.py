"""Check whether a manifest with its texts could be published, reporting every failed check and not only the first."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.coverage.measure import measure_all_units
from holdfast.instructions.errors import InstructionError
from holdfast.instructions.manifest import validate
from holdfast.instructions.manifest.lint import LintFlaw, lint_manifest
from holdfast.instructions.manifest.validate import ManifestDraft, SubmittedApproval
from holdfast.instructions.models import Agent, Approval, Manifest, Provenance, UnitCoverage
from holdfast.instructions.recall.boot_stub import check_stub_size
from holdfast.instructions.recall.ranking import InstructionSet, make_content
from holdfast.instructions.settings import InstructionSettings

DRAFT_ID = "draft"


class CheckFailure(msgspec.Struct, frozen=True):
    code: str
    message: str


class DraftCheck(msgspec.Struct, frozen=True):
    """The draft could be published if there are no failures."""

    failures: tuple[CheckFailure, ...]
    flaws: tuple[LintFlaw, ...]
    coverage: tuple[UnitCoverage, ...]
    token_count: int

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
) -> DraftCheck:
    """Does not read files at entry paths and does not compare the version with published ones."""
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
    # Ranking and linting assume valid entries.
    if not any(failure.code == "manifest_entry_invalid" for failure in failures):
        contents = {name: make_content(text, "stigmem") for name, text in texts.items()}
        coverage = measure_all_units(InstructionSet(manifest, contents, encoder=settings.encoder), settings)
        flaws = lint_manifest(draft.entries, texts)
    failures += [_coverage_failure(unit) for unit in coverage if not unit.passed]
    return DraftCheck(tuple(failures), flaws, coverage, draft.token_count)


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
    rivals = sorted({probe.found_instead for probe in unit.failures if probe.found_instead})
    instead = f"; found instead: {', '.join(rivals[:3])}" if rivals else ""
    share = 0.0 if unit.coverage_pct is None else unit.coverage_pct
    return CheckFailure("manifest_coverage_failure", f"{unit.unit}: {share:.0%} of its paraphrases find it{instead}")
