"""The pytest mark `changes_prefix`, which allows a test to change the cached prefix."""

import pytest

MARK = "changes_prefix"
MARK_DECLARATION = f"{MARK}(reason): this test changes the cached prefix on purpose"


class PrefixUnchangedWarning(pytest.PytestWarning):
    """A test is marked as changing the prefix but does not."""


def get_mark_reason(node: pytest.Item) -> str | None:
    """Why the test may change the prefix; None if it may not. A mark without a reason fails the test."""
    marker = node.get_closest_marker(MARK)
    if marker is None:
        return None
    reason = marker.kwargs.get("reason")
    if marker.args or set(marker.kwargs) != {"reason"} or not isinstance(reason, str) or not reason.strip():
        pytest.fail(f'{node.nodeid}: give a reason: @pytest.mark.{MARK}(reason="...")', pytrace=False)
    return reason


def enforce_prefix_mark(node: pytest.Item, change: str | None, *, at_end: bool) -> None:
    """Fail a test that changed the prefix without the mark; at its end, warn about a mark that was not needed."""
    reason = get_mark_reason(node)
    if change is not None and reason is None:
        pytest.fail(f'{change}\nto change it on purpose: @pytest.mark.{MARK}(reason="...")', pytrace=False)
    if change is None and reason is not None and at_end:
        node.warn(PrefixUnchangedWarning(f"{node.nodeid} is marked as changing the prefix, but did not change it"))
