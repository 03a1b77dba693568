"""Builds the gateway of `holdfast serve`: it shares the service's keys and log and has its own upstreams."""

import gc
import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path

import msgspec
from starlette.types import ASGIApp

from holdfast.cli.gateway_record import MODULE
from holdfast.errors import UserError
from holdfast.gateway.door import Holder, KeyDoor
from holdfast.gateway.forwarding import Gateway, TurnedAwayError
from holdfast.gateway.grants import Grants, read_grants
from holdfast.gateway.improving import Improver
from holdfast.gateway.keeping import Keeper
from holdfast.gateway.relaying import Relay, Setup
from holdfast.gateway.remembering import recall_spending
from holdfast.gateway.routing import simulated_upstreams, upstreams_of
from holdfast.gateway.volatile import DATES, Rule, Volatile
from holdfast.service.access import holder_of
from holdfast.service.failures import RefusedError
from holdfast.service.service import Service
from holdfast.simulator.provider import SimulatedProvider
from holdfast.testing.serving import served

SWITCH_SECONDS = 0.0002
CUT_ON_PURPOSE = "returned without completing response"
SCOPES = ("gateway", "admin")  # An admin key may use the gateway too.
DROPPED = "holdfast_gateway_dropped_total"


class Wishes(msgspec.Struct, frozen=True):
    """The gateway's command line options."""

    simulate: bool = False
    grants: str | None = None
    improve: bool = False
    volatile: tuple[str, ...] = ()
    keep_alive_usd: float | None = None
    drain: bool = False
    db: str | None = None


@contextmanager
def open_gateway(service: Service, upstreams: Sequence[str], wishes: Wishes) -> Iterator[Callable[[ASGIApp], ASGIApp]]:
    """Yield a function that wraps an application in the gateway. Raises UserError for invalid options."""
    configured = dict(_pair(option, "--upstream") for option in upstreams)
    if wishes.simulate and configured:
        raise UserError("--simulate replaces the upstreams of all providers; leave out --upstream")
    rows = read_grants(Path(wishes.grants)) if wishes.grants else {}
    # A background thread passes records to the recorder process. With Python's default switch interval of 5 ms it
    # could delay the event loop, which forwards the bytes, by that much at a time.
    sys.setswitchinterval(SWITCH_SECONDS)
    # When an upstream cuts a reply, the gateway cuts it too; uvicorn would log an error each time.
    logging.getLogger("uvicorn.error").addFilter(lambda record: CUT_ON_PURPOSE not in record.getMessage())
    with ExitStack() as stack:
        if wishes.simulate:
            url = stack.enter_context(served(SimulatedProvider(models=service.models)))
            reached = simulated_upstreams(url)
        else:
            reached = upstreams_of(configured, os.environ)
        granted = Grants(rows, os.environ)
        recall_spending(granted, service.log, service.clock())
        rules = (DATES, *(Rule(*_pair(option, "--volatile")) for option in wishes.volatile))
        improver = Improver(service.models, Volatile(rules))
        setup = Setup(wishes.db, wishes.simulate, tuple((rule.name, rule.pattern) for rule in rules))
        relay = Relay((MODULE,), setup, spent=granted.spent)
        stack.callback(relay.close)
        service.counted.also(DROPPED, "Records of forwarded calls that were dropped.", lambda: relay.dropped)
        door = KeyDoor(
            judging(service), granted, clock=service.clock, salt=secrets.token_bytes(32), improve=wishes.improve
        )
        keeper = None
        if wishes.keep_alive_usd is not None:
            usd_per_day_max = Decimal(str(wishes.keep_alive_usd))
            keeper = Keeper(clock=service.clock, usd_a_day_max=usd_per_day_max, pinged=relay.pinged)

        def fronted(app: ASGIApp) -> ASGIApp:
            return Gateway(
                app,
                reached,
                door=door,
                watcher=relay,
                clock=service.clock,
                improver=improver,
                keeper=keeper,
                drain=wishes.drain,
            )

        # Everything loaded so far lives as long as the process; excluding it makes garbage collection pauses shorter.
        gc.freeze()
        yield fronted


def _pair(text: str, option: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise UserError(f"{option} {text[:80]!a} is not NAME=VALUE")
    return name, value


def judging(service: Service) -> Callable[[str | None], Holder | None]:
    """A function that checks a gateway key by the service's own rules."""

    def judge(key: str | None) -> Holder | None:
        if key is None:
            # As in the HTTP API: no key is needed until the first one has been created.
            if service.require_keys or service.records.has_keys():
                raise TurnedAwayError(401, "this gateway needs its own key in the header x-holdfast-key")
            return None
        try:
            row = holder_of(f"Bearer {key}", service.records.key, service.clock())
        except RefusedError as refused:
            raise TurnedAwayError(401, "unknown or no longer valid gateway key") from refused
        if row is None or row.scope not in SCOPES:
            raise TurnedAwayError(403, "the gateway needs a key of scope gateway")
        return Holder(row.id, row.name, row.user_id, row.team_id)

    return judge
