"""Whether a manifest may be published: shape, names, pointers, task types, approvals, caps, size, in this order."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from holdfast.instructions.addresses import (
    RESERVED_OWNERS,
    Address,
    check_version,
    follows_all,
    is_of_many,
    read_address,
)
from holdfast.instructions.counting import count_cl100k
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.values import Approval, ApprovalKind, Entry, MigrationMode

DESCRIPTION_CHARACTERS_MAX = 120
NAME_CHARACTERS_MAX = 200
ENTRIES_MAX = 200
INTENTS_MAX = 50
TRIGGER_CHARACTERS_MAX = 400
GUARANTEED_MAX = 5
FREE_TASK_TYPES_MAX = 2
MANIFEST_TOKENS_MAX = 1000

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")

_encode = msgspec.json.Encoder().encode


class GivenApproval(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An approval as it is sent; it counts if its author's own key sends it, or has signed it."""

    kind: ApprovalKind
    unit: str | None = None
    version: str | None = None
    authored_by: str | None = None
    authored_at: str | None = None
    reason: Annotated[str, msgspec.Meta(max_length=4000)] = ""
    signature: Annotated[str, msgspec.Meta(max_length=100)] | None = None


class Draft(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is to be published, as its tokens are counted: compact, without nulls and defaults."""

    version: str
    entries: tuple[Entry, ...]
    migration_mode: MigrationMode | None = None

    @property
    def token_count(self) -> int:
        return count_cl100k(_encode(Draft(self.version, self.entries)).decode())


def check_shape(draft: Draft) -> None:
    for entry in draft.entries:
        if not entry.name or len(entry.name) > NAME_CHARACTERS_MAX or any(map(str.isspace, entry.name)):
            raise _invalid(entry, "a name is text without spaces")
        if not entry.name.isprintable() or entry.name == "manifest":
            raise _invalid(entry, "this name cannot be used")
        if not entry.description.strip() or len(entry.description) > DESCRIPTION_CHARACTERS_MAX:
            raise _invalid(entry, f"a description has 1 to {DESCRIPTION_CHARACTERS_MAX} characters")
        # It stands in a line of the prompt: one more line would be read as another unit.
        if len(entry.description.splitlines()) > 1:
            raise _invalid(entry, "a description is one line")
        # So does a path, in the stub of an agent that has files.
        if entry.path is not None and (entry.path.splitlines() != [entry.path] or _CONTROLS.search(entry.path)):
            raise _invalid(entry, "a path is one line without control characters")
        if entry.token_estimate is not None and not 0 <= entry.token_estimate <= 10**9:
            raise _invalid(entry, "token_estimate is a count")
        if entry.force_position and not entry.guarantee_load:
            raise _invalid(entry, "force_position is for units with guarantee_load")
        triggers = entry.load_triggers
        said = (*triggers.intents, *triggers.keywords, *triggers.task_types)
        if any(not one.strip() or len(one) > TRIGGER_CHARACTERS_MAX for one in said):
            raise _invalid(entry, f"a trigger has 1 to {TRIGGER_CHARACTERS_MAX} characters")
        if any(len(one.splitlines()) > 1 for one in said):
            raise _invalid(entry, "a trigger is one line")
        if len(triggers.intents) > INTENTS_MAX:
            raise _invalid(entry, f"a unit has at most {INTENTS_MAX} intents")
    if not draft.entries:
        raise InstructionError("manifest_entry_invalid", "a manifest has at least one entry")


def check_names(draft: Draft) -> None:
    seen: set[str] = set()
    for entry in draft.entries:
        if entry.name in seen:
            raise _invalid(entry, "this name stands in the manifest twice")
        seen.add(entry.name)


def check_pointers(draft: Draft, *, deployment: str, agent_names: Collection[str]) -> None:
    """Whose units they are, and that the mode that was declared is the one that they have."""
    for entry in draft.entries:
        if entry.fact_uri is None and entry.path is None:
            raise _invalid(entry, "it has neither fact_uri nor path")
        if entry.fact_uri is not None and entry.path is not None and draft.migration_mode != "coexistence":
            raise _invalid(entry, "fact_uri and path together are for migration_mode coexistence")
        if entry.fact_uri is not None:
            _check_owner(entry, deployment=deployment, agent_names=agent_names)
    if draft.migration_mode is not None and draft.migration_mode != mode_of(draft.entries):
        raise InstructionError(
            "manifest_entry_invalid",
            f"the entries are those of migration_mode {mode_of(draft.entries)}, not {draft.migration_mode}",
        )


def _check_owner(entry: Entry, *, deployment: str, agent_names: Collection[str]) -> None:
    try:
        address = read_address(entry.fact_uri or "")
    except InstructionError as error:
        raise _invalid(entry, str(error)) from error
    shared = is_of_many(address.owner)
    if address.deployment != deployment or not (shared or address.owner in agent_names):
        raise _invalid(entry, "its fact_uri is that of another agent or deployment")
    if address.name != entry.name and not shared:
        raise _invalid(entry, "its fact_uri is that of a unit with another name")


def mode_of(entries: Iterable[Entry]) -> MigrationMode:
    entries = tuple(entries)
    if not any(entry.path for entry in entries):
        return "stigmem"
    return "coexistence" if any(entry.fact_uri for entry in entries) else "file"


def check_task_types(draft: Draft, wake_reasons: Collection[str]) -> None:
    for entry in draft.entries:
        unknown = [one for one in entry.required_by_task_types if one not in wake_reasons]
        if unknown:
            raise InstructionError(
                "task_type_unknown",
                f"{unknown[0][:80]!a} of {entry.name!a} is no wake reason; known: {', '.join(sorted(wake_reasons))}",
            )


def check_approvals(draft: Draft, approvals: Sequence[Approval], told: Mapping[str, str]) -> None:
    """`told` are the versions that agents will be told, by entry: what is approved is a text."""
    given = {(one.kind, one.unit) for one in approvals}
    for entry in draft.entries:
        if len(set(entry.required_by_task_types)) > FREE_TASK_TYPES_MAX and ("task_types", entry.name) not in given:
            raise _unapproved("task_types_approval_required", entry, "task_types", told)
        if entry.guarantee_load and ("guarantee_load", entry.name) not in given:
            raise _unapproved("guarantee_approval_required", entry, "guarantee_load", told)
        if entry.force_position and not any(
            one.kind == "force_prepend" and one.unit == entry.name and one.reason.strip() for one in approvals
        ):
            kind = "force_prepend, and a reason: the content review"
            raise _unapproved("prepend_approval_required", entry, kind, told)


def check_skip(draft: Draft, approvers: Collection[str]) -> None:
    """Two people who are named by URIs; `approvers` are those who said so for this version, the publisher included."""
    if any(entry.guarantee_load for entry in draft.entries) and len(set(approvers)) < 2:
        raise InstructionError(
            "skip_gate_cosign_required",
            "the gate of a manifest with a guaranteed unit is skipped by two admins with entity URIs: "
            "let another record an approval of kind skip_gate for this version",
        )


def check_caps(draft: Draft) -> None:
    guaranteed = sum(entry.guarantee_load for entry in draft.entries)
    if guaranteed > GUARANTEED_MAX:
        raise InstructionError(
            "guarantee_cap_exceeded", f"{guaranteed} units have guarantee_load, at most {GUARANTEED_MAX} may"
        )


def check_size(draft: Draft) -> int:
    """The tokens of the manifest; what each entry costs is told where it has too many."""
    if len(draft.entries) > ENTRIES_MAX:
        # So many have more tokens than that, whatever they say.
        raise InstructionError(
            "manifest_too_large",
            f"the manifest has {len(draft.entries)} entries, and at most {MANIFEST_TOKENS_MAX} tokens are allowed",
            details={"token_max": MANIFEST_TOKENS_MAX},
        )
    tokens = draft.token_count
    if tokens > MANIFEST_TOKENS_MAX:
        costs = {entry.name: count_cl100k(_encode(entry).decode()) for entry in draft.entries}
        raise InstructionError(
            "manifest_too_large",
            f"the manifest has {tokens} tokens, at most {MANIFEST_TOKENS_MAX} are allowed: shorten or remove entries",
            details={"token_count": tokens, "token_max": MANIFEST_TOKENS_MAX, "entry_tokens": costs},
        )
    return tokens


def check_manifest_version(version: str, current: str | None, *, before: Sequence[str]) -> None:
    """Versions rise, and none is used twice; `before` are all that there were."""
    try:
        check_version(version)
    except InstructionError as error:
        raise InstructionError("manifest_version_conflict", str(error)) from error
    if not follows_all(version, before):
        raise InstructionError(
            "manifest_version_conflict",
            f"version {version[:80]!a} does not follow {current!a}; choose a higher one",
            details={"current_version": current},
        )


def manifest_address(deployment: str, agent_id: str, version: str) -> Address:
    return Address(deployment, agent_id, "manifest", version)


def is_reserved(agent_id: str) -> bool:
    return agent_id in RESERVED_OWNERS


def _invalid(entry: Entry, reason: str) -> InstructionError:
    return InstructionError(
        "manifest_entry_invalid", f"entry {entry.name[:80]!a}: {reason}", details={"unit": entry.name[:200]}
    )


def _unapproved(code: str, entry: Entry, kind: str, told: Mapping[str, str]) -> InstructionError:
    of = f"of version {told[entry.name]}, which is told, " if entry.name in told else ""
    return InstructionError(
        code, f"entry {entry.name[:80]!a} needs an approval {of}of kind {kind}", details={"unit": entry.name[:200]}
    )
