"""State that sessions of one process share: the single-flight gate and the response cache."""

from itertools import count
from weakref import WeakKeyDictionary

from holdfast.engine.completions import COMPLETION_SECONDS, CompletionCache, Completions
from holdfast.engine.gate import Gate
from holdfast.providers.wire import Wire
from holdfast.runtime.options import Options

_SHARED_GATE = Gate()
_SHARED_RESPONSES = CompletionCache()
_account_numbers = count(1)
_account_names: WeakKeyDictionary[Wire, str] = WeakKeyDictionary()


def gate_of(options: Options) -> Gate | None:
    """The gate of the options; by default the one that all sessions of this process share."""
    setting = options.get("gate", True)
    if isinstance(setting, bool):
        return _SHARED_GATE if setting else None
    return setting


def completions_of(options: Options) -> Completions | None:
    """The response cache that all sessions of this process share, if the options turn it on."""
    if not options.get("completion_cache"):
        return None
    return Completions(_SHARED_RESPONSES, options.get("completion_cache_seconds", COMPLETION_SECONDS))


def account_of(wire: Wire) -> str:
    """A name for the provider account, and so the prompt cache, that requests over this wire use.

    A wire that does not know its account gets a name of its own, shared only by sessions with the same wire object.
    """
    account = getattr(wire, "account", None)
    if isinstance(account, str):
        return account
    try:
        return _account_names.setdefault(wire, f"wire {next(_account_numbers)}")
    except TypeError:
        # The wire cannot be hashed or weakly referenced, so no other session can be recognised as using it.
        return f"wire {next(_account_numbers)}"
