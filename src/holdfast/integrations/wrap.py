"""`client = wrap(client)`: adds prompt caching and a record of calls to an existing SDK client."""

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.clock import Clock, NewId, new_ulid, system_clock
from holdfast.engine.guard import WarningLog
from holdfast.engine.inject import anthropic, openai
from holdfast.engine.recorder import CallRecorder
from holdfast.errors import UserError
from holdfast.events.log import EventLog
from holdfast.events.records import HasRecords
from holdfast.integrations.client_methods import CallPreparer, WrappedClient, wrap_client
from holdfast.integrations.gemini import wrap_gemini
from holdfast.integrations.proxy import Proxy
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

AnyClient = TypeVar("AnyClient")
WrapClient = Callable[[object, CallPreparer], Proxy]

_ANTHROPIC_METHODS = {
    "messages.create": anthropic.MESSAGES_METHOD,
    "messages.stream": anthropic.MESSAGES_METHOD._replace(opens_stream=True),
}
_OPENAI_METHODS = {
    "chat.completions.create": openai.CHAT_METHOD,
    "responses.create": openai.RESPONSES_METHOD,
    "responses.stream": openai.RESPONSES_METHOD._replace(opens_stream=True),
}
_ANTHROPIC, _OPENAI = (partial(wrap_client, methods=methods) for methods in (_ANTHROPIC_METHODS, _OPENAI_METHODS))

_WRAPPINGS: dict[tuple[str, str], WrapClient] = {
    ("anthropic", "Anthropic"): _ANTHROPIC,
    ("anthropic", "AsyncAnthropic"): _ANTHROPIC,
    ("openai", "OpenAI"): _OPENAI,
    ("openai", "AsyncOpenAI"): _OPENAI,
    ("google.genai", "Client"): wrap_gemini,
}
"""By package and class of the client. The SDKs are optional, so they are not imported here."""


def wrap(
    client: AnyClient,
    *,
    store: EventLog | str | Path | None = None,
    session: str | None = None,
    models: Models | None = None,
    clock: Clock = system_clock,
    new_id: NewId = new_ulid,
) -> AnyClient:
    """Return a client that behaves like the given one, places cache breakpoints, and records the usage of its calls.

    Prompts are recorded only as digests. Without `store` the record lives as long as the process. `session` is the
    key that routes OpenAI's calls to one cache; by default it is derived from the first system text. If caching is
    turned off in the store, for this record or for the provider, calls are not rewritten. The given client is not
    changed.
    """
    wrapping = _wrapping_of(client)
    warnings = WarningLog()
    catalog = shipped_models() if models is None else models
    log, owns_log = _log_of(store, catalog)
    recorder = CallRecorder(log, models=catalog, clock=clock, new_id=new_id, warnings=warnings)
    if owns_log:
        # Closing writes the queued events; a finalizer also runs at the end of the process.
        weakref.finalize(recorder, log.close)
    controls = log.records.controls if isinstance(log, HasRecords) else None
    wrapped = wrapping(client, CallPreparer(recorder, warnings, session=session, controls=controls))
    return cast("AnyClient", wrapped)  # The proxy has every attribute of the client.


def _log_of(store: EventLog | str | Path | None, models: Models) -> tuple[EventLog, bool]:
    """The log to write to, and whether it has to be closed by the wrapper."""
    if store is None:
        return MemoryStore(models=models), False
    return (open_store(store, models=models), True) if isinstance(store, str | Path) else (store, False)


def recorder_of(client: object) -> CallRecorder:
    """The record of a wrapped client's calls."""
    if not issubclass(type(client), WrappedClient):
        raise UserError(f"this {type(client).__name__} is not wrapped: use the client that `wrap` returned")
    return cast("CallRecorder", object.__getattribute__(client, "_holdfast_recorder"))  # Set by `WrappedClient`.


def _wrapping_of(client: object) -> WrapClient:
    if issubclass(type(client), WrappedClient):
        raise UserError("this client is wrapped already")
    # The base classes too: a subclass of a known client is wrapped like it.
    for ancestor in type(client).__mro__:
        package = ancestor.__module__.rpartition(".")[0] or ancestor.__module__
        if (package, ancestor.__name__) in _WRAPPINGS:
            return _WRAPPINGS[package, ancestor.__name__]
    origin = f"{type(client).__module__.partition('.')[0]}.{type(client).__name__}"
    supported = ", ".join(f"{package}.{name}" for package, name in _WRAPPINGS)
    raise UserError(f"a {origin} cannot be wrapped; these clients can: {supported}")
