"""How the gateway is put in front of the service: the same keys, the same log, upstreams of its own."""

import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from starlette.types import ASGIApp

from holdfast.errors import UserError
from holdfast.gateway.door import Holder, KeyDoor
from holdfast.gateway.forwarding import Gateway, TurnedAwayError
from holdfast.gateway.grants import Grants, read_grants
from holdfast.gateway.improving import Improver
from holdfast.gateway.observing import Observer
from holdfast.gateway.routing import simulated_upstreams, upstreams_of
from holdfast.gateway.volatile import DATES, Rule, Volatile
from holdfast.service.access import holder_of
from holdfast.service.failures import RefusedError
from holdfast.service.service import Service
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.serving import served

SWITCH_SECONDS = 0.0002
SCOPES = ("gateway", "admin")
DROPPED = "holdfast_gateway_dropped_total"


@contextmanager
def open_gateway(
    service: Service,
    upstreams: Sequence[str],
    *,
    simulate: bool = False,
    grants: str | None = None,
    improve: bool = False,
    volatile: Sequence[str] = (),
) -> Iterator[Callable[[ASGIApp], ASGIApp]]:
    """What puts a gateway in front of an application. Raises UserError for what cannot be understood."""
    told = dict(_pair(one, "--upstream") for one in upstreams)
    if simulate and told:
        raise UserError("--simulate is an upstream for all providers; leave out --upstream")
    rows = read_grants(Path(grants)) if grants else {}
    # What is recorded is worked on in a thread; it must not keep the loop waiting for its turn while bytes lie there.
    sys.setswitchinterval(SWITCH_SECONDS)
    with ExitStack() as stack:
        if simulate:
            url = stack.enter_context(served(SimulatedProvider(models=service.models)))
            reached = simulated_upstreams(url)
        else:
            reached = upstreams_of(told, os.environ)
        granted = Grants(rows, os.environ)
        improver = Improver(service.models, Volatile((DATES, *(Rule(*_pair(one, "--volatile")) for one in volatile))))
        observer = Observer(
            service.log,
            models=service.models,
            new_id=service.new_id,
            simulated=simulate,
            improver=improver,
            spent=granted.spent,
        )
        stack.callback(observer.close)
        service.counted.also(DROPPED, "Notes on forwarded calls that were dropped.", lambda: observer.dropped)
        door = KeyDoor(judging(service), granted, clock=service.clock, salt=secrets.token_bytes(32), improve=improve)
        yield lambda app: Gateway(app, reached, door=door, watcher=observer, clock=service.clock, improver=improver)


def _pair(told: str, option: str) -> tuple[str, str]:
    name, equals, value = told.partition("=")
    if not (name and equals and value):
        raise UserError(f"{option} {told[:80]!a} is not NAME=VALUE")
    return name, value


def judging(service: Service) -> Callable[[str | None], Holder | None]:
    """Keys as the service judges them."""

    def judge(key: str | None) -> Holder | None:
        if key is None:
            if service.require_keys or service.records.has_keys():
                raise TurnedAwayError(401, "this gateway needs a key of its own, in the header x-holdfast-key")
            return None
        try:
            row = holder_of(f"Bearer {key}", service.records.key, service.clock())
        except RefusedError as refused:
            raise TurnedAwayError(401, "this key is not known to the gateway, or no longer valid") from refused
        if row is None or row.scope not in SCOPES:
            raise TurnedAwayError(403, "a key for the gateway has the scope gateway")
        return Holder(row.id, row.name)

    return judge
