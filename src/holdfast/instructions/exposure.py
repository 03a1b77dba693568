"""Warnings at publication about units that are loaded without being recalled."""

from collections.abc import Mapping, Sequence

from holdfast.canonical.redaction import redacted
from holdfast.instructions.values import Entry


def exposed(entries: Sequence[Entry], contents: Mapping[str, str]) -> tuple[str, ...]:
    """A warning for each unit that every heartbeat or recall returns and whose text looks like a credential.

    A prompt injection can make the agent repeat such a text, so nothing confidential belongs in it.
    """
    return tuple(
        f"{entry.name}: it is loaded without being recalled and contains what looks like a credential; "
        "a prompt injection can make the agent repeat it"
        for entry in entries
        if (entry.guarantee_load or entry.required_by_task_types) and _is_secret(contents.get(entry.name, ""))
    )


def crowded(entries: Sequence[Entry], guaranteed_count: int, soft_max: int) -> tuple[str, ...]:
    """Only a warning: the binding cap is per agent."""
    if guaranteed_count <= soft_max or not any(entry.guarantee_load for entry in entries):
        return ()
    return (f"{guaranteed_count} units across all agents have guarantee_load; more than {soft_max} is not recommended",)


def _is_secret(text: str) -> bool:
    return redacted(text) != text
