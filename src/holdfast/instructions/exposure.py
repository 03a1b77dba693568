"""What publishing should say about units that are loaded without being asked for."""

from collections.abc import Mapping, Sequence

from holdfast.canonical.redaction import redacted
from holdfast.instructions.values import Entry


def exposed(entries: Sequence[Entry], contents: Mapping[str, str]) -> tuple[str, ...]:
    """Units that every heartbeat or recall hands out, and whose text holds what looks like a credential.

    Whatever the agent reads later can make it repeat them: nothing confidential belongs there.
    """
    return tuple(
        f"{entry.name}: it is loaded without being asked for, and holds what looks like a credential; "
        "whatever the agent reads can make it repeat that"
        for entry in entries
        if (entry.guarantee_load or entry.required_by_task_types) and _is_secret(contents.get(entry.name, ""))
    )


def crowded(entries: Sequence[Entry], guaranteed_count: int, soft_max: int) -> tuple[str, ...]:
    """Never a reason to refuse: the cap that binds is that of one agent."""
    if guaranteed_count <= soft_max or not any(entry.guarantee_load for entry in entries):
        return ()
    return (f"{guaranteed_count} units of all agents together have guarantee_load; above {soft_max} think again",)


def _is_secret(text: str) -> bool:
    return redacted(text) != text
