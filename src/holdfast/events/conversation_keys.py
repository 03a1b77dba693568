"""The keys under which a store finds the conversation that a forwarded request continues, derived from its events.

A request repeats the newest blocks of the one before it at the same positions, followed by the reply. Digests of both
are in the events, so whoever reads them finds the conversation, in whichever process it was recorded.
"""

from collections.abc import Iterator

from holdfast.events.payloads.calls import ConversationTrace, GatewayForwarded, LlmCallCompleted, ReplyTrace
from holdfast.events.payloads.union import AnyPayload
from holdfast.types.json_encoding import sha256_hex

# Several, because a client may change its last block with every call.
NEWEST_BLOCKS = 3
KEY_CHARS = 20


def make_caller_scope(mount: str, key_id: str | None) -> str:
    """What all requests of one gateway key to one provider have in common; conversations never cross it."""
    return f"{mount} by {key_id or 'anyone'}"


def block_key(scope: str, position: int, digest: str) -> str:
    return _make_key("block", scope, str(position), digest)


def name_key(scope: str, session_digest: str) -> str:
    return _make_key("name", scope, session_digest)


def reply_key(digest: str) -> str:
    return _make_key("reply", digest)


def response_key(response_id: str) -> str:
    return _make_key("response", response_id)


def delegation_key(digest: str) -> str:
    return _make_key("delegation", digest)


def iterate_conversation_keys(payload: AnyPayload) -> Iterator[str]:
    """The keys that an event adds to its session."""
    match payload:
        case GatewayForwarded(trace=ConversationTrace() as trace, key_id=key_id):
            scope, first = make_caller_scope(trace.mount, key_id), trace.shared_blocks
            newest = list(enumerate(trace.blocks, first))[-NEWEST_BLOCKS:]
            yield from (block_key(scope, position, digest) for position, digest in newest)
            if trace.session_digest and not first:
                yield name_key(scope, trace.session_digest)
        case LlmCallCompleted(reply=ReplyTrace() as reply, response_id=response_id):
            # The last block is the most specific one: a tool call has an id of its own.
            yield from map(reply_key, reply.blocks[-1:])
            yield from map(delegation_key, reply.delegated)
            if response_id:
                yield response_key(response_id)
        case _:
            pass


def _make_key(*parts: str) -> str:
    return sha256_hex("\n".join(parts).encode("utf-8", "surrogatepass"))[:KEY_CHARS]
