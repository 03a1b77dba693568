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


def parse_version_numbers(version: str) -> tuple[int, ...] | None:
    """The sort key of a version, such as (1, 2) for v1.2.0; None for a version without numbers."""
    match = _NUMBERED.fullmatch(version)
    if match is None:
        return None
    numbers = [int(part) for part in match[1].split(".")]
    # v1.0 and v1 are the same version.
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def is_newer(version: str, than: str) -> bool:
    """Whether the version may follow another; one without numbers may follow any other."""
    ours, theirs = parse_version_numbers(version), parse_version_numbers(than)
    return ours > theirs if ours is not None and theirs is not None else version != than


def is_newer_than_all(version: str, before: Iterable[str]) -> bool:
    """Whether the version is new and its number is higher than that of every numbered one before."""
    ours, earlier = parse_version_numbers(version), tuple(before)
    numbered = (numbers for other in earlier if (numbers := parse_version_numbers(other)) is not None)
    highest = max(numbered, default=None)
    return version not in earlier and (ours is None or highest is None or ours > highest)


def garden_id(deployment: str, agent_id: str) -> str:
    return f"instruction:{deployment}:{agent_id}"
