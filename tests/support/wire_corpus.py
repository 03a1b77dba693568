"""The corpus in tests/wire: requests of today's clients and the responses they got."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from conformance.clients import CLIENTS

from holdfast.gateway.routes import RouteTable, make_simulated_upstreams
from holdfast.providers.adapter import Adapter
from holdfast.providers.registry import get_adapter

FILES = sorted((Path(__file__).parents[1] / "wire").glob("*.json"))
_ROUTES = RouteTable(make_simulated_upstreams("http://127.0.0.1:1"))
_MOUNTS = {client.name: client.provider for client in CLIENTS}


class WireExchange(NamedTuple):
    """`path` is the provider's; `gateway_path` the one of the gateway. `stream` has the events of a response."""

    provider: str
    path: str
    gateway_path: str
    headers: dict[str, str]
    request: dict[str, Any]
    response: dict[str, Any] | None
    stream: list[str]

    @property
    def adapter(self) -> Adapter:
        return get_adapter(self.provider)


def load_exchanges(file: Path) -> list[WireExchange]:
    content = json.loads(file.read_text())
    return [_read_exchange(_MOUNTS[content["client"]], exchange) for exchange in content["exchanges"]]


def _read_exchange(mount: str, exchange: dict[str, Any]) -> WireExchange:
    gateway_path = f"/{mount}{exchange['path']}"
    target = _ROUTES.find_target(gateway_path.partition("?")[0])
    assert target.adapter_name is not None, gateway_path
    return WireExchange(
        target.adapter_name,
        exchange["path"],
        gateway_path,
        exchange["headers"],
        exchange["request"],
        exchange.get("response"),
        exchange.get("stream", []),
    )
