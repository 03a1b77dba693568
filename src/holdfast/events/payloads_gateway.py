"""Events for requests of other clients that pass through the gateway."""

import msgspec

from holdfast.events.payload import Payload


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One anti-pattern that was fixed in a request, or could have been: `anti_pattern` names it, `location` locates it.

    `cost_usd` is what leaving it costs in this call if all others are fixed; `diff` shows the change with every letter
    as x and every digit as 0.
    """

    habit: str
    place: str
    done: bool = False
    usd: float | None = None
    diff: tuple[str, ...] = ()


class Priced(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cost of a prompt by the cache model, as sent and as improved, with its tokens in both versions.

    `improved_shared_tokens` is the length of the prefix shared with the previous improved request.
    """

    as_sent_usd: float
    improved_usd: float
    tokens: int
    improved_tokens: int
    improved_shared_tokens: int


class Trace(msgspec.Struct, frozen=True, omit_defaults=True):
    """Digests that identify a conversation after a restart.

    The first `shared_blocks` blocks are those of the previous request, followed by `blocks`. `session_digest` is the
    digest of an id that the client sent, and `reason` says where in the request it was found.
    """

    mount: str
    head: str
    kept: int
    blocks: tuple[str, ...]
    session: str | None = None
    because: str = ""


class GatewayForwarded(Payload, frozen=True, tag="gateway.forwarded"):
    """Why a request was assigned to this session, with which confidence from 0 to 1, and by whose key.

    `key_id` is one of our own keys, with its user and team; provider keys are never stored. `shape` has one letter for
    each block that the previous request did not have.
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
