"""The `simulated_provider` of a test: the simulator on a local port, its script, clock, calls and their cost."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from threading import Lock

import msgspec

from holdfast.catalog.lookup import Models, find_model, price_at, shipped_models, utc_date
from holdfast.catalog.schema import Price
from holdfast.economics.cost import cost_usd, uncached_cost_usd
from holdfast.errors import UserError
from holdfast.providers.registry import PROVIDERS, get_provider
from holdfast.simulator.exchange import RecordedRequest, RequestRing, SimulatedResponse
from holdfast.simulator.provider import SimulatedProvider
from holdfast.simulator.provider_api import EMPTY
from holdfast.simulator.script import Script, parse_script
from holdfast.testing.server_thread import serve_provider
from holdfast.types.blocks import Block
from holdfast.types.json_encoding import encode_json
from holdfast.types.usage import Usage


class ModelCall(msgspec.Struct, frozen=True):
    """A request that a model answered; `model` is `provider:name`. Costs are 0 if no price is known."""

    number: int
    at: float
    model: str
    body: bytes
    reply: tuple[Block, ...]
    usage: Usage
    cost_usd: Decimal = Decimal(0)
    uncached_cost_usd: Decimal = Decimal(0)


class Spending(msgspec.Struct, frozen=True):
    calls: int = 0
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    uncached_cost_usd: Decimal = Decimal(0)

    @property
    def read_share(self) -> float:
        """The share of all prompt tokens that was read from the cache."""
        return self.usage.read_share

    @property
    def saved_usd(self) -> Decimal:
        """Compared with the same calls without a cache; negative if cache writes cost more than reads saved."""
        return self.uncached_cost_usd - self.cost_usd

    def __add__(self, other: "Spending") -> "Spending":
        costs = self.cost_usd + other.cost_usd, self.uncached_cost_usd + other.uncached_cost_usd
        return Spending(self.calls + other.calls, self.usage + other.usage, *costs)


def sum_spending(calls: Iterable[ModelCall]) -> Spending:
    each = (Spending(1, call.usage, call.cost_usd, call.uncached_cost_usd) for call in calls)
    return sum(each, Spending())


def collect_model_calls(requests: Iterable[RecordedRequest], models: Models) -> tuple[ModelCall, ...]:
    """The requests with a reply; token counts, model lists and refused requests are no model calls."""
    calls: list[ModelCall] = []
    for request in requests:
        if request.reply is None:
            continue
        usage = request.reply.usage
        call = ModelCall(len(calls) + 1, request.at, request.model, request.body, request.reply.content, usage)
        if price := find_price(request.model, models, at=request.at, tokens=usage.tokens_sent):
            costs = (cost_usd(usage, price), uncached_cost_usd(usage, price))
            call = msgspec.structs.replace(call, cost_usd=costs[0], uncached_cost_usd=costs[1])
        calls.append(call)
    return tuple(calls)


def find_price(model: str, models: Models, *, at: float, tokens: int) -> Price | None:
    row = find_model(model, models)
    return price_at(row, utc_date(at), tokens) if row.prices else None


# Far above the simulator's defaults: the guard and the report must see every request of a test.
REQUESTS_MAX = 100_000
REQUESTS_BYTES_MAX = 512 * 1024 * 1024
KEY = "simulated"

ScriptLine = str | Sequence[Mapping[str, object]] | Mapping[str, object]
"""A text, the blocks of a reply, or a whole script line with `content`, `stop_reason` and `fault`."""


class ServedProvider(SimulatedProvider):
    """Answers over HTTP at `url`, and as `transport=` of a session; both use the same cache."""

    def __init__(self) -> None:
        super().__init__(requests=RequestRing(requests_max=REQUESTS_MAX, bytes_max=REQUESTS_BYTES_MAX))
        self._answering = Lock()
        self.url = ""

    def base_url(self, provider: str) -> str:
        """The base URL for a client of `anthropic`, `openai`, `gemini` or `openrouter`."""
        return self.url + _path_prefix(provider)

    def script(self, *replies: ScriptLine | Script) -> None:
        """Set the replies from now on, one per turn of each conversation; after the last, messages are echoed."""
        if len(replies) == 1 and isinstance(replies[0], Script):
            self._script = replies[0]
            return
        self._script = parse_script(b"\n".join(_line(reply) for reply in replies))

    @property
    def calls(self) -> tuple[ModelCall, ...]:
        """Every request that a model answered, oldest first."""
        return collect_model_calls(self.requests, self.models)

    @property
    def models(self) -> Models:
        return shipped_models() if self._models is None else self._models

    def handle(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] = EMPTY,
        body: bytes = b"",
        query: Mapping[str, str] = EMPTY,
    ) -> SimulatedResponse:
        # A session in the test calls from the test's thread; HTTP requests arrive on the server's thread.
        with self._answering:
            return super().handle(method, path, headers=headers, body=body, query=query)

    @contextmanager
    def serve_on_port(self) -> Iterator["ServedProvider"]:
        with serve_provider(self) as url:
            self.url = url
            yield self

    def client_environment(self) -> dict[str, str]:
        """The environment variables from which the official clients read a base URL and a key."""
        variables: dict[str, str] = {}
        for provider in PROVIDERS.values():
            if not provider.is_command:
                variables[provider.base_url_variable] = self.base_url(provider.name)
                variables[provider.key_variable] = KEY
        return variables


def _path_prefix(name: str) -> str:
    provider = get_provider(name)
    if provider.is_command:
        raise UserError(f"provider {name!r} is a local command and has no base URL")
    return provider.path_prefix


def _line(reply: ScriptLine | Script) -> bytes:
    if isinstance(reply, Script):
        raise UserError("a Script must be the only argument of script()")
    if isinstance(reply, Mapping):
        return encode_json(dict(reply))
    return encode_json({"content": reply if isinstance(reply, str) else [dict(block) for block in reply]})
