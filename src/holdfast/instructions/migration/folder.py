"""Write a proposal to a folder for people to review and edit, and read it back."""

import os
from pathlib import Path

import msgspec

from holdfast.errors import UserError
from holdfast.instructions.manifest.validate import ManifestDraft, SubmittedApproval
from holdfast.instructions.migration.proposal import MigrationProposal
from holdfast.instructions.models import ManifestEntry, MigrationMode
from holdfast.instructions.units.files import FILE_BYTES_MAX
from holdfast.instructions.uri import SEGMENT_PATTERN
from holdfast.sources.files import describe_read_error, read_regular_file

MANIFEST_FILE = "manifest.json"
MANIFEST_BYTES_MAX = 2_000_000


class ManifestFile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`always_rules` are the rules of the agent's boot stub; None leaves the agent's rules unchanged."""

    agent_id: str
    version: str
    entries: tuple[ManifestEntry, ...]
    migration_mode: MigrationMode | None = None
    always_rules: tuple[str, ...] | None = None
    approvals: tuple[SubmittedApproval, ...] = ()

    @property
    def draft(self) -> ManifestDraft:
        return ManifestDraft(self.version, self.entries, self.migration_mode)


class InstructionFolder(msgspec.Struct, frozen=True):
    """`texts` are by unit name, from the files `NAME.md`."""

    manifest: ManifestFile
    texts: dict[str, str]


def write_instruction_folder(proposal: MigrationProposal, folder: Path) -> None:
    """Write into a new or empty folder; never overwrites. Raises UserError."""
    rules = tuple(rule.text for rule in proposal.rules)
    draft = proposal.draft
    manifest = ManifestFile(proposal.agent_id, draft.version, draft.entries, draft.migration_mode, rules)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"{folder} is not empty: choose a new folder, or remove it")
        for unit in proposal.units:
            _write(folder / f"{unit.name}.md", unit.content + "\n")
        _write(folder / MANIFEST_FILE, msgspec.json.format(msgspec.json.encode(manifest)).decode() + "\n")
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}") from error


def read_instruction_folder(folder: Path) -> InstructionFolder:
    """A unit without a file has no text here, but may have one in the service. Raises UserError."""
    raw = _read(folder / MANIFEST_FILE, MANIFEST_BYTES_MAX)
    if raw is None:
        raise UserError(f"{folder} has no {MANIFEST_FILE}: create one with `holdfast instructions migrate --out`")
    try:
        manifest = msgspec.json.decode(raw, type=ManifestFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{folder / MANIFEST_FILE}: {error}") from error
    texts: dict[str, str] = {}
    for entry in manifest.entries:
        if not SEGMENT_PATTERN.fullmatch(entry.name):
            continue
        unit = _read(folder / f"{entry.name}.md", FILE_BYTES_MAX)
        if unit is not None:
            try:
                texts[entry.name] = unit.decode("utf-8").strip("\n")
            except UnicodeDecodeError as error:
                raise UserError(f"{folder / entry.name}.md is not UTF-8") from error
    return InstructionFolder(manifest, texts)


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w", encoding="utf-8") as file:
        file.write(text)


def _read(path: Path, bytes_max: int) -> bytes | None:
    try:
        file = read_regular_file(path, bytes_max + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: {describe_read_error(error)}") from error
    if file is None or len(file.raw) > bytes_max:
        raise UserError(f"{path} is not a regular file of at most {bytes_max} bytes")
    return file.raw
