"""Adds the cost to the usage of OpenRouter's replies."""

from collections.abc import Iterable, Iterator
from decimal import Decimal

from holdfast.canonical.encoding import plain_json
from holdfast.canonical.usage import Usage
from holdfast.catalog.lookup import price_at, utc_date
from holdfast.economics.cost import cost_usd
from holdfast.providers.members import put_together, take_apart
from holdfast.simulator.dialect import Understood

_EVENT_START = b"data: "
_USAGE = "usage"


def cost_of(usage: Usage, request: Understood) -> Decimal | None:
    """None if the catalog has no price."""
    # OpenRouter reports the price of a reply as `usage.cost`.
    if not request.model.prices:
        return None
    return cost_usd(usage, price_at(request.model, utc_date(request.call.at), usage.tokens_sent))


def with_cost(body: bytes, cost: Decimal) -> bytes:
    members = take_apart(body)
    members[_USAGE] = put_together(take_apart(members[_USAGE]) | {"cost": plain_json(float(cost))})
    return put_together(members)


def stream_with_cost(chunks: Iterable[bytes], cost: Decimal) -> Iterator[bytes]:
    """Adds the cost to the chunk that contains the usage."""
    for chunk in chunks:
        event = chunk.removeprefix(_EVENT_START)
        if event.startswith(b"{") and _USAGE in take_apart(event):
            yield _EVENT_START + with_cost(event, cost) + b"\n\n"
        else:
            yield chunk
