"""What each gateway key allows: the provider keys it maps to, its models, budgets by day and month."""

import asyncio
import functools
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from holdfast.catalog.lookup import Models, find_model_or_none, price_at, utc_date
from holdfast.clock import Clock, new_ulid
from holdfast.errors import ProviderError, StoreError, UserError
from holdfast.events.records import BUDGET_USD_MAX, BudgetCharge, BudgetDay, BudgetStore
from holdfast.gateway.exchange import BUFFERED_BYTES_MAX, UNPRICED_USD_PER_MTOK, CallCharge, GatewayRefusedError
from holdfast.gateway.http.content_encoding import decompress_body
from holdfast.gateway.http.headers import Headers
from holdfast.gateway.routes import PRESETS, Target, normalize_path
from holdfast.ledger.money import to_picodollars
from holdfast.providers.json_splice import decode_or_none
from holdfast.sources.files import parse_toml
from holdfast.types.usage import TOKENS_MAX

logger = logging.getLogger(__name__)
T = TypeVar("T")

FILE_BYTES_MAX = 1024 * 1024
DEFAULT_ROW = "*"

RESERVATION_SECONDS_MAX = 3_600.0
"""After this time a reservation counts as spent: its gateway has ended, or a call takes longer than any does."""

SETTLED_SECONDS_MAX = 2 * 86_400.0
"""How long it is known which calls were settled."""

SWEEP_SECONDS = 60.0
STORE_SECONDS_MAX = 5.0
STORE_THREADS_MAX = 4
BUSY_SECONDS = 2

PROMPT_BYTES_PER_TOKEN = 3
"""A prompt has about 4 bytes per token, code and Chinese down to 3: a reservation must not be too small."""

OUTPUT_TOKENS_UNKNOWN = 4_096
CONTEXT_TOKENS_UNKNOWN = 200_000
"""Of a model that the catalog does not know: what most models take."""

CACHE_SECONDS_DEFAULT, CACHE_SECONDS_MAX = 3_600.0, 10 * 366 * 86_400.0
"""Of an explicit cache: Gemini's default; its documentation has no maximum."""

CHOICES_MAX = 128
MODEL_CHARS_MAX = 200
_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens", "maxTokens")
_CHOICES = ("n", "best_of", "candidateCount", "candidate_count")
_NESTED_SETTINGS = ("generationConfig", "generation_config", "inferenceConfig")
"""Of Gemini, which takes names in both forms, and of Bedrock's Converse."""

_PROMPT_REFERENCES = ("previous_response_id", "conversation", "cachedContent", "cached_content")
"""Members that stand for a prompt which the request does not repeat."""

_FILE_REFERENCE = re.compile(
    rb'"(?:file_id|file_url|fileUri|file_uri)"\s*:\s*"|"type"\s*:\s*"url"|"s3Location"\s*:\s*\{\s*"(?:uri|bucketOwner)"\s*:\s*"'
)
"""A file that the provider adds to the prompt: uploaded, or anywhere on the web. A parameter of a tool with such a name
is an object, and a quotation in a text has escaped quotes."""

_REMOTE_IMAGE = re.compile(rb'"(?:image_url|url)"\s*:\s*"https?:')
IMAGE_TOKENS = 5_000
"""For an image of unknown size: providers scale large ones down to a few thousand tokens."""

_CACHE_ENDS = ("ttl", "expireTime", "expire_time")
_READ_MEMBERS = ("model", "models", *_OUTPUT_LIMITS, *_CHOICES, *_NESTED_SETTINGS, *_PROMPT_REFERENCES, *_CACHE_ENDS)
_Members = msgspec.defstruct("_Members", [(name, msgspec.Raw, msgspec.Raw(b"")) for name in _READ_MEMBERS], frozen=True)
_decode_members = msgspec.json.Decoder(_Members).decode
_decode_name = msgspec.json.Decoder(str).decode
_decode_names = msgspec.json.Decoder(list[str]).decode
_decode_time = msgspec.json.Decoder(datetime).decode
_decode_number = msgspec.json.Decoder(float | str).decode

_NO_OUTPUT = re.compile(r"/(?:embeddings|moderations|rerank|batches|cachedContents)$|:(?:embed|batchEmbed)Contents?$")
_FREE_ENDPOINT = re.compile(r"/count_tokens$|/input_tokens$|:countTokens$")
_GOOGLE_MODEL = re.compile(r"/models/([^/:]+):")


class KeyLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`provider_keys` are by upstream: `env:NAME` or the key itself; if absent, the upstream's variable is used.

    `paths` are the paths beside inference that the provider keys may be used for, such as `/v1/files/*`; `models` are
    patterns such as `claude-*`, and all models if there are none.
    """

    provider_keys: dict[str, str] = {}
    budget_usd_a_day: float | None = None
    requests_a_minute: int | None = None
    improve: bool = False
    paths: tuple[str, ...] = ()
    budget_usd_a_month: float | None = None
    models: tuple[str, ...] = ()

    @property
    def needs_check(self) -> bool:
        """Whether a call must be checked before it is forwarded: for its cost or its model."""
        return self.budget_usd_a_day is not None or self.budget_usd_a_month is not None or bool(self.models)


STORED_LIMITS = ("budget_usd_a_day", "requests_a_minute", "budget_usd_a_month", "models")


class KeyLimitTable:
    """Limits by gateway key id; the row `*` applies to keys without their own."""

    def __init__(
        self,
        rows: Mapping[str, KeyLimits],
        environ: Mapping[str, str],
        key_variables: Mapping[str, str] | None = None,
        *,
        when_unavailable: Literal["deny", "allow"] = "deny",
    ) -> None:
        """`key_variables` are the upstreams' usual environment variables; without them, those of the presets.

        `when_unavailable` is what happens to calls of keys with a budget while the store cannot be reached.
        """
        self.when_unavailable = when_unavailable
        self._rows = rows
        self._stored: dict[str, KeyLimits] = {}
        self._key_variables = key_variables or {name: preset.key_variable for name, preset in PRESETS.items()}
        self._environ = environ

    def get_limits(self, key_id: str) -> KeyLimits:
        """Those of the file; a limit that is stored with the key replaces the file's."""
        row = self._rows.get(key_id) or self._rows.get(DEFAULT_ROW) or KeyLimits()
        stored = self._stored.get(key_id)
        if stored is None:
            return row
        values = {name: getattr(stored, name) for name in STORED_LIMITS}
        return msgspec.structs.replace(
            row, **{name: value for name, value in values.items() if value not in (None, ())}
        )

    def set_stored_limits(self, key_id: str, stored: KeyLimits) -> None:
        """Replaces what is known of the limits that are stored with a key; called whenever the key is looked up."""
        if stored == KeyLimits():
            self._stored.pop(key_id, None)
        else:
            self._stored[key_id] = stored

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

    def check_path(self, key_id: str, target: Target, *, method: str = "POST") -> None:
        """Raises GatewayRefusedError if the provider's key is not for this path: it may be an account's own, with
        keys, users and files behind it."""
        path = normalize_path(target.path) or ""
        # Extends the life of an explicit cache: what that costs depends on its end before.
        is_extension = method in ("PATCH", "PUT") and self.get_budgets(key_id) != (None, None)
        is_allowed = target.is_inference_by(method) and not is_extension
        if not is_allowed and not any(fnmatchcase(path, row) for row in self.get_limits(key_id).paths):
            message = (
                f"this gateway key is for inference only; to allow {method} {target.endpoint}, add the path to `paths` "
                "of its grant"
            )
            raise GatewayRefusedError(403, message)

    def check_model(self, key_id: str, target: Target, request: "RequestSize") -> None:
        """Raises GatewayRefusedError if the key is not for the model of this call, or if that cannot be read."""
        patterns = self.get_limits(key_id).models
        if not patterns or not target.is_inference:
            return
        members = read_members(request.body)
        for name in (find_model_name(target, members), *_find_fallback_models(members)):
            names = (name, target.model_names.get(name, name))
            if not name or not any(fnmatchcase(model, pattern) for model in names for pattern in patterns):
                model = f"model {name[:MODEL_CHARS_MAX]!a}" if name else "a request whose model cannot be read"
                raise GatewayRefusedError(403, f"this key is not for {model}; its models are {', '.join(patterns)}")

    @property
    def has_budgets(self) -> bool:
        return any(row.needs_check for row in (*self._rows.values(), *self._stored.values()))

    def get_budgets(self, key_id: str) -> tuple[int | None, int | None]:
        """The budgets of a day and of a month in picodollars; None where there is none."""
        limits = self.get_limits(key_id)
        day, month = limits.budget_usd_a_day, limits.budget_usd_a_month
        return None if day is None else round(day * 10**12), None if month is None else round(month * 10**12)


class RequestSize(msgspec.Struct, frozen=True):
    """What of a request its cost is estimated from: its size, and its JSON if it was read and is not compressed."""

    size_bytes: int
    body: bytes = b""


class KeyBudgets:
    """Admits calls of keys with a daily budget: reserves what one may cost, and settles what it did cost.

    The store decides, in one transaction, so that concurrent calls, processes and replicas share one budget. A call
    that nobody settles counts as spent after RESERVATION_SECONDS_MAX.
    """

    def __init__(
        self,
        limits: KeyLimitTable,
        store: BudgetStore,
        models: Models,
        *,
        clock: Clock,
        unpriced_usd_per_mtok: float = UNPRICED_USD_PER_MTOK,
    ) -> None:
        self._limits, self._store, self._models = limits, store, models
        self._clock = clock
        self._unpriced_usd_per_mtok = unpriced_usd_per_mtok
        self._swept_at = 0.0
        # Its own threads: a store that hangs must not keep others from looking up keys.
        self._threads = ThreadPoolExecutor(STORE_THREADS_MAX, thread_name_prefix="holdfast-budgets")

    async def check(self, key_id: str) -> None:
        """For what costs nothing by itself. Raises GatewayRefusedError if the budget of the key is spent."""
        if self._limits.get_budgets(key_id) == (None, None):
            return
        now = self._clock()
        refused = await self._ask_store(functools.partial(self._find_spent_budget, key_id, now))
        if refused is not None:
            raise refused

    def check_model(self, key_id: str, target: Target, request: RequestSize) -> None:
        """Raises GatewayRefusedError if the key is not for the model of this call, or if that cannot be read."""
        self._limits.check_model(key_id, target, request)

    def _find_spent_budget(self, key_id: str, now: float) -> GatewayRefusedError | None:
        limit, state = self._find_limit(key_id, now), self._store.get_budget_day(key_id, _day_of(now))
        is_spent = state.spent >= limit.today + limit.earlier.reserved
        return _refuse_call(limit, state, 0, now) if is_spent else None

    def _find_limit(self, key_id: str, now: float) -> "_TodaysLimit":
        """What may be spent today: the day's budget, or what the earlier days of the month left of the month's."""
        day, month = self._limits.get_budgets(key_id)
        today = _day_of(now)
        if month is None:
            return _TodaysLimit(day or 0)
        earlier = self._store.sum_budget_days(key_id, f"{today[:8]}01", today)
        rest = month - earlier.spent - earlier.reserved
        if day is not None and day <= rest:
            return _TodaysLimit(day)
        return _TodaysLimit(max(rest, 0), month=month, earlier=earlier)

    async def reserve(self, exchange_id: str, key_id: str, target: Target, request: RequestSize) -> bool:
        """Whether there is a reservation now. Raises GatewayRefusedError if the budget has no room for the call."""
        self._limits.check_model(key_id, target, request)
        now = self._clock()
        estimate = functools.partial(estimate_call_usd, target, request, self._models, at=now)
        return await self._reserve(
            exchange_id, key_id, functools.partial(estimate, unpriced=self._unpriced_usd_per_mtok), now
        )

    async def reserve_ping(self, ping_id: str, key_id: str, cost_usd: Decimal) -> None:
        """Raises GatewayRefusedError if the budget has no room for a ping, whose cost is known."""
        await self._reserve(ping_id, key_id, lambda usual_output_tokens: float(cost_usd), self._clock())

    async def _reserve(self, id: str, key_id: str, estimate: Callable[..., float], now: float) -> bool:
        if self._limits.get_budgets(key_id) == (None, None):
            return False
        attempt = functools.partial(self._try_reserve, id, key_id, estimate, now=now)
        refused = await self._ask_store(attempt, undo=functools.partial(self.release, id, key_id, now))
        if isinstance(refused, GatewayRefusedError):
            raise refused
        return refused is True

    def make_exchange_id(self) -> str:
        """For a call that is reserved before its exchange exists."""
        return new_ulid(self._clock())

    def release(self, exchange_id: str, key_id: str, at: float) -> None:
        """Frees the reservation of a call that was not made. Returns at once."""
        self._threads.submit(self._settle_quietly, CallCharge(exchange_id, key_id, at, 0.0))

    def settle(self, charge: CallCharge) -> None:
        """Counts what a call cost, once. May block on the store; raises StoreError."""
        settle_charge(self._store, charge)

    def seed(self, spending: Mapping[str, float]) -> None:
        """Sets today's spending in dollars of keys that the store has no budget row of, such as before an upgrade."""
        for key_id, dollars in spending.items():
            if self._limits.get_budgets(key_id) != (None, None):
                self._store.seed_budget(key_id, _day_of(self._clock()), _to_picodollars(dollars))

    def close(self) -> None:
        self._threads.shutdown(wait=True)

    def _try_reserve(
        self, exchange_id: str, key_id: str, estimate: Callable[..., float], *, now: float
    ) -> GatewayRefusedError | Literal[True]:
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            self._store.expire_reservations(now - RESERVATION_SECONDS_MAX)
            self._store.delete_settled(now - SETTLED_SECONDS_MAX)
        limit, state = self._find_limit(key_id, now), self._store.get_budget_day(key_id, _day_of(now))
        dollars = estimate(usual_output_tokens=state.usual_output_tokens)
        charge = BudgetCharge(exchange_id, key_id, _day_of(now), _to_picodollars(dollars), now)
        if self._store.reserve_budget(charge, limit=limit.today, usual_output_tokens=state.usual_output_tokens):
            return True
        return _refuse_call(limit, self._store.get_budget_day(key_id, _day_of(now)), charge.amount, now)

    def _settle_quietly(self, charge: CallCharge) -> None:
        try:
            self.settle(charge)
        except StoreError as error:
            logger.warning("a reservation was not released, and counts as spent in an hour: %s", error)

    async def _ask_store(self, question: Callable[[], T], *, undo: Callable[[], None] | None = None) -> T | None:
        """The answer; None if the store cannot give one and calls are allowed then."""
        asked = asyncio.get_running_loop().run_in_executor(self._threads, question)
        try:
            async with asyncio.timeout(STORE_SECONDS_MAX):
                return await asyncio.shield(asked)
        except (StoreError, TimeoutError) as error:
            logger.warning("a budget could not be checked: %s", str(error) or "the store does not answer")
            is_allowed = self._limits.when_unavailable == "allow"
            # It may still succeed after we gave up. What it reserves for a call that is made is settled as usual.
            if isinstance(error, TimeoutError):
                undo_late = undo if undo is not None and not is_allowed else lambda: None
                asked.add_done_callback(lambda done: None if done.cancelled() or done.exception() else undo_late())
            if is_allowed:
                return None
            message = "the budget of this key cannot be checked, because the gateway cannot reach its store"
            raise GatewayRefusedError(503, message, retry_after_seconds=5) from None


def settle_charge(store: BudgetStore, charge: CallCharge) -> None:
    amount = BudgetCharge(charge.id, charge.key_id, _day_of(charge.at), _to_picodollars(charge.dollars), charge.at)
    store.settle_budget(amount, output_tokens=charge.output_tokens)


class _TodaysLimit(msgspec.Struct, frozen=True):
    """What may be spent today in picodollars; with `month` if that is the rest of the month's budget.

    `earlier` is that of the days before: a call that began before midnight may still be in progress.
    """

    today: int
    month: int | None = None
    earlier: BudgetDay = BudgetDay()


def _refuse_call(limit: _TodaysLimit, state: BudgetDay, needed: int, now: float) -> GatewayRefusedError:
    period = "today" if limit.month is None else "this month"
    spent, total = _format_usd(limit.earlier.spent + state.spent), _format_usd(limit.month or limit.today)
    reserved = limit.earlier.reserved + state.reserved
    if state.spent < limit.today + limit.earlier.reserved:
        message = (
            f"this key's budget for {period} has no room for this call beside those in progress: limit {total}, spent "
            f"{spent}, reserved {_format_usd(reserved)}, this call up to {_format_usd(needed)}; retry in a moment"
        )
        return GatewayRefusedError(429, message, retry_after_seconds=BUSY_SECONDS)
    reset = find_budget_reset(now, monthly=limit.month is not None)
    at = datetime.fromtimestamp(reset, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    message = f"this key's budget for {period} is spent: limit {total}, spent {spent}; it resets at {at}"
    return GatewayRefusedError(429, message, retry_after_seconds=int(reset - now) + 1)


def find_budget_reset(now: float, *, monthly: bool = False) -> int:
    """When a budget begins again: at the next midnight UTC, or at that of the first day of the next month."""
    date = utc_date(now)
    if not monthly:
        return (int(now) // 86_400 + 1) * 86_400
    # The 28th plus 4 days is always in the next month.
    first = (date.replace(day=28) + timedelta(days=4)).replace(day=1)
    return int(datetime(first.year, first.month, 1, tzinfo=UTC).timestamp())


def find_model_name(target: Target, members: Mapping[str, bytes]) -> str:
    """The model that a request names in its path or body; empty if it names none.

    Where the path has one, providers ignore what the body says.
    """
    if target.adapter_name in (None, "gemini") and (in_path := _GOOGLE_MODEL.search(normalize_path(target.path) or "")):
        return in_path[1]
    named = target.path_fields.get("model") or decode_or_none(_decode_name, members.get("model"))
    if target.has_caches and isinstance(named, str):
        # `models/NAME`, or behind the project and place of Vertex.
        named = named.rpartition("models/")[2]
    return named if isinstance(named, str) else ""


def _find_fallback_models(members: Mapping[str, bytes]) -> list[str]:
    """Those that OpenRouter asks if the model cannot answer; an empty name if they cannot be read."""
    if members.get("models", b"null") == b"null":
        return []
    models = decode_or_none(_decode_names, members["models"])
    return [""] if models is None else models


def read_members(body: bytes) -> dict[str, bytes]:
    """Those members of a request that its cost and its model are read from; none if it cannot be read.

    Only those: to decode a body of 32 MiB full of others takes seconds, in which no other call gets on.
    """
    members = decode_or_none(_decode_members, body)
    values = msgspec.structs.asdict(members) if members is not None else {}
    return {name: bytes(value) for name, value in values.items() if len(value)}


def measure_request(body: bytes | None, headers: Headers) -> RequestSize:
    """None is a body that was too large to read."""
    if body is None:
        return RequestSize(BUFFERED_BYTES_MAX)
    encoding = b",".join(value for name, value in headers if name == b"content-encoding")
    try:
        plain = decompress_body(body, encoding.decode("latin-1"))
    except ProviderError:
        plain = b""
    if plain is not body and decode_or_none(_decode_members, plain) is None:
        # Of what is compressed in a way that we cannot read, or only in part, a few bytes can stand for many.
        return RequestSize(BUFFERED_BYTES_MAX)
    return RequestSize(len(plain), plain)


def estimate_call_usd(
    target: Target,
    request: RequestSize,
    models: Models,
    *,
    at: float,
    usual_output_tokens: int,
    unpriced: float = UNPRICED_USD_PER_MTOK,
) -> float:
    """What a call may cost, rather too much than too little: its prompt is written to the cache, none of it is read.

    Its output is what calls of its key usually return; if that is not known, what the request allows.
    """
    if _FREE_ENDPOINT.search(target.endpoint):
        return 0.0
    members = read_members(request.body)
    name = find_model_name(target, members)
    row = find_model_or_none(f"{target.provider}:{target.model_names.get(name, name)}"[:MODEL_CHARS_MAX], models)
    allowed = _find_largest(members, _OUTPUT_LIMITS) * _find_choices(members)
    output = min(usual_output_tokens or allowed or OUTPUT_TOKENS_UNKNOWN, allowed or TOKENS_MAX)
    output = 0 if _NO_OUTPUT.search(target.endpoint) else output
    prompt = request.size_bytes // PROMPT_BYTES_PER_TOKEN + 1
    prompt += IMAGE_TOKENS * sum(1 for _ in _REMOTE_IMAGE.finditer(request.body))
    stored_hours = find_cache_seconds(members, at) / 3_600 if target.has_caches else 0.0
    refers = any(members.get(name, b"null") != b"null" for name in _PROMPT_REFERENCES)
    refers = refers or _FILE_REFERENCE.search(request.body) is not None
    if row is None or not row.prices:
        prompt = max(prompt, CONTEXT_TOKENS_UNKNOWN) if refers else prompt
        return (prompt * (1 + stored_hours) + output) * unpriced / 1_000_000
    prompt = row.context_tokens_max if refers else min(prompt, row.context_tokens_max)
    output = min(output, row.output_tokens_max * CHOICES_MAX)
    price = price_at(row, utc_date(at), prompt)
    rates = [price.input, price.cache_write_5m, price.cache_write_other]
    # The price of an hour is double that of input: assumed only where the request asks for it.
    rate = max(*rates, price.cache_write_1h) if b'"1h"' in request.body else max(rates)
    storage = (float(price.storage_per_hour) or unpriced) * stored_hours
    return (float(prompt * rate + output * price.output) + prompt * storage) / 1_000_000


def find_cache_seconds(members: Mapping[str, bytes], at: float) -> float:
    """How long an explicit cache is stored that a request asks for, or whose description this is."""
    ttl = decode_or_none(_decode_name, members.get("ttl")) or ""
    ends = [decode_or_none(_decode_time, members.get(name)) for name in _CACHE_ENDS[1:]]
    seconds = [end.timestamp() - at for end in ends if end is not None]
    with suppress(ValueError):
        seconds.append(float(ttl.removesuffix("s")))
    stored = max(seconds, default=CACHE_SECONDS_DEFAULT)
    return min(max(stored, 0.0), CACHE_SECONDS_MAX) if stored == stored else CACHE_SECONDS_MAX


def _find_largest(members: Mapping[str, bytes], names: Collection[str]) -> int:
    """The largest number that the request has under one of the names; 0 if there is none.

    The largest, because a provider ignores the names that it does not know.
    """
    settings = [read_members(members.get(table, b"")) for table in _NESTED_SETTINGS]
    return max(_read_count(table.get(name)) for table in (members, *settings) for name in names)


def _read_count(raw: bytes | None) -> int:
    """A positive number of tokens or choices; 0 for anything else. Some providers take a text or a fraction of zero."""
    try:
        number = float(decode_or_none(_decode_number, raw) or 0)
    except ValueError:
        return 0
    # Realtime's clients write "inf" for no limit.
    return int(min(number, TOKENS_MAX)) if 0 < number < float("inf") else 0


def _find_choices(members: Mapping[str, bytes]) -> int:
    """How many replies are asked for."""
    return min(max(_find_largest(members, _CHOICES), 1), CHOICES_MAX)


def _to_picodollars(dollars: float) -> int:
    return to_picodollars(Decimal(repr(dollars)))


def _format_usd(amount: int) -> str:
    return f"${amount / 10**12:.4f}"


def _day_of(at: float) -> str:
    return utc_date(at).isoformat()


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
        table = parse_toml(raw.decode()).get("keys", {})
        rows = msgspec.convert(table, dict[str, dict[str, object]])
        grants = msgspec.convert({id: _collect_keys(row, upstreams) for id, row in rows.items()}, dict[str, KeyLimits])
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except msgspec.ValidationError as error:
        # msgspec's message names fields and types, never a value, so no key leaks.
        raise UserError(
            f"{str(path)!r} has an invalid table of keys: {error}; upstreams are {', '.join(upstreams)}"
        ) from None
    except ValueError:
        raise UserError(f"{str(path)!r} is not valid TOML") from None
    for id, limits in grants.items():
        # TOML has nan and inf, with which no budget can be checked.
        budgets = (limits.budget_usd_a_day, limits.budget_usd_a_month)
        if not all(budget is None or 0 <= budget <= BUDGET_USD_MAX for budget in budgets):
            raise UserError(
                f"{str(path)!r}: a budget of keys.{id[:40]} is not between 0 and {BUDGET_USD_MAX:,} dollars"
            )
    return grants


def _collect_keys(row: Mapping[str, object], upstreams: Collection[str]) -> dict[str, object]:
    keys = {name: value for name, value in row.items() if name in upstreams}
    return {name: value for name, value in row.items() if name not in keys} | {"provider_keys": keys}
