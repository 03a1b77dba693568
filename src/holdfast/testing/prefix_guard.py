"""The `prefix_guard` fixture: fails a test whose requests change the cached prefix, and explains where."""

import re
from collections.abc import Sequence

import pytest

from holdfast.ledger.requests.format import format_difference, format_usd_exact, strip_control_characters
from holdfast.testing.markers import enforce_prefix_mark
from holdfast.testing.prefix_check import PrefixBreak, find_prefix_breaks
from holdfast.testing.simulated_provider import ServedProvider

CALLS_NAMED_MAX = 20
_SECRET = re.compile(r"\b(sk-|sk_|AIza|gh[pousr]_|xox[abp]-|AKIA|Bearer )[\w.+/=-]{6,}")


class PrefixGuard:
    """Checks that each request of a test extends the earlier ones, on `check()` and at the end of the test."""

    def __init__(self, node: pytest.Item, provider: ServedProvider) -> None:
        self._node = node
        self._provider = provider

    @property
    def breaks(self) -> tuple[PrefixBreak, ...]:
        """Every call so far that did not extend the call that it continues."""
        return find_prefix_breaks(self._provider.calls, self._provider.models)

    def check(self, *, at_end: bool = False) -> None:
        """Fail the test if its prefix changed without being allowed to; `at_end` warns if it could have and did not."""
        breaks = self.breaks
        enforce_prefix_mark(self._node, describe_breaks(breaks) if breaks else None, at_end=at_end)


def describe_breaks(breaks: Sequence[PrefixBreak]) -> str:
    """Describe the first break in full and list the calls of the others."""
    first = breaks[0]
    comparison = first.comparison
    relation = "starts a conversation and could have read the prefix of" if first.is_first_call else "does not extend"
    lines = [f"the cached prefix changed: call {first.call} {relation} call {first.call_before} ({comparison.model})"]
    if comparison.difference:
        lines.append(f"  {format_difference(comparison.difference, after=f'call {first.call}')}")
        lines += _diff_lines(comparison.difference.diff)
    for changed in comparison.parameters:
        lines.append(f"  {changed.name} changed: {changed.first_lost_section} and everything after it is lost")
    if first.cause:
        lines.append(f"  likely cause: {hide_keys(strip_control_characters(first.cause))}")
    lines.append(
        f"  {comparison.tokens_lost} of {comparison.tokens_before} cached tokens (estimated) are lost; "
        f"writing them again costs {format_usd_exact(comparison.lost_usd)} more"
    )
    lines += [f"  note: {note}" for note in comparison.notes]
    if others := [str(prefix_break.call) for prefix_break in breaks[1:]]:
        more = f" and {len(others) - CALLS_NAMED_MAX} more" if len(others) > CALLS_NAMED_MAX else ""
        lines.append(f"  also broken: call {', '.join(others[:CALLS_NAMED_MAX])}{more}")
    return "\n".join(lines)


def _diff_lines(diff: Sequence[str]) -> list[str]:
    lines = [strip_control_characters(line) for line in diff]
    redacted = [hide_keys(line) for line in lines]
    removed, added = ([line[1:] for line in redacted if line.startswith(sign)] for sign in "-+")
    # If hiding made the removed and added lines equal, say so: the diff would look empty.
    note = ["    (the difference is hidden: it looks like a key)"] if removed == added and redacted != lines else []
    return [f"    {line}" for line in redacted] + note


def hide_keys(line: str) -> str:
    """The line with everything that looks like an API key hidden."""
    return _SECRET.sub(lambda secret: f"{secret[1]}[hidden]", line)
