"""What a session's state looks like to the layers."""

from holdfast.canonical.view import LayerText, View
from holdfast.engine.state import State


def view_of(state: State, current: tuple[LayerText, ...] = ()) -> View:
    """The conversation as the layers see it; the log itself is never changed."""
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
    """What is sent next: in the seed layout the recorded text, so that a request is a function of the log alone."""
    tail = state.system_tail
    return view_of(state, (tail,) if state.layout == "seed" and tail else ())
