"""Did a test move the cached prefix, may it, and what is it told?"""

import re
from collections.abc import Sequence

import pytest

from holdfast.ledger.wording import dollars, printable, where_moved
from holdfast.testing.conversations import PrefixBreak, prefix_breaks
from holdfast.testing.marks import judge
from holdfast.testing.provider import ServedProvider

CALLS_NAMED_MAX = 20
_SECRET = re.compile(r"\b(sk-|sk_|AIza|gh[pousr]_|xox[abp]-|AKIA|Bearer )[\w.+/=-]{6,}")


class PrefixGuard:
    """Holds every request of a test to the ones before it; without a call of `check`, at the end of the test."""

    def __init__(self, node: pytest.Item, provider: ServedProvider) -> None:
        self._node = node
        self._provider = provider

    @property
    def breaks(self) -> tuple[PrefixBreak, ...]:
        """Every call so far that did not extend the one that it goes on from."""
        return prefix_breaks(self._provider.calls, self._provider.models)

    def check(self) -> None:
        """Fails the test if the prefix has moved and was not allowed to."""
        found = self.breaks
        judge(self._node, told(found) if found else None, ended=False)

    def close(self) -> None:
        """As `check`; and says so if the prefix was allowed to move and has not."""
        found = self.breaks
        judge(self._node, told(found) if found else None)


def told(breaks: Sequence[PrefixBreak]) -> str:
    """The first break in full, the others by their numbers."""
    first = breaks[0]
    comparison = first.comparison
    opens = "begins anew and could have read the head of" if first.opens else "does not extend"
    lines = [f"the cached prefix moved: call {first.call} {opens} call {first.call_before} ({comparison.model})"]
    if comparison.moved:
        lines.append(f"  {where_moved(comparison.moved, after=f'call {first.call}')}")
        lines += _shown(comparison.moved.diff)
    for changed in comparison.parameters:
        lines.append(f"  {changed.name} changed: {changed.first_lost} and what stands behind is lost")
    if first.cause:
        lines.append(f"  likely cause: {hidden(printable(first.cause))}")
    lines.append(
        f"  {comparison.tokens_lost} of {comparison.tokens_before} cached tokens (estimated) are lost; "
        f"to write them again costs {dollars(comparison.lost_usd)} more"
    )
    lines += [f"  note: {note}" for note in comparison.notes]
    if others := [str(found.call) for found in breaks[1:]]:
        more = f" and {len(others) - CALLS_NAMED_MAX} more" if len(others) > CALLS_NAMED_MAX else ""
        lines.append(f"  so did call {', '.join(others[:CALLS_NAMED_MAX])}{more}")
    return "\n".join(lines)


def _shown(diff: Sequence[str]) -> list[str]:
    lines = [printable(line) for line in diff]
    shown = [hidden(line) for line in lines]
    gone, come = ([line[1:] for line in shown if line.startswith(sign)] for sign in "-+")
    note = ["    (what differs is hidden: it looks like a key)"] if gone == come and shown != lines else []
    return [f"    {line}" for line in shown] + note


def hidden(line: str) -> str:
    """The line without what looks like a key."""
    return _SECRET.sub(lambda secret: f"{secret[1]}[hidden]", line)
