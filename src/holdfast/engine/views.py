"""The view of a session's state that the prompt layers get."""

from holdfast.canonical.view import LayerText, View
from holdfast.engine.state import State


def view_of(state: State, current: tuple[LayerText, ...] = ()) -> View:
    """The conversation as the layers see it."""
    return View(
        tools=state.tools,
        pinned=state.pinned,
        history=state.passages[: state.sent],
        newest=state.passages[state.sent :],
        current=current,
        emitted=state.emitted,
        layout=state.layout,
        head=state.head,
    )


def sent_view(state: State) -> View:
    """The view to send next. The seed layout uses the recorded volatile text: a request depends on the log alone."""
    tail = state.system_tail
    return view_of(state, (tail,) if state.layout == "seed" and tail else ())
