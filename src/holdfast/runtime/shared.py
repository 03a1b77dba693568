"""State that sessions of one process share: single flight, the response cache, account names and cache controls."""

from itertools import count
from weakref import WeakKeyDictionary

from holdfast.engine.cache.response_cache import STORED_SECONDS, ResponseCache, ResponseCacheConfig
from holdfast.engine.cache.single_flight import SingleFlight
from holdfast.engine.conversation import LookUpControls
from holdfast.events.log import EventLog
from holdfast.events.records import HasRecords
from holdfast.providers.wire_request import Transport
from holdfast.runtime.options import Options

_SHARED_FLIGHT = SingleFlight()
_SHARED_RESPONSES = ResponseCache()
_account_numbers = count(1)
# Weak keys: a name must not keep a closed transport alive.
_account_names: WeakKeyDictionary[Transport, str] = WeakKeyDictionary()


def single_flight_of(options: Options) -> SingleFlight | None:
    """The single flight of the options; by default the one that all sessions of this process share."""
    setting = options.get("single_flight", True)
    if isinstance(setting, bool):
        return _SHARED_FLIGHT if setting else None
    return setting


def response_cache_of(options: Options) -> ResponseCacheConfig | None:
    """The response cache that all sessions of this process share, if the options turn it on."""
    if not options.get("completion_cache"):
        return None
    return ResponseCacheConfig(_SHARED_RESPONSES, options.get("completion_cache_seconds", STORED_SECONDS))


def account_name(transport: Transport) -> str:
    """A name for the provider account, and so the prompt cache, that requests over this transport use.

    A transport that does not know its account gets a name of its own, shared by sessions with the same object only.
    """
    account = getattr(transport, "account", None)
    if isinstance(account, str):
        return account
    try:
        return _account_names.setdefault(transport, f"transport {next(_account_numbers)}")
    except TypeError:
        # The transport cannot be hashed or weakly referenced, so no other session can be recognised as using it.
        return f"transport {next(_account_numbers)}"


def controls_reader(log: EventLog) -> LookUpControls | None:
    """A function that reads the controls of a session; None if the store holds nothing but a log."""
    return log.records.look_up_controls if isinstance(log, HasRecords) else None
