"""What sessions share: a gate, all of this process that speak to one account; and replies, those that ask for it."""

from itertools import count
from weakref import WeakKeyDictionary

from holdfast.engine.completions import COMPLETION_SECONDS, CompletionCache, Completions
from holdfast.engine.gate import Gate
from holdfast.providers.wire import Wire
from holdfast.runtime.options import Options

_SHARED = Gate()
_REPLIES = CompletionCache()
_numbers = count(1)
_given: WeakKeyDictionary[Wire, str] = WeakKeyDictionary()


def gate_of(options: Options) -> Gate | None:
    chosen = options.get("gate", True)
    if isinstance(chosen, bool):
        return _SHARED if chosen else None
    return chosen


def completions_of(options: Options) -> Completions | None:
    if not options.get("completion_cache"):
        return None
    return Completions(_REPLIES, options.get("completion_cache_seconds", COMPLETION_SECONDS))


def account_of(wire: Wire) -> str:
    """Whose cache a wire leads to, where it can say; else nobody shares it but who has the same wire."""
    account = getattr(wire, "account", None)
    if isinstance(account, str):
        return account
    try:
        return _given.setdefault(wire, f"wire {next(_numbers)}")
    except TypeError:
        return f"wire {next(_numbers)}"
