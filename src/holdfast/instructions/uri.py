"""Instruction URIs, `instruction:{deployment}/{owner}/{name}/{version}`, and the order of versions."""

import re
from collections.abc import Iterable

import msgspec

from holdfast.errors import InstructionError

URI_CHARACTERS_MAX = 600
SHARED = "shared"
SKILL = "skill"
RESERVED_OWNERS = frozenset({SHARED, SKILL, "agent"})
# A floating version would make a recall depend on the time; records could not be replayed.
FLOATING_VERSIONS = frozenset({"latest", "stable", "current", "head"})
SEGMENT_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,199}")
_NEW_VERSION = re.compile(
    r"v(?:0|[1-9]\d{0,8})"
    r"|v?(?:0|[1-9]\d{0,8})(?:\.(?:0|[1-9]\d{0,8})){2}(?:-[0-9A-Za-z.-]{1,80})?(?:\+[0-9A-Za-z.-]{1,80})?"
)
_NUMBERED = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){0,9})")


class UnitAddress(msgspec.Struct, frozen=True):
    """The parsed URI of a unit. `owner` is an agent, `shared`, or `skill/NAME`."""

    deployment: str
    owner: str
    name: str
    version: str

    @property
    def uri(self) -> str:
        return f"instruction:{self.deployment}/{self.owner}/{self.name}/{self.version}"


def is_shared_owner(owner: str) -> bool:
    """Whether any agent may list the units of this owner."""
    return owner == SHARED or owner.startswith(f"{SKILL}/")


def parse_unit_uri(uri: str) -> UnitAddress:
    """Parse a URI; the optional segment `agent/` is dropped. Raises InstructionError `uri_invalid`."""
    scheme, _, rest = uri[: URI_CHARACTERS_MAX + 1].partition(":")
    parts = rest.split("/")
    if len(parts) == 5 and parts[1] == "agent":
        del parts[1]
    if len(parts) == 5 and parts[1] == SKILL:
        parts[1:3] = [f"{SKILL}/{parts[2]}"]
    segments = [segment for part in parts for segment in part.split("/")]
    if (
        scheme != "instruction"
        or len(uri) > URI_CHARACTERS_MAX
        or len(parts) != 4
        or not all(SEGMENT_PATTERN.fullmatch(segment) for segment in segments)
        or (parts[1] in RESERVED_OWNERS and parts[1] != SHARED)
    ):
        raise InstructionError(
            "uri_invalid", "a unit is addressed as instruction:{deployment}/{agent}/{name}/{version}"
        )
    address = UnitAddress(*parts)
    check_version(address.version)
    return address


def normalize_unit_uri(uri: str) -> str:
    """The URI without the segment `agent/`; an invalid URI is returned unchanged and rejected by later checks."""
    try:
        return parse_unit_uri(uri).uri
    except InstructionError:
        return uri


def check_version(version: str) -> None:
    if version.lower() in FLOATING_VERSIONS:
        raise InstructionError("uri_invalid", f"{version!r} is a floating version; use a number such as v3")
    if not SEGMENT_PATTERN.fullmatch(version):
        raise InstructionError("uri_invalid", "a version is a number such as v3")


def check_new_version(version: str) -> None:
    """Raises InstructionError unless the version is v<integer> or a semantic version (seed 003, 21.4.1).

    Only for what is written: a store may hold versions of another form from before.
    """
    check_version(version)
    if not _NEW_VERSION.fullmatch(version):
        raise InstructionError(
            "uri_invalid", f"version {version[:80]!a} is neither v<integer>, such as v3, nor semantic, such as 1.4.0"
        )


def parse_version_numbers(version: str) -> tuple[int, ...] | None:
    """The sort key of a version, such as (1, 2) for v1.2.0; None for a version without numbers."""
    match = _NUMBERED.fullmatch(version.partition("+")[0].partition("-")[0])
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    # v1.0 and v1 are the same version.
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


VersionKey = tuple[tuple[int, ...], bool, tuple[tuple[bool, int, str], ...]]


def version_sort_key(version: str) -> VersionKey | None:
    """Orders versions as semantic versioning does, a pre-release before its release; None without numbers."""
    numbers = parse_version_numbers(version)
    if numbers is None:
        return None
    prerelease = version.partition("+")[0].partition("-")[2]
    # Numeric identifiers come before others and are compared as numbers (semver.org, 11.4).
    parts = tuple(
        (not part.isdigit(), int(part) if part.isdigit() else 0, part)
        for part in (prerelease.split(".") if prerelease else ())
    )
    return numbers, not prerelease, parts


def is_newer(version: str, than: str) -> bool:
    """Whether the version may follow another; one without numbers may follow any other."""
    ours, theirs = version_sort_key(version), version_sort_key(than)
    return ours > theirs if ours is not None and theirs is not None else version != than


def is_newer_than_all(version: str, before: Iterable[str]) -> bool:
    """Whether the version is new and its number is higher than that of every numbered one before."""
    ours, earlier = version_sort_key(version), tuple(before)
    numbered = (key for other in earlier if (key := version_sort_key(other)) is not None)
    highest = max(numbered, default=None)
    return version not in earlier and (ours is None or highest is None or ours > highest)


def garden_id(deployment: str, agent_id: str) -> str:
    return f"instruction:{deployment}:{agent_id}"
