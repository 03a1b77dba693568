"""Check whether a manifest with its texts could be published, reporting every failed check and not only the first."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from holdfast.instructions.callers import Caller
from holdfast.instructions.coverage import measure_all
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.lint import Flaw, lint
from holdfast.instructions.publication import (
    Draft,
    GivenApproval,
    check_approvals,
    check_caps,
    check_names,
    check_pointers,
    check_shape,
    check_size,
    check_task_types,
    mode_of,
)
from holdfast.instructions.recall import Shelf, text_content
from holdfast.instructions.settings import InstructionSettings
from holdfast.instructions.stub import check_stub
from holdfast.instructions.values import Agent, Approval, Manifest, Provenance, UnitCoverage
from holdfast.retrieval.meaning import MeaningStage, meaning_stage

TRIED_ID = "tried"


class Failure(msgspec.Struct, frozen=True):
    code: str
    message: str


class Checked(msgspec.Struct, frozen=True):
    """The draft could be published if there are no failures."""

    failures: tuple[Failure, ...]
    flaws: tuple[Flaw, ...]
    coverage: tuple[UnitCoverage, ...]
    token_count: int

    @property
    def passed(self) -> bool:
        return not self.failures


def check_draft(
    draft: Draft,
    texts: Mapping[str, str],
    agent: Agent,
    *,
    settings: InstructionSettings,
    approvals: Sequence[Approval] = (),
) -> Checked:
    """Does not read files at entry paths and does not compare the version with published ones."""
    manifest = tried_manifest(draft, agent)
    names = (agent.id, agent.shortname) if agent.shortname else (agent.id,)
    checks: tuple[Callable[[], object], ...] = (
        lambda: check_shape(draft),
        lambda: check_names(draft),
        lambda: check_pointers(draft, deployment=settings.deployment, agent_names=names),
        lambda: check_task_types(draft, settings.wake_reasons),
        lambda: check_approvals(draft, approvals, {}),
        lambda: check_caps(draft),
        lambda: check_size(draft),
        lambda: check_stub(agent, manifest),
    )
    failures = [failure for check in checks for failure in _failures_of(check)]
    invalid_entries = {"manifest_entry_invalid"} & {failure.code for failure in failures}
    instruction_set = None if invalid_entries else tried_shelf(manifest, texts, settings)
    coverage = (
        measure_all(instruction_set, scaled_is_binding=settings.scaled_is_binding, use_floor=settings.use_floor)
        if instruction_set
        else ()
    )
    failures += [_coverage_failure(unit) for unit in coverage if not unit.passed]
    flaws = () if invalid_entries else lint(draft.entries, texts)
    return Checked(tuple(failures), flaws, coverage, draft.token_count)


def tried_manifest(draft: Draft, agent: Agent) -> Manifest:
    uri = f"instruction:{agent.deployment}/{agent.id}/manifest/{draft.version}"
    mode = mode_of(draft.entries)
    return Manifest(TRIED_ID, agent.id, draft.version, uri, 0, draft.entries, 0, mode, Provenance(TRIED_ID))


def tried_shelf(manifest: Manifest, texts: Mapping[str, str], settings: InstructionSettings) -> Shelf:
    contents = {name: text_content(text, "stigmem") for name, text in texts.items()}
    return Shelf(manifest, contents, meaning=lambda: _meaning_stage(settings))


def given_approvals(
    submitted: Sequence[GivenApproval], agent: Agent, caller: Caller, *, at: int
) -> tuple[Approval, ...]:
    """Approvals from a folder as if the caller had submitted them; signatures are verified at publication."""
    return tuple(
        Approval(
            id=TRIED_ID,
            agent_id=agent.id,
            kind=approval.kind,
            unit=approval.unit,
            version=approval.version,
            authored_by=approval.authored_by or caller.author,
            authored_at=at,
            reason=approval.reason,
        )
        for approval in submitted
    )


def _meaning_stage(settings: InstructionSettings) -> MeaningStage | None:
    return meaning_stage(settings.encoder) if settings.encoder else None


def _failures_of(check: Callable[[], object]) -> Iterator[Failure]:
    try:
        check()
    except InstructionError as error:
        yield Failure(error.code, str(error))


def _coverage_failure(unit: UnitCoverage) -> Failure:
    rivals = sorted({probe.taken_by for probe in unit.failures if probe.taken_by})
    instead = f"; found instead: {', '.join(rivals[:3])}" if rivals else ""
    share = 0.0 if unit.coverage_pct is None else unit.coverage_pct
    return Failure("manifest_coverage_failure", f"{unit.unit}: {share:.0%} of its paraphrases find it{instead}")
