"""How instructions are addressed: `instruction:{deployment}/{owner}/{name}/{version}`, and which version is newer."""

import re
from collections.abc import Iterable

import msgspec

from holdfast.instructions.failures import InstructionError

URI_CHARACTERS_MAX = 600
SHARED = "shared"
SKILL = "skill"
RESERVED_OWNERS = frozenset({SHARED, SKILL, "agent"})
FLOATING = frozenset({"latest", "stable", "current", "head"})

SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,199}")
_NUMBERED = re.compile(r"v?(\d{1,9}(?:\.\d{1,9}){0,9})")


class Address(msgspec.Struct, frozen=True):
    """Where a unit stands. `owner` is an agent, `shared`, or `skill/NAME`."""

    deployment: str
    owner: str
    name: str
    version: str

    @property
    def uri(self) -> str:
        return f"instruction:{self.deployment}/{self.owner}/{self.name}/{self.version}"


def is_of_many(owner: str) -> bool:
    """Whether what is kept under this name may be listed by every agent."""
    return owner == SHARED or owner.startswith(f"{SKILL}/")


def read_address(uri: str) -> Address:
    """Takes the segment `agent/` and leaves it out. Raises InstructionError `uri_invalid`."""
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
        or not all(SEGMENT.fullmatch(segment) for segment in segments)
        or (parts[1] in RESERVED_OWNERS and parts[1] != SHARED)
    ):
        raise InstructionError(
            "uri_invalid", "a unit is addressed as instruction:{deployment}/{agent}/{name}/{version}"
        )
    address = Address(*parts)
    check_version(address.version)
    return address


def plain_uri(uri: str) -> str:
    """Without the segment `agent/`; what is no address stays as it is, for others to refuse."""
    try:
        return read_address(uri).uri
    except InstructionError:
        return uri


def check_version(version: str) -> None:
    if version.lower() in FLOATING:
        raise InstructionError("uri_invalid", f"{version!r} floats; a version is a number such as v3")
    if not SEGMENT.fullmatch(version):
        raise InstructionError("uri_invalid", "a version is a number such as v3")


def version_numbers(version: str) -> tuple[int, ...] | None:
    """What versions are ordered by; None where only the time can tell."""
    found = _NUMBERED.fullmatch(version)
    if found is None:
        return None
    numbers = [int(part) for part in found[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def is_newer(version: str, than: str) -> bool:
    """Whether it may follow; versions without numbers may, if they differ."""
    ours, theirs = version_numbers(version), version_numbers(than)
    return ours > theirs if ours is not None and theirs is not None else version != than


def follows_all(version: str, before: Iterable[str]) -> bool:
    """Whether none of these is the same or has a higher number, whatever stands between them."""
    ours, given = version_numbers(version), tuple(before)
    highest = max((numbers for one in given if (numbers := version_numbers(one)) is not None), default=None)
    return version not in given and (ours is None or highest is None or ours > highest)


def garden_of(deployment: str, agent_id: str) -> str:
    return f"instruction:{deployment}:{agent_id}"


def scope_of(deployment: str, agent_id: str) -> str:
    return f"instruction:{deployment}/{agent_id}"
