"""One line that makes the cache of an existing agent hold: `client = wrap(client)`."""

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from holdfast.catalog.lookup import Models, shipped_models
from holdfast.clock import Clock, NewId, new_ulid, system_clock
from holdfast.engine.harmless import Warnings
from holdfast.engine.marking import anthropic, openai
from holdfast.engine.recorder import Recorder
from holdfast.errors import UserError
from holdfast.events.log import Log
from holdfast.integrations.gemini import wrapped_gemini
from holdfast.integrations.methods import Client, Method, desk_of, wrapped_client
from holdfast.integrations.preparing import Desk
from holdfast.integrations.proxy import Proxy
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

AnyClient = TypeVar("AnyClient")

Wrapping = Callable[[object, Desk], Proxy]

_ANTHROPIC = partial(
    wrapped_client,
    methods={
        "messages.create": Method(anthropic.MESSAGES),
        "messages.stream": Method(anthropic.MESSAGES, opens=True),
    },
)
_OPENAI = partial(
    wrapped_client,
    methods={
        "chat.completions.create": Method(openai.CHAT),
        "responses.create": Method(openai.RESPONSES),
        "responses.stream": Method(openai.RESPONSES, opens=True),
    },
)

_WRAPPINGS: dict[tuple[str, str], Wrapping] = {
    ("anthropic", "Anthropic"): _ANTHROPIC,
    ("anthropic", "AsyncAnthropic"): _ANTHROPIC,
    ("openai", "OpenAI"): _OPENAI,
    ("openai", "AsyncOpenAI"): _OPENAI,
    ("google.genai", "Client"): wrapped_gemini,
}
"""By the package and the class of a client; the clients themselves are never imported here."""


def wrap(
    client: AnyClient,
    *,
    store: Log | str | Path | None = None,
    session: str | None = None,
    models: Models | None = None,
    clock: Clock = system_clock,
    new_id: NewId = new_ulid,
) -> AnyClient:
    """A client that behaves as the given one, places cache marks, and records what its calls took.

    Prompts are not recorded, only digests of them. Without `store` the record lives as long as the process.
    `session` is what keeps OpenAI's calls on one cache; without it, the first system text is. The given client
    stays as it was.
    """
    wrapping = _wrapping_of(client)
    warnings = Warnings()
    known = shipped_models() if models is None else models
    log, owned = _log_of(store, known)
    recorder = Recorder(log, models=known, clock=clock, new_id=new_id, warnings=warnings)
    if owned:
        # Also at the end of the process: what is queued is written then.
        weakref.finalize(recorder, log.close)
    wrapped = wrapping(client, Desk(recorder, warnings, session=session))
    return cast("AnyClient", wrapped)  # It answers to everything that the client answers to.


def _log_of(store: Log | str | Path | None, models: Models) -> tuple[Log, bool]:
    """The log to write, and whether it is ours to close."""
    if store is None:
        return MemoryStore(models=models), False
    return (open_store(store, models=models), True) if isinstance(store, str | Path) else (store, False)


def recorder_of(client: object) -> Recorder:
    """What a wrapped client's calls took."""
    if not issubclass(type(client), Client):
        raise UserError(f"this {type(client).__name__} is not wrapped: use the client that `wrap` returned")
    return desk_of(cast("Client", client)).recorder  # As just seen.


def _wrapping_of(client: object) -> Wrapping:
    if issubclass(type(client), Client):
        raise UserError("this client is wrapped already")
    package, name = _origin(client)
    if (package, name) not in _WRAPPINGS:
        known = ", ".join(f"{package}.{name}" for package, name in _WRAPPINGS)
        raise UserError(f"a {package}.{name} cannot be wrapped; these clients can: {known}")
    return _WRAPPINGS[package, name]


def _origin(client: object) -> tuple[str, str]:
    """The package and the name of a client's class; a class of the caller's own counts as what it extends."""
    for ancestor in type(client).__mro__:
        package = ancestor.__module__.rpartition(".")[0] or ancestor.__module__
        if (package, ancestor.__name__) in _WRAPPINGS:
            return package, ancestor.__name__
    return type(client).__module__.partition(".")[0], type(client).__name__
