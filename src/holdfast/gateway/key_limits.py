"""What each gateway key allows: the provider keys it maps to, a daily budget, and a request rate."""

import os
import stat
import tomllib
from collections import deque
from collections.abc import Collection, Mapping
from datetime import date
from pathlib import Path
from threading import Lock

import msgspec

from holdfast.catalog.lookup import utc_date
from holdfast.errors import UserError
from holdfast.gateway.exchange import CallCharge, GatewayRefusedError
from holdfast.gateway.routes import PRESETS

FILE_BYTES_MAX = 1024 * 1024
MINUTE_SECONDS = 60.0
DEFAULT_ROW = "*"


class KeyLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`provider_keys` are by upstream: `env:NAME` or the key itself; if absent, the upstream's variable is used."""

    provider_keys: dict[str, str] = {}
    budget_usd_a_day: float | None = None
    requests_a_minute: int | None = None
    improve: bool = False


class KeyLimitTable:
    """Limits by gateway key id; the row `*` applies to keys without their own. Thread-safe."""

    def __init__(
        self, rows: Mapping[str, KeyLimits], environ: Mapping[str, str], key_variables: Mapping[str, str] | None = None
    ) -> None:
        """`key_variables` are the upstreams' usual environment variables; without them, those of the presets."""
        self._rows = rows
        self._key_variables = key_variables or {name: preset.key_variable for name, preset in PRESETS.items()}
        self._environ = environ
        self._lock = Lock()
        self._spent: dict[tuple[str, date], float] = {}
        self._request_times: dict[str, deque[float]] = {}

    def get_limits(self, key_id: str) -> KeyLimits:
        return self._rows.get(key_id) or self._rows.get(DEFAULT_ROW) or KeyLimits()

    def get_provider_key(self, key_id: str, mount: str) -> bytes:
        """Raises GatewayRefusedError if there is none."""
        configured = self.get_limits(key_id).provider_keys.get(mount)
        variable = configured.removeprefix("env:") if configured and configured.startswith("env:") else None
        if configured is None or variable:
            provider_key = self._environ.get(variable or self._key_variables.get(mount, ""))
        else:
            provider_key = configured
        if not provider_key or not (provider_key.isascii() and provider_key.isprintable()):
            raise GatewayRefusedError(403, f"no {mount} key is configured for this gateway key")
        return provider_key.encode("ascii")

    def add_spending(self, charge: CallCharge) -> None:
        day = (charge.key_id, utc_date(charge.at))
        with self._lock:
            self._spent[day] = self._spent.get(day, 0.0) + charge.dollars

    @property
    def has_budgets(self) -> bool:
        return any(row.budget_usd_a_day is not None for row in self._rows.values())

    def get_spent_today(self, key_id: str, now: float) -> float:
        with self._lock:
            return self._spent.get((key_id, utc_date(now)), 0.0)

    def check_request(self, key_id: str, now: float, *, is_call: bool = True) -> None:
        """Counts a call. Raises GatewayRefusedError if the key's budget is spent or its request rate is exceeded."""
        row = self.get_limits(key_id)
        if row.budget_usd_a_day is not None and self.get_spent_today(key_id, now) >= row.budget_usd_a_day:
            # Budgets reset at midnight UTC.
            wait = int(86_400 - now % 86_400) + 1
            raise GatewayRefusedError(429, "this key's budget for today is spent", retry_after_seconds=wait)
        if row.requests_a_minute is None or not is_call:
            return
        with self._lock:
            times = self._request_times.setdefault(key_id, deque())
            while times and now - times[0] >= MINUTE_SECONDS:
                times.popleft()
            if len(times) >= row.requests_a_minute:
                wait = int(MINUTE_SECONDS - (now - times[0])) + 1 if times else int(MINUTE_SECONDS)
                raise GatewayRefusedError(429, "this key exceeds its requests per minute", retry_after_seconds=wait)
            times.append(now)


def read_key_limits(path: Path, upstreams: Collection[str] = tuple(PRESETS)) -> dict[str, KeyLimits]:
    """Raises UserError for a file that other users can read, and for one that is not a valid table of keys."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise UserError(f"{str(path)!r} can be read by other users; run `chmod 600` on it")
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise UserError(f"{str(path)!r} has more than {FILE_BYTES_MAX} bytes")
        table = tomllib.loads(raw.decode()).get("keys", {})
        rows = msgspec.convert(table, dict[str, dict[str, object]])
        return msgspec.convert({id: _collect_keys(row, upstreams) for id, row in rows.items()}, dict[str, KeyLimits])
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise UserError(f"{str(path)!r} is not valid TOML") from None
    except msgspec.ValidationError as error:
        # msgspec's message names fields and types, never a value, so no key leaks.
        raise UserError(
            f"{str(path)!r} has an invalid table of keys: {error}; upstreams are {', '.join(upstreams)}"
        ) from None


def _collect_keys(row: Mapping[str, object], upstreams: Collection[str]) -> dict[str, object]:
    keys = {name: value for name, value in row.items() if name in upstreams}
    return {name: value for name, value in row.items() if name not in keys} | {"provider_keys": keys}
