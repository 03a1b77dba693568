"""`client = wrap(client)`: adds prompt caching and a record of calls to an existing SDK client."""

import copy
import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypedDict, TypeVar

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.clock import Clock, NewId, new_ulid, system_clock
from holdfast.engine.cache.shared_plans import SharedPlans
from holdfast.engine.guard import WarningLog
from holdfast.engine.leases import ProcessLeases
from holdfast.errors import HoldfastError, UserError
from holdfast.events.log import EventLog
from holdfast.events.records import HasRecords
from holdfast.gateway.recording.recorder import GatewayRecorder
from holdfast.gateway.recording.restore import read_learned, restore_plans
from holdfast.gateway.rewrite.conversation_rewriter import ConversationRewriter
from holdfast.gateway.rewrite.explicit_caches import ExplicitCaches
from holdfast.gateway.rewrite.volatile_text import VolatileExtractor
from holdfast.integrations.client_observer import (
    RECORDED_SECONDS_MAX,
    SESSIONS_MAX,
    ClientObserver,
    ClientRecorder,
    ObservedCall,
)
from holdfast.integrations.http_client import find_observer, observe_http_client
from holdfast.integrations.keep_alive import ClientKeepAlive
from holdfast.planning.explicit_cache import ExplicitCacheConfig
from holdfast.runtime.config import load_config
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

AnyClient = TypeVar("AnyClient")

# The base classes of all clients of these SDKs, with the clouds' own, and the upstream of hosts that we do not know.
_SDK_CLASSES = {
    ("anthropic", "SyncAPIClient"): "anthropic",
    ("anthropic", "AsyncAPIClient"): "anthropic",
    ("openai", "SyncAPIClient"): "openai",
    ("openai", "AsyncAPIClient"): "openai",
    ("google", "Client"): "gemini",
}
_SUPPORTED = "anthropic.Anthropic, anthropic.AsyncAnthropic, openai.OpenAI, openai.AsyncOpenAI, google.genai.Client"
_CLOUD_MARKS = {"Bedrock": "bedrock", "Vertex": "vertex", "Azure": "azure", "Foundry": "azure"}

# Fields of the SDKs' clients that no public method returns.
_HTTP_CLIENT, _CONNECTION = "_client", "_api_client"
_GEMINI_HTTP_CLIENTS = ("_httpx_client", "_async_httpx_client")


class WrapArguments(TypedDict, total=False):
    """The options of `wrap`."""

    store: EventLog | str | Path | None
    session: str | None
    keep_alive_usd: float | None
    models: Models | None
    clock: Clock
    new_id: NewId


def wrap(
    client: AnyClient,
    *,
    store: EventLog | str | Path | None = None,
    session: str | None = None,
    keep_alive_usd: float | None = None,
    models: Models | None = None,
    clock: Clock = system_clock,
    new_id: NewId = new_ulid,
) -> AnyClient:
    """Return a client that behaves like the given one, places cache breakpoints, and records the usage of its calls.

    The returned client is of the same class and has the same options; the given one is not changed. Every method that
    sends a request over HTTP is covered. Prompts are recorded only as digests, in the default store unless `store`
    names another (`memory:` for none that lasts). `session` is the key that routes OpenAI's calls to one cache; by
    default it is derived from the system text. With `keep_alive_usd` the caches of idle Anthropic conversations are
    refreshed by pings where that is expected to pay, for up to so many dollars a day. If caching is turned off in the
    store, for a conversation or for the provider, calls are not rewritten.
    """
    options = WrapArguments(
        store=store, session=session, keep_alive_usd=keep_alive_usd, models=models, clock=clock, new_id=new_id
    )
    (wrapped,) = wrap_together([client], options)
    return wrapped


def wrap_together(clients: Sequence[AnyClient], options: WrapArguments) -> list[AnyClient]:
    """Wraps several clients, such as the blocking and the asynchronous one of a framework, with one record."""
    mounts = [_find_mount(client) for client in clients]
    if any(_find_observer(client) is not None for client in clients):
        raise UserError("this client is wrapped already")
    observer = make_observer(mounts[0], options)
    return [_copy_client(client, observer) for client in clients]


def make_observer(mount: str, options: WrapArguments) -> ClientObserver:
    """An observer of requests with its record; `mount` as in `ClientObserver`."""
    session, clock, warnings = options.get("session"), options.get("clock", system_clock), WarningLog()
    catalog = options.get("models") or shipped_models()
    log, owns_log = _open_log(options.get("store"), catalog, warnings)
    sessions: dict[str, None] = {}
    recorder = GatewayRecorder(
        log,
        models=catalog,
        new_id=options.get("new_id", new_ulid),
        on_session=partial(_add_session, sessions),
        warnings=warnings,
    )
    shared = SharedPlans(log.records) if isinstance(log, HasRecords) else None
    # Text is not moved: in a library, that is the caller's decision.
    rewriter = ConversationRewriter(
        catalog,
        VolatileExtractor(()),
        restore=lambda: restore_plans(log),
        read_learned=lambda: read_learned(log),
        session=session,
        shared=shared,
    )
    keep_alive_usd = options.get("keep_alive_usd")
    keep_alive = None
    if keep_alive_usd is not None:
        usd_a_day_max = Decimal(str(keep_alive_usd))
        keep_alive = ClientKeepAlive(rewriter, clock=clock, usd_a_day_max=usd_a_day_max, on_ping=recorder.on_ping)
    client_recorder = ClientRecorder(log, catalog, recorder, sessions=sessions, since=clock())
    observer = ClientObserver(
        client_recorder,
        recorder,
        rewriter,
        mount=mount,
        clock=clock,
        warnings=warnings,
        controls=log.records.controls if isinstance(log, HasRecords) else None,
        keep_alive=keep_alive,
        explicit_caches=_make_explicit_caches(log, options) if mount == "gemini" else None,
    )
    # It also runs at exit. Nothing that the recorder's thread refers to may refer to the object it waits for.
    closed = recorder, log if owns_log else None, observer.open_calls, keep_alive
    weakref.finalize(client_recorder, _close, *closed, shared=shared)
    return observer


def _make_explicit_caches(log: EventLog, options: WrapArguments) -> ExplicitCaches:
    """With the TTL of the configuration, unless the caller has none that can be read."""
    config = ExplicitCacheConfig()
    with suppress(HoldfastError, OSError):
        config = ExplicitCacheConfig(load_config(os.environ).cache_ttl_seconds)
    records = log.records if isinstance(log, HasRecords) else None
    if records is None:
        return ExplicitCaches(config)
    owner = options.get("new_id", new_ulid)(options.get("clock", system_clock)())
    return ExplicitCaches(config, read_settings=records.settings, leases=ProcessLeases(records.shared, owner))


def recorder_of(client: object) -> ClientRecorder:
    """The record of the calls of a wrapped client, or of a framework's model that a helper of ours has wrapped."""
    observer = _find_observer(client)
    if observer is None:
        held = (getattr(client, name, None) for name in ("_client", "root_client", "client"))
        observer = next((found for value in held if (found := _find_observer(value)) is not None), None)
    if observer is None:
        raise UserError(f"this {type(client).__name__} is not wrapped: use the client that `wrap` returned")
    return observer.recorder


def _find_mount(client: object) -> str:
    for ancestor in type(client).__mro__:
        mount = _SDK_CLASSES.get((ancestor.__module__.partition(".")[0], ancestor.__name__))
        if mount is not None:
            if mount == "gemini":
                return "vertex" if getattr(client, "vertexai", False) else mount
            names = [parent.__name__ for parent in type(client).__mro__]
            clouds = (cloud for mark, cloud in _CLOUD_MARKS.items() if any(mark in name for name in names))
            return next(clouds, mount)
    origin = f"{type(client).__module__.partition('.')[0]}.{type(client).__name__}"
    raise UserError(f"a {origin} cannot be wrapped; these clients can: {_SUPPORTED}")


def _find_observer(client: object) -> ClientObserver | None:
    if (observer := find_observer(client)) is not None:
        return observer
    connection = getattr(client, _CONNECTION, None)
    if connection is not None:
        return find_observer(getattr(connection, _GEMINI_HTTP_CLIENTS[0], None))
    return find_observer(getattr(client, _HTTP_CLIENT, None))


# `Any`: the fields of the SDKs' clients, which no type here knows.
def _copy_client(client: Any, observer: ClientObserver) -> Any:
    connection = getattr(client, _CONNECTION, None)
    if connection is None:
        return client.copy(http_client=observe_http_client(getattr(client, _HTTP_CLIENT), observer))
    observed = copy.copy(connection)
    # The client closes its connections, which both share, when it is collected.
    observed.holdfast_original = client
    for name in _GEMINI_HTTP_CLIENTS:
        if getattr(connection, name, None) is not None:
            setattr(observed, name, observe_http_client(getattr(connection, name), observer))
    if connection._http_options.aiohttp_client is None:
        # By default the SDK sends asynchronous requests through aiohttp, if that is installed.
        observed._use_aiohttp = lambda: False
    else:
        observer.warnings.warn_once("asynchronous requests are not recorded, because the client has an aiohttp_client")
    # All parts of the client refer to its connection; in the copy they refer to the observed one.
    return copy.deepcopy(client, {id(connection): observed})


def _open_log(store: EventLog | str | Path | None, models: Models, warnings: WarningLog) -> tuple[EventLog, bool]:
    """The log to write to, and whether it has to be closed by the wrapper."""
    if store is not None:
        return (open_store(store, models=models), True) if isinstance(store, str | Path) else (store, False)
    try:
        return open_store(load_config(os.environ).db_path, models=models), True
    except (HoldfastError, OSError) as error:
        # The caller has not asked for this store, so its failure must not stop them.
        reason = str(error) if isinstance(error, HoldfastError) else type(error).__name__
        warnings.warn_once(f"calls are recorded in memory only: {reason}")
        return MemoryStore(models=models), False


def _add_session(sessions: dict[str, None], session_id: str) -> None:
    sessions[session_id] = None
    while len(sessions) > SESSIONS_MAX:
        del sessions[next(iter(sessions))]


def _close(
    recorder: GatewayRecorder,
    log: EventLog | None,
    open_calls: Iterable[ObservedCall],
    keep_alive: ClientKeepAlive | None,
    *,
    shared: SharedPlans | None,
) -> None:
    if keep_alive is not None:
        keep_alive.close()
    if recorder.queue.is_current_thread:
        # Collected there as garbage: the thread cannot wait for itself to record the rest.
        arguments = (recorder, log, open_calls, keep_alive)
        Thread(target=_close, args=arguments, kwargs={"shared": shared}).start()
        return
    # At exit, responses may be left that nobody has read to their end or closed.
    for call in tuple(open_calls):
        call.end("cancelled")
    recorder.close()
    if shared is not None:
        shared.wait_until_written(RECORDED_SECONDS_MAX)
    if log is not None:
        log.close()
