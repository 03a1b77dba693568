"""May a test move the prefix? The mark `moves_prefix`, and what follows from it."""

import pytest

MARK = "moves_prefix"
DECLARED = f"{MARK}(reason): this test moves the cached prefix on purpose"


class PrefixDidNotMoveWarning(pytest.PytestWarning):
    """A test says that it moves the prefix, and does not."""


def reason_of(node: pytest.Item) -> str | None:
    """Why the test may move the prefix; None where it may not. A mark without a reason fails the test."""
    marker = node.get_closest_marker(MARK)
    if marker is None:
        return None
    reason = marker.kwargs.get("reason")
    if marker.args or set(marker.kwargs) != {"reason"} or not isinstance(reason, str) or not reason.strip():
        pytest.fail(f'{node.nodeid}: say why: @pytest.mark.{MARK}(reason="...")', pytrace=False)
    return reason


def judge(node: pytest.Item, moved: str | None, *, ended: bool = True) -> None:
    """Fails a test that moved the prefix without leave. At its end, warns of leave that was not needed."""
    reason = reason_of(node)
    if moved is not None and reason is None:
        pytest.fail(f'{moved}\nto move it on purpose: @pytest.mark.{MARK}(reason="...")', pytrace=False)
    if moved is None and reason is not None and ended:
        node.warn(PrefixDidNotMoveWarning(f"{node.nodeid} is marked as moving the prefix, but the prefix did not move"))
