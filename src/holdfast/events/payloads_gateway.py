"""What can happen when a request of somebody else's client goes through a gateway."""

import msgspec

from holdfast.events.payload import Payload


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was changed in a request, or could have been: `habit` names it, `place` says where."""

    habit: str
    place: str
    done: bool = False


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """What knows a conversation again after a restart, in digests alone.

    The first `kept` blocks are those of the request before, `blocks` stand behind them. `session` is the digest of an
    id that the client sent, and `because` says where it stood.
    """

    mount: str
    head: str
    kept: int
    blocks: tuple[str, ...]
    session: str | None = None
    because: str = ""


class GatewayForwarded(Payload, frozen=True, tag="gateway.forwarded"):
    """Why a request was taken for one of this session, how sure that is from 0 to 1, and whose key it came with.

    `key_id` is that of a key of our own; keys of providers are never kept.
    """

    because: str
    confidence: float
    key_id: str | None = None
    improved: bool = False
    changes: tuple[Change, ...] = ()
    trace: Trace | None = None
