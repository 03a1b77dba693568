"""Times in requests and responses: ISO 8601 with offset, and half-open time windows."""

import datetime
from typing import Annotated

import msgspec

from holdfast.service.failures import RefusedError

DEFAULT_DAYS = 7

Moment = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
"""A time with offset. Decoded as text first, because msgspec would accept a plain number as seconds."""

_Aware = Annotated[datetime.datetime, msgspec.Meta(tz=True)]


class Window(msgspec.Struct, frozen=True):
    """`start` is inclusive, `end` exclusive; both are null for an unlimited window."""

    start: datetime.datetime | None
    end: datetime.datetime | None


class Span(msgspec.Struct, frozen=True):
    start: float
    end: float

    def holds(self, at: float) -> bool:
        return self.start <= at < self.end

    @property
    def told(self) -> Window:
        return Window(moment(self.start), moment(self.end))


def span(start: str | None, end: str | None, *, now: float) -> Span:
    """Parses a window; the default is the last seven days."""
    until = now if end is None else _seconds(end)
    since = until - DEFAULT_DAYS * 86_400 if start is None else _seconds(start)
    if since >= until:
        raise RefusedError(400, "invalid_time_window", "`from` must be earlier than `to`")
    return Span(since, until)


def _seconds(text: str) -> float:
    try:
        return msgspec.convert(text, _Aware, strict=True).astimezone(datetime.UTC).timestamp()
    except (msgspec.ValidationError, OverflowError, ValueError) as error:
        message = "`from` and `to` must be times with an offset, such as 2026-11-01T00:00:00Z"
        raise RefusedError(400, "invalid_time_window", message) from error


def moment(at: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at, datetime.UTC)


def maybe_moment(at: float | None) -> datetime.datetime | None:
    return None if at is None else moment(at)
