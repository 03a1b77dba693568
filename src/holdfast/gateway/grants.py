"""What a key of the gateway grants: the providers' keys it stands for, a budget a day, requests a minute."""

import os
import stat
import tomllib
from collections import deque
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from threading import Lock

import msgspec

from holdfast.catalog.lookup import utc_date
from holdfast.errors import UserError
from holdfast.gateway.forwarding import TurnedAwayError
from holdfast.gateway.routing import MOUNTS, key_variable

FILE_BYTES_MAX = 1024 * 1024
MINUTE_SECONDS = 60.0
ANYONE = "*"


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A provider's key is `env:NAME`, or the key itself; where it is not said, the provider's usual variable."""

    anthropic: str | None = None
    openai: str | None = None
    gemini: str | None = None
    openrouter: str | None = None
    budget_usd_a_day: float | None = None
    requests_a_minute: int | None = None
    improve: bool = False


class Grants:
    """By the id of a key of ours; `*` holds for all that have no row of their own. Safe to use from several threads."""

    def __init__(self, rows: Mapping[str, Grant], environ: Mapping[str, str]) -> None:
        self._rows = rows
        self._environ = environ
        self._lock = Lock()
        self._spent: dict[tuple[str, date], float] = {}
        self._asked: dict[str, deque[float]] = {}

    def row(self, key_id: str) -> Grant:
        return self._rows.get(key_id) or self._rows.get(ANYONE) or Grant()

    def provider_key(self, key_id: str, mount: str) -> bytes:
        """Raises TurnedAwayError where there is none."""
        told: str | None = getattr(self.row(key_id), mount)
        name = told.removeprefix("env:") if told and told.startswith("env:") else None
        found = self._environ.get(name or key_variable(mount)) if told is None or name else told
        if not found or not (found.isascii() and found.isprintable()):
            raise TurnedAwayError(403, f"the gateway has no key of {mount} for this key of its own")
        return found.encode("ascii")

    def spent(self, key_id: str, at: float, dollars: float) -> None:
        day = (key_id, utc_date(at))
        with self._lock:
            self._spent[day] = self._spent.get(day, 0.0) + dollars

    def spent_today(self, key_id: str, now: float) -> float:
        with self._lock:
            return self._spent.get((key_id, utc_date(now)), 0.0)

    def check(self, key_id: str, now: float) -> None:
        """Raises TurnedAwayError where a budget is spent or requests come too fast; else this one counts."""
        row = self.row(key_id)
        if row.budget_usd_a_day is not None and self.spent_today(key_id, now) >= row.budget_usd_a_day:
            wait = int(86_400 - now % 86_400) + 1
            raise TurnedAwayError(429, "the budget of this key for today is spent", retry_after_seconds=wait)
        if row.requests_a_minute is None:
            return
        with self._lock:
            asked = self._asked.setdefault(key_id, deque())
            while asked and now - asked[0] >= MINUTE_SECONDS:
                asked.popleft()
            if len(asked) >= row.requests_a_minute:
                wait = int(MINUTE_SECONDS - (now - asked[0])) + 1 if asked else int(MINUTE_SECONDS)
                raise TurnedAwayError(429, "this key asks too often", retry_after_seconds=wait)
            asked.append(now)


def read_grants(path: Path) -> dict[str, Grant]:
    """Raises UserError for a file that others can read, and for one that is no table of grants."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise UserError(f"{str(path)!r} can be read by others; `chmod 600` makes it yours alone")
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise UserError(f"{str(path)!r} has more than {FILE_BYTES_MAX} bytes")
        table = tomllib.loads(raw.decode()).get("keys", {})
        return msgspec.convert(table, dict[str, Grant])
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise UserError(f"{str(path)!r} is no TOML") from None
    except msgspec.ValidationError as error:
        # It names fields and types, never a value.
        raise UserError(
            f"{str(path)!r} has no good table of keys: {error}; providers are {', '.join(MOUNTS)}"
        ) from None
