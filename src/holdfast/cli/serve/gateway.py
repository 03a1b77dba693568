"""Builds the gateway of `holdfast serve`: it shares the service's keys and log and has its own upstreams."""

import gc
import hashlib
import logging
import os
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path

import click
import msgspec
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.cli.open_store import resolve_store_address
from holdfast.cli.options import OptionValueError, convert_to_option_error, split_pair
from holdfast.cli.serve.recorder_process import RECORDER_MODULE
from holdfast.clock import new_ulid
from holdfast.engine.cache.shared_plans import SharedPlans
from holdfast.engine.leases import ProcessLeases
from holdfast.errors import UserError
from holdfast.events.records import KeyRow
from holdfast.gateway.app import Gateway
from holdfast.gateway.auth import KeyAuthenticator, KeyHolder, RequestRates
from holdfast.gateway.exchange import UNPRICED_USD_PER_MTOK, GatewayRefusedError
from holdfast.gateway.keep_alive import GatewayKeepAlive
from holdfast.gateway.key_limits import KeyBudgets, KeyLimits, KeyLimitTable, read_key_limits
from holdfast.gateway.recording.restore import read_learned, restore_plans, sum_spending_today
from holdfast.gateway.recording.shared_conversations import RecorderLease
from holdfast.gateway.recording.worker_process import RecorderProcess, RecorderSetup
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.explicit_caches import ExplicitCaches
from holdfast.gateway.rewrite.volatile_text import DATE_RULE, VolatileExtractor, VolatileRule
from holdfast.gateway.routes import (
    RouteTable,
    get_raw_path,
    make_simulated_upstreams,
    parse_upstream_option,
    parse_upstream_settings,
    resolve_upstreams,
)
from holdfast.planning.explicit_cache import ExplicitCacheConfig
from holdfast.runtime.config import load_config
from holdfast.service.app import ProviderMount
from holdfast.service.auth.keys import GATEWAY_SCOPES, verify_key
from holdfast.service.context import AppContext
from holdfast.service.http.routes import ApiError
from holdfast.service.route_table import ROUTES
from holdfast.simulator.provider import SimulatedProvider
from holdfast.sources.files import holdfast_home
from holdfast.testing.server_thread import serve_provider

THREAD_SWITCH_SECONDS = 0.0002
CUT_REPLY_MESSAGE = "returned without completing response"
LOST_CALLS_METRIC = "holdfast_gateway_lost_calls_total"
RESTARTS_METRIC = "holdfast_gateway_recorder_restarts_total"
BACKLOG_METRIC = "holdfast_gateway_spool_backlog_bytes"


class GatewayOptions(msgspec.Struct, frozen=True):
    """The gateway's command line options."""

    simulate: bool = False
    grants: str | None = None
    improve: bool = False
    volatile: tuple[str, ...] = ()
    keep_alive_usd: float | None = None
    drain: bool = False
    db: str | None = None
    unpriced_usd: float = UNPRICED_USD_PER_MTOK
    spool: str | None = None


class GatewayMount(ProviderMount):
    """Mounts the gateway in the service, at the paths of its providers.

    It matches the path as sent, where Starlette's Mount matches the decoded one: the rest is forwarded as sent.
    """

    def __init__(self, gateway: ASGIApp, routes: RouteTable) -> None:
        self._gateway = gateway
        self._routes = routes

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_request = scope["type"] in ("http", "websocket")
        is_provider_path = is_request and self._routes.find_mount(get_raw_path(scope)) is not None
        return (Match.FULL if is_provider_path else Match.NONE), {}

    def encode_refusal(self, path: str, status: int, message: str) -> tuple[int, bytes] | None:
        if self._routes.find_mount(path) is None:
            return None
        return GatewayRefusedError(status, message).encode(self._routes.find_target(path))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._gateway(scope, receive, send)


@contextmanager
def open_gateway(service: AppContext, upstreams: Sequence[str], options: GatewayOptions) -> Iterator[GatewayMount]:
    """Yield the gateway, to be mounted in the service. Raises UserError for invalid options."""
    pairs = [split_pair(option, "--upstream") for option in upstreams]
    with convert_to_option_error():
        flags = {name: parse_upstream_option(text, source=f"--upstream {name[:40]}") for name, text in pairs}
        rules = (DATE_RULE, *(VolatileRule(*split_pair(option, "--volatile")) for option in options.volatile))
        extractor = VolatileExtractor(rules)
    if options.simulate and flags:
        raise OptionValueError("--simulate replaces the upstreams of all providers; leave out --upstream")
    # Without the workspace: a repository must not decide where keys and prompts are sent.
    config = load_config(os.environ)
    configured = parse_upstream_settings(config.upstreams)
    _check_names((*flags, *configured))
    # A background thread passes records to the recorder process. With Python's default switch interval of 5 ms it
    # could delay the event loop, which forwards the bytes, by that much at a time.
    sys.setswitchinterval(THREAD_SWITCH_SECONDS)
    # When an upstream cuts a reply, the gateway cuts it too; uvicorn would log an error each time.
    logging.getLogger("uvicorn.error").addFilter(lambda record: CUT_REPLY_MESSAGE not in record.getMessage())
    with ExitStack() as stack:
        if options.simulate:
            url = stack.enter_context(serve_provider(SimulatedProvider(models=service.models)))
            routes = RouteTable(make_simulated_upstreams(url, configured))
        else:
            routes = RouteTable(resolve_upstreams(flags, os.environ, configured))
        rows = read_key_limits(Path(options.grants), tuple(routes.upstreams)) if options.grants else {}
        if not (options.improve or any(row.improve for row in rows.values())):
            _check_without_improve(options)
        key_limits = KeyLimitTable(
            rows,
            os.environ,
            {name: upstream.key_variable for name, upstream in routes.upstreams.items()},
            when_unavailable=config.budgets_when_unavailable,
        )
        budgets = KeyBudgets(
            key_limits,
            service.records,
            service.models,
            clock=service.clock,
            unpriced_usd_per_mtok=options.unpriced_usd,
        )
        stack.callback(budgets.close)
        rates = RequestRates(key_limits, service.records, clock=service.clock)
        stack.callback(rates.close)
        for row in service.records.all_keys():
            key_limits.set_stored_limits(row.id, make_stored_limits(row))
        if key_limits.has_budgets:
            budgets.seed(sum_spending_today(service.log, service.clock(), unpriced_usd_per_mtok=options.unpriced_usd))
        rewriter = _make_rewriter(service, extractor)
        recorder = _start_recorder(service, options, rules, config.recorder_memory_mb)
        stack.callback(recorder.close)
        authenticator = KeyAuthenticator(
            make_key_check(service),
            key_limits,
            rates=rates,
            clock=service.clock,
            salt=secrets.token_bytes(32),
            improve=options.improve,
            failed_keys=service.failed_keys,
        )
        stack.callback(authenticator.close)
        leases = ProcessLeases(service.records.shared, new_ulid(service.clock()))
        stack.callback(leases.close)
        gateway = Gateway(
            routes,
            authenticator=authenticator,
            watcher=recorder,
            clock=service.clock,
            rewriter=rewriter,
            keep_alive=_make_keep_alive(service, options, rewriter, recorder=recorder, leases=leases, budgets=budgets),
            explicit_caches=_make_explicit_caches(service, config.cache_ttl_seconds, leases),
            budgets=budgets,
            drain=options.drain,
            # Only a server is shared by gateways; in a file each look would wait for the recorder's writes.
            leases=leases if "://" in resolve_store_address(options.db)[0] else None,
        )
        # Everything loaded so far lives as long as the process; excluding it makes garbage collection pauses shorter.
        gc.freeze()
        yield GatewayMount(gateway, routes)


def _make_keep_alive(
    service: AppContext,
    options: GatewayOptions,
    rewriter: ConversationRewriter,
    *,
    recorder: RecorderProcess,
    leases: ProcessLeases,
    budgets: KeyBudgets,
) -> GatewayKeepAlive | None:
    if options.keep_alive_usd is None:
        return None
    usd_a_day_max = Decimal(str(options.keep_alive_usd))
    return GatewayKeepAlive(
        rewriter,
        clock=service.clock,
        usd_a_day_max=usd_a_day_max,
        on_ping=recorder.on_ping,
        leases=leases,
        budgets=budgets,
    )


def _make_rewriter(service: AppContext, extractor: VolatileExtractor) -> ConversationRewriter:
    """The planner of forwarded conversations, with what the store has of earlier and other processes."""
    return ConversationRewriter(
        service.models,
        extractor,
        restore=lambda: restore_plans(service.log),
        read_learned=lambda: read_learned(service.log),
        shared=SharedPlans(service.records),
    )


def _make_explicit_caches(service: AppContext, ttl_seconds: int, leases: ProcessLeases) -> ExplicitCaches:
    return ExplicitCaches(ExplicitCacheConfig(ttl_seconds), read_settings=service.records.settings, leases=leases)


def _start_recorder(
    service: AppContext, options: GatewayOptions, rules: Sequence[VolatileRule], memory_mb: int
) -> RecorderProcess:
    """The recorder process, with what `/readyz` and `/metrics` say about it."""
    volatile = tuple((rule.name, rule.pattern) for rule in rules)
    setup = RecorderSetup(options.db, options.simulate, volatile, options.unpriced_usd, memory_mb=memory_mb)
    spool = _make_spool_folder(options, service.clock())
    # Before the first call, so that other replicas know of a recorder that may be behind from the start.
    RecorderLease(service.records.shared, spool.name, service.clock).announce(service.clock())
    recorder = RecorderProcess((RECORDER_MODULE,), setup, spool)
    service.warnings.append(lambda: recorder.error)
    metrics = service.request_metrics
    metrics.add_counter(LOST_CALLS_METRIC, "Forwarded calls that could not be recorded.", lambda: recorder.lost_count)
    metrics.add_counter(RESTARTS_METRIC, "Restarts of the recorder process.", lambda: recorder.restarts)
    metrics.add_counter(
        BACKLOG_METRIC, "Spooled records that wait for the recorder.", lambda: recorder.backlog_bytes, kind="gauge"
    )
    return recorder


def _make_spool_folder(options: GatewayOptions, now: float) -> Path:
    """A new folder beside the store, so that a later gateway on this store finds what this one could not record."""
    address, _ = resolve_store_address(options.db)
    if options.spool is not None:
        root = Path(options.spool)
    elif "://" in address:
        digest = hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
        root = holdfast_home(os.environ) / "spool" / digest
    else:
        root = Path(f"{address}-spool")
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"the spool {str(root)!r} cannot be created: {error.strerror}; choose another with --spool"
        ) from None
    return root / new_ulid(now)


def _check_names(names: Iterable[str]) -> None:
    """An upstream must not take over a path of the service."""
    own_paths = {route.path.split("/")[1] for route in ROUTES} | {"dashboard", "openapi"}
    for name in names:
        if name in own_paths:
            raise UserError(f"upstream {name[:40]!a} would hide the service's own path /{name}; give it another name")


def _check_without_improve(options: GatewayOptions) -> None:
    """For options whose purpose is `--improve`, if neither that nor a grant turns it on. Raises UserError."""
    if options.keep_alive_usd is not None:
        raise OptionValueError("--keep-alive has no effect without --improve; add --improve, or leave it out")
    if options.volatile:
        click.echo("without --improve nothing is moved: --volatile only says what could be; add --improve", err=True)


def make_stored_limits(row: KeyRow) -> KeyLimits:
    return KeyLimits(
        budget_usd_a_day=row.budget_usd_a_day,
        requests_a_minute=row.requests_a_minute,
        budget_usd_a_month=row.budget_usd_a_month,
        models=row.model_patterns,
    )


def make_key_check(service: AppContext) -> Callable[[str | None], KeyHolder | None]:
    """A function that checks a gateway key by the service's own rules."""

    def judge(key: str | None) -> KeyHolder | None:
        if key is None:
            # As in the HTTP API: no key is needed until the first one has been created.
            if service.require_keys or service.records.has_keys():
                raise GatewayRefusedError(401, "this gateway needs its own key in the header x-holdfast-key")
            return None
        try:
            row = verify_key(f"Bearer {key}", service.records.key, service.clock())
        except ApiError as refused:
            raise GatewayRefusedError(401, "unknown or no longer valid gateway key") from refused
        if row is None or row.scope not in GATEWAY_SCOPES:
            raise GatewayRefusedError(403, "the gateway needs a key of scope gateway")
        return KeyHolder(row.id, row.name, row.user_id, row.team_id, make_stored_limits(row))

    return judge
