"""HTTP routes of the commands `check`, `publish`, `approve`, `promote` and `coverage`, with the results of a store."""

import msgspec

from holdfast.errors import InstructionError
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.coverage.compare import CoverageDiff, MeasuredUnit, compare_manifest_versions, measure_units
from holdfast.instructions.manifest.check import DraftCheck
from holdfast.instructions.manifest.deploy import (
    ApprovalResult,
    DeploymentResult,
    approve_unit,
    check_instruction_folder,
    promote_manifest,
    publish_instruction_folder,
    record_approval_of,
)
from holdfast.instructions.manifest.publish import PublicationResult
from holdfast.instructions.manifest.validate import SubmittedApproval
from holdfast.instructions.migration.files import InstructionFolder, ManifestFile
from holdfast.service.api.instructions.routing import instruction_route
from holdfast.service.api.instructions.schemas import AgentRequest, Name
from holdfast.service.http.routes import Route

_AGENT = "/v1/agents/{agent_id}"


class FolderRequest(AgentRequest, frozen=True):
    """The files of a folder that `migrate --out` wrote: `texts` are by unit name."""

    manifest: ManifestFile
    texts: dict[str, str] = {}


class PublishFolderRequest(FolderRequest, frozen=True):
    skip_coverage_gate: bool = False


class ApproveRequest(AgentRequest, frozen=True):
    """Without `approval`, every approval that the newest pending version of `unit` needs."""

    unit: Name = ""
    reason: str = ""
    approval: SubmittedApproval | None = None


class PromoteRequest(AgentRequest, frozen=True):
    force: bool = False


class CoverageRequest(AgentRequest, frozen=True):
    against: str | None = None


class CoverageMeasurement(msgspec.Struct, frozen=True):
    """`units` now, or the `diff` to another version if one was named."""

    units: tuple[MeasuredUnit, ...] = ()
    diff: CoverageDiff | None = None


def check_folder(context: InstructionContext, caller: InstructionCaller, request: FolderRequest) -> DraftCheck:
    """Check whether a folder can be published; nothing is written."""
    return check_instruction_folder(context, _read_folder(request), caller)


def publish_folder(
    context: InstructionContext, caller: InstructionCaller, request: PublishFolderRequest
) -> DeploymentResult:
    """Publish a folder: changed texts as new versions, then the manifest, if it passes every check."""
    folder = _read_folder(request)
    return publish_instruction_folder(context, folder, caller, skip_coverage_gate=request.skip_coverage_gate)


def _read_folder(request: FolderRequest) -> InstructionFolder:
    if request.manifest.agent_id != request.agent_id:
        message = f"the folder is of agent {request.manifest.agent_id[:80]!a}, not of {request.agent_id[:80]!a}"
        raise InstructionError("agent_id_invalid", message)
    return InstructionFolder(request.manifest, request.texts)


def approve(context: InstructionContext, caller: InstructionCaller, request: ApproveRequest) -> ApprovalResult:
    """Approve the newest version of a unit, or record one approval that a manifest will need."""
    if request.approval is not None:
        return record_approval_of(context, request.agent_id, request.approval, caller)
    return approve_unit(context, request.agent_id, request.unit, caller, reason=request.reason)


def promote(context: InstructionContext, caller: InstructionCaller, request: PromoteRequest) -> PublicationResult:
    """Use units without their files, after a week in which few were missed."""
    return promote_manifest(context, request.agent_id, caller, force=request.force)


def measure_coverage_of(
    context: InstructionContext, caller: InstructionCaller, request: CoverageRequest
) -> CoverageMeasurement:
    """Measure as the publication gate does, without recording it; or compare with another version."""
    if request.against is not None:
        return CoverageMeasurement(diff=compare_manifest_versions(context, request.agent_id, request.against))
    agent = context.records.agent(request.agent_id)
    instruction_set = context.require_instruction_set(request.agent_id, agent)[1]
    return CoverageMeasurement(measure_units(instruction_set, context.settings))


ROUTES: tuple[Route, ...] = (
    instruction_route("POST", f"{_AGENT}/instruction-folder/check", check_folder, rule="admin"),
    instruction_route("PUT", f"{_AGENT}/instruction-folder", publish_folder, rule="admin", error_statuses=(409,)),
    instruction_route("POST", f"{_AGENT}/instruction-approve", approve, rule="admin"),
    instruction_route("POST", f"{_AGENT}/instruction-promote", promote, rule="admin", error_statuses=(409,)),
    instruction_route("GET", f"{_AGENT}/instruction-coverage", measure_coverage_of, rule="admin"),
)
