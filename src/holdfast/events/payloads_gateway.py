"""What can happen when a request of somebody else's client goes through a gateway."""

import msgspec

from holdfast.events.payload import Payload


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was changed in a request, or could have been: `habit` names it, `place` says where."""

    habit: str
    place: str
    done: bool = False


class GatewayForwarded(Payload, frozen=True, tag="gateway.forwarded"):
    """Why a request was taken for one of this session, how sure that is from 0 to 1, and whose key it came with.

    `key_id` is that of a key of our own; keys of providers are never kept.
    """

    because: str
    confidence: float
    key_id: str | None = None
    improved: bool = False
    changes: tuple[Change, ...] = ()
