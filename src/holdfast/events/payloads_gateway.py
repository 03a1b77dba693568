"""What can happen when a request of somebody else's client goes through a gateway."""

import msgspec

from holdfast.events.payload import Payload


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that was changed in a request, or could have been: `habit` names it, `place` says where.

    `usd` is what leaving it costs in this call, where all others are mended; `diff` shows what is changed, with every
    letter as x and every digit as 0.
    """

    habit: str
    place: str
    done: bool = False
    usd: float | None = None
    diff: tuple[str, ...] = ()


class Priced(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a prompt costs by the model of the cache: as it was sent, and improved; and its tokens both ways.

    `improved_shared_tokens` are those that the improved request begins with like the improved one before.
    """

    as_sent_usd: float
    improved_usd: float
    tokens: int
    improved_tokens: int
    improved_shared_tokens: int


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

    `key_id` is that of a key of our own, and user and team are those that it was made for; keys of providers are never
    kept. `shape` has a letter for each block that the request before did not have.
    """

    because: str
    confidence: float
    key_id: str | None = None
    improved: bool = False
    changes: tuple[Change, ...] = ()
    user_id: str | None = None
    team_id: str | None = None
    trace: Trace | None = None
    shape: str = ""
    priced: Priced | None = None
