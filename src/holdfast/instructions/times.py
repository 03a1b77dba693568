"""Format times given in milliseconds."""

import datetime


def told_time(at: int) -> str:
    """ISO 8601 in UTC; milliseconds only if they are not zero."""
    moment = datetime.datetime.fromtimestamp(at / 1000, datetime.UTC)
    return moment.isoformat(timespec="milliseconds" if at % 1000 else "seconds").replace("+00:00", "Z")


def maybe_told_time(at: int | None) -> str | None:
    return None if at is None else told_time(at)
