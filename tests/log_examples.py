"""Short logs, and short ways to make them."""

from holdfast.canonical.blocks import user
from holdfast.events.envelope import Event
from holdfast.events.payloads import AnyPayload, MessageAppended, SessionStarted


def said(number: int, session: str = "s", text: str | None = None) -> Event:
    """The event that puts a message on the log; its id and time follow from the number."""
    payload = MessageAppended(user(f"message {number}" if text is None else text))
    return event(f"{session}-{number:06d}", payload, session=session, at=1_800_000_000.0 + number)


def talk(count: int, session: str = "s", *, start: int = 0) -> list[Event]:
    return [said(number, session) for number in range(start, start + count)]


def opened(session: str = "s", *, name: str | None = None, model: str = "anthropic:m", at: float = 0.0) -> Event:
    return event(f"{session}-opened", SessionStarted(model=model, name=name), session=session, at=at)


def event(event_id: str, payload: AnyPayload, *, session: str = "s", at: float = 0.0) -> Event:
    return Event(id=event_id, at=at, session_id=session, actor="user", payload=payload)
