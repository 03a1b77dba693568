"""Validate a manifest draft: shape, names, pointers, task types, approvals, caps, size, in this order (cheap first)."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from holdfast.errors import InstructionError
from holdfast.instructions.models import Approval, ApprovalKind, ManifestEntry, MigrationMode
from holdfast.instructions.recall.boot_stub import count_manifest_tokens, measure_entry_cost
from holdfast.instructions.uri import UnitAddress, check_new_version, is_newer_than_all, is_shared_owner, parse_unit_uri

# Limits of seed 003: description length, guaranteed units per agent (S4), task types without an approval, and the
# manifest's size in cl100k tokens. The others bound what a request can make the service do.
DESCRIPTION_CHARACTERS_MAX = 120
NAME_CHARACTERS_MAX = 200
ENTRIES_MAX = 200
INTENTS_MAX = 50
TRIGGER_CHARACTERS_MAX = 400
GUARANTEED_MAX = 5
UNAPPROVED_TASK_TYPES_MAX = 2
MANIFEST_TOKENS_MAX = 1000
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_encode = msgspec.json.Encoder().encode


class SubmittedApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An approval as submitted; it is valid if its author's own key sends it or has signed it."""

    kind: ApprovalKind
    unit: str | None = None
    version: str | None = None
    authored_by: str | None = None
    authored_at: str | None = None
    reason: Annotated[str, msgspec.Meta(max_length=4000)] = ""
    signature: Annotated[str, msgspec.Meta(max_length=100)] | None = None

    def as_approval(self, approval_id: str, agent_id: str, *, sender: str, at: int) -> Approval:
        """The approval as recorded; without an author it is the sender's."""
        return Approval(
            id=approval_id,
            agent_id=agent_id,
            kind=self.kind,
            unit=self.unit,
            version=self.version,
            authored_by=self.authored_by or sender,
            authored_at=at,
            reason=self.reason,
            signature=self.signature,
        )


class ManifestDraft(msgspec.Struct, frozen=True, omit_defaults=True):
    """A manifest to publish. Its tokens are those of the index that is in every prompt."""

    version: str
    entries: tuple[ManifestEntry, ...]
    migration_mode: MigrationMode | None = None

    @property
    def token_count(self) -> int:
        return count_manifest_tokens(self.entries)


def check_entries(draft: ManifestDraft) -> None:
    for entry in draft.entries:
        if not entry.name or len(entry.name) > NAME_CHARACTERS_MAX or any(map(str.isspace, entry.name)):
            raise _invalid(entry, "a name is text without spaces")
        if not entry.name.isprintable() or entry.name == "manifest":
            raise _invalid(entry, "this name cannot be used")
        if not entry.description.strip() or len(entry.description) > DESCRIPTION_CHARACTERS_MAX:
            raise _invalid(entry, f"a description has 1 to {DESCRIPTION_CHARACTERS_MAX} characters")
        # It becomes one line of the prompt's index: a second line would read as another unit.
        if len(entry.description.splitlines()) > 1:
            raise _invalid(entry, "a description is one line")
        # A path is a line of the boot stub when the agent has files.
        path = entry.path or ""
        if entry.path is not None and (path.splitlines() != [path] or _CONTROL_CHARACTERS.search(path)):
            raise _invalid(entry, "a path is one line without control characters")
        if entry.token_estimate is not None and not 0 <= entry.token_estimate <= 10**9:
            raise _invalid(entry, "token_estimate is a count")
        if entry.force_position and not entry.guarantee_load:
            raise _invalid(entry, "force_position requires guarantee_load")
        triggers = entry.load_triggers
        texts = (*triggers.intents, *triggers.keywords, *triggers.task_types)
        if any(not text.strip() or len(text) > TRIGGER_CHARACTERS_MAX for text in texts):
            raise _invalid(entry, f"a trigger has 1 to {TRIGGER_CHARACTERS_MAX} characters")
        if any(len(text.splitlines()) > 1 for text in texts):
            raise _invalid(entry, "a trigger is one line")
        if len(triggers.intents) > INTENTS_MAX:
            raise _invalid(entry, f"a unit has at most {INTENTS_MAX} intents")
    if not draft.entries:
        raise InstructionError("manifest_entry_invalid", "a manifest has at least one entry")


def check_unique_names(draft: ManifestDraft) -> None:
    seen: set[str] = set()
    for entry in draft.entries:
        if entry.name in seen:
            raise _invalid(entry, "this name is in the manifest twice")
        seen.add(entry.name)


def check_pointers(draft: ManifestDraft, *, deployment: str, agent_names: Collection[str]) -> None:
    """Check that entries point only at own or shared units, and that the declared mode matches the pointers."""
    for entry in draft.entries:
        if entry.fact_uri is None and entry.path is None:
            raise _invalid(entry, "it has neither fact_uri nor path")
        if entry.fact_uri is not None and entry.path is not None and draft.migration_mode != "coexistence":
            raise _invalid(entry, "fact_uri and path together require migration_mode coexistence")
        if entry.fact_uri is not None:
            _check_owner(entry, deployment=deployment, agent_names=agent_names)
    if draft.migration_mode is not None and draft.migration_mode != infer_migration_mode(draft.entries):
        raise InstructionError(
            "manifest_entry_invalid",
            f"the entries imply migration_mode {infer_migration_mode(draft.entries)}, not {draft.migration_mode}",
        )


def _check_owner(entry: ManifestEntry, *, deployment: str, agent_names: Collection[str]) -> None:
    try:
        address = parse_unit_uri(entry.fact_uri or "")
    except InstructionError as error:
        raise _invalid(entry, str(error)) from error
    shared = is_shared_owner(address.owner)
    if address.deployment != deployment or not (shared or address.owner in agent_names):
        raise _invalid(entry, "its fact_uri belongs to another agent or deployment")
    if address.name != entry.name and not shared:
        raise _invalid(entry, "its fact_uri points at a unit with another name")


def infer_migration_mode(entries: Iterable[ManifestEntry]) -> MigrationMode:
    entries = tuple(entries)
    if not any(entry.path for entry in entries):
        return "stigmem"
    return "coexistence" if any(entry.fact_uri for entry in entries) else "file"


def check_task_types(draft: ManifestDraft, wake_reasons: Collection[str]) -> None:
    for entry in draft.entries:
        unknown = [task_type for task_type in entry.required_by_task_types if task_type not in wake_reasons]
        if unknown:
            raise InstructionError(
                "task_type_unknown",
                f"{unknown[0][:80]!a} of {entry.name!a} is not a wake reason; known: {', '.join(sorted(wake_reasons))}",
            )


def check_approvals(draft: ManifestDraft, approvals: Sequence[Approval], served_versions: Mapping[str, str]) -> None:
    """`served_versions` are by entry name; the error names them because an approval is for one version's text."""
    submitted = {(approval.kind, approval.unit) for approval in approvals}
    for entry in draft.entries:
        has_many_types = len(set(entry.required_by_task_types)) > UNAPPROVED_TASK_TYPES_MAX
        if has_many_types and ("task_types", entry.name) not in submitted:
            raise _unapproved("task_types_approval_required", entry, "task_types", served_versions)
        if entry.guarantee_load and ("guarantee_load", entry.name) not in submitted:
            raise _unapproved("guarantee_approval_required", entry, "guarantee_load", served_versions)
        if entry.force_position and not any(
            approval.kind == "force_prepend" and approval.unit == entry.name and approval.reason.strip()
            for approval in approvals
        ):
            raise _unapproved("prepend_approval_required", entry, "force_prepend", served_versions)


def check_gate_skip(draft: ManifestDraft, approvers: Collection[str]) -> None:
    """Require two people with entity URIs; `approvers` includes the publisher and is for this version only."""
    if any(entry.guarantee_load for entry in draft.entries) and len(set(approvers)) < 2:
        approval = {"kind": "skip_gate", "version": draft.version}
        raise InstructionError(
            "skip_gate_cosign_required",
            "skipping the gate of a manifest with a guaranteed unit takes two admins with entity URIs: have another "
            f"admin record {_encode(approval).decode()} with their own key, by POST to /v1/agents/ID/approvals or with "
            f"`holdfast instructions approve --skip-gate {draft.version}`, or send it signed in `approvals`",
            details={"approval": approval},
        )


def check_guaranteed_cap(draft: ManifestDraft) -> None:
    guaranteed = sum(entry.guarantee_load for entry in draft.entries)
    if guaranteed > GUARANTEED_MAX:
        message = f"{guaranteed} units have guarantee_load, at most {GUARANTEED_MAX} are allowed"
        raise InstructionError("guarantee_cap_exceeded", message)


def check_manifest_size(draft: ManifestDraft) -> int:
    """Return the manifest's tokens. The error lists the tokens of each entry."""
    if len(draft.entries) > ENTRIES_MAX:
        # So many entries exceed the token limit whatever they contain; counting them would be wasted work.
        raise InstructionError(
            "manifest_too_large",
            f"the manifest has {len(draft.entries)} entries, and at most {MANIFEST_TOKENS_MAX} tokens are allowed",
            details={"token_max": MANIFEST_TOKENS_MAX},
        )
    tokens = draft.token_count
    if tokens > MANIFEST_TOKENS_MAX:
        costs = {entry.name: measure_entry_cost(entry).entry_tokens for entry in draft.entries}
        raise InstructionError(
            "manifest_too_large",
            f"the manifest has {tokens} tokens, at most {MANIFEST_TOKENS_MAX} are allowed: shorten or remove entries",
            details={"token_count": tokens, "token_max": MANIFEST_TOKENS_MAX, "entry_tokens": costs},
        )
    return tokens


def check_manifest_version(version: str, current: str | None, *, earlier: Sequence[str]) -> None:
    """Versions increase and are never reused; `earlier` are all before."""
    try:
        check_new_version(version)
    except InstructionError as error:
        raise InstructionError("manifest_version_conflict", str(error)) from error
    if not is_newer_than_all(version, earlier):
        raise InstructionError(
            "manifest_version_conflict",
            f"version {version[:80]!a} does not follow {current!a}; choose a higher one",
            details={"current_version": current},
        )


def manifest_address(deployment: str, agent_id: str, version: str) -> UnitAddress:
    return UnitAddress(deployment, agent_id, "manifest", version)


def _invalid(entry: ManifestEntry, reason: str) -> InstructionError:
    details = {"unit": entry.name[:200]}
    return InstructionError("manifest_entry_invalid", f"entry {entry.name[:80]!a}: {reason}", details=details)


def _unapproved(code: str, entry: ManifestEntry, kind: ApprovalKind, served: Mapping[str, str]) -> InstructionError:
    """The error shows the missing approval, and where to put it."""
    version = served.get(entry.name)
    of_version = f"of version {version}, the one that is served, " if version is not None else ""
    reviewed = ", with the content review as its reason" if kind == "force_prepend" else ""
    approval = {"kind": kind, "unit": entry.name}
    approval |= {"version": version} if version is not None else {}
    approval |= {"reason": "..."} if reviewed else {}
    message = (
        f"entry {entry.name[:80]!a} needs an approval {of_version}of kind {kind}{reviewed}: add "
        f"{_encode(approval).decode()} to `approvals` beside `entries`, in the request or in manifest.json, or record "
        f"it by POST to /v1/agents/ID/approvals or with `holdfast instructions approve {entry.name[:80]} --kind {kind}`"
    )
    return InstructionError(code, message, details={"unit": entry.name[:200], "approval": approval})
