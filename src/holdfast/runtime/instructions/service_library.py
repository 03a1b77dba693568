"""The commands of a `Library` that a service runs on its own store: check, publish, approve, promote, two reports."""

import os
from pathlib import Path
from typing import Self, TypeVar
from urllib.parse import quote

import msgspec

from holdfast.instructions.coverage.compare import CoverageDiff, MeasuredUnit
from holdfast.instructions.manifest.check import DraftCheck
from holdfast.instructions.manifest.deploy import ApprovalResult, DeploymentResult
from holdfast.instructions.manifest.publish import PublicationResult
from holdfast.instructions.manifest.validate import SubmittedApproval
from holdfast.instructions.migration.files import read_instruction_folder
from holdfast.instructions.usage.shadow import ShadowReport
from holdfast.runtime.instructions.client import ServiceConnection, agent_path, decode_body

DEFAULT_AGENT = "main"
# Publishing measures every unit with its paraphrases.
SECONDS_MAX = 300.0
Decoded = TypeVar("Decoded")


class _Coverage(msgspec.Struct, frozen=True):
    units: tuple[MeasuredUnit, ...]
    diff: CoverageDiff | None


class _Shadow(msgspec.Struct, frozen=True):
    report: ShadowReport


class ServiceLibrary:
    """Has the methods of `Library` with the same results; raises ServiceError, or StoreError if it is unreachable."""

    def __init__(self, url: str, *, key: str, timeout_seconds: float = SECONDS_MAX) -> None:
        self._service = ServiceConnection(url, key=key, timeout_seconds=timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        """Has nothing to close."""

    def check(self, folder: str | os.PathLike[str]) -> DraftCheck:
        agent, fields = _encode_folder(folder)
        return self._send("POST", agent, "instruction-folder/check", DraftCheck, body=fields)

    def publish(self, folder: str | os.PathLike[str], *, skip_coverage_gate: bool = False) -> DeploymentResult:
        agent, fields = _encode_folder(folder)
        fields |= {"skip_coverage_gate": skip_coverage_gate}
        return self._send("PUT", agent, "instruction-folder", DeploymentResult, body=fields)

    def approve(self, unit: str, *, agent: str = DEFAULT_AGENT, reason: str = "") -> ApprovalResult:
        return self._send("POST", agent, "instruction-approve", ApprovalResult, body={"unit": unit, "reason": reason})

    def record_approval(self, approval: SubmittedApproval, *, agent: str = DEFAULT_AGENT) -> ApprovalResult:
        return self._send("POST", agent, "instruction-approve", ApprovalResult, body={"approval": approval})

    def promote(self, agent: str = DEFAULT_AGENT, *, force: bool = False) -> PublicationResult:
        return self._send("POST", agent, "instruction-promote", PublicationResult, body={"force": force})

    def coverage(self, agent: str = DEFAULT_AGENT) -> tuple[MeasuredUnit, ...]:
        return self._send("GET", agent, "instruction-coverage", _Coverage).units

    def coverage_diff(self, version: str, *, agent: str = DEFAULT_AGENT) -> CoverageDiff:
        measured = self._send("GET", agent, f"instruction-coverage?against={quote(version, safe='')}", _Coverage)
        assert measured.diff is not None, "a comparison was asked for"
        return measured.diff

    def shadow_report(self, agent: str = DEFAULT_AGENT, *, days: int = 30) -> ShadowReport:
        return self._send("GET", agent, f"instruction-shadow?days={days}", _Shadow).report

    def _send(self, method: str, agent: str, path: str, kind: type[Decoded], *, body: object = None) -> Decoded:
        return decode_body(self._service.request(method, f"{agent_path(agent)}/{path}", body), kind)


def _encode_folder(folder: str | os.PathLike[str]) -> tuple[str, dict[str, object]]:
    read = read_instruction_folder(Path(folder))
    return read.manifest.agent_id, {"manifest": read.manifest, "texts": read.texts}
