"""What an improved request shares with others, and how what it wrote can be kept alive: read once, off the loop."""

from decimal import Decimal

import msgspec

from holdfast.canonical.encoding import chain, digest, plain_json
from holdfast.canonical.prompt import Mark, Ttl
from holdfast.catalog.lookup import price_at, utc_date
from holdfast.economics.pinging import pings_max
from holdfast.engine.draft import Draft
from holdfast.engine.gate import Claim, MarkedPrefix
from holdfast.gateway.edits import VOLATILE, Body
from holdfast.gateway.improving import Improved, Improver
from holdfast.planning.savings import write_rate
from holdfast.providers.adapter import Adapter
from holdfast.providers.automatic import automatic_mark
from holdfast.providers.emptying import AsksForNothing
from holdfast.providers.registry import adapter_for

BYTES_A_TOKEN = 4
LETTER_BYTES_MAX = 4 * 1024 * 1024


class Letter(msgspec.Struct, frozen=True):
    """A request that asks for nothing, by which the cache of a conversation is kept: what it costs, and how often.

    `tail` is the digest of what it keeps; a request whose `digests` hold it has gone on from there.
    """

    body: bytes
    tail: str
    ttl: Ttl
    ttl_seconds: float
    cost_usd: Decimal
    times_max: int
    piece: int


class Reading(msgspec.Struct, frozen=True):
    """What was made of a request. `digests` are those of the chain over what it says, block by block."""

    improved: Improved
    claim: Claim
    digests: frozenset[str]
    letter: Letter | None = None


def read_once(improver: Improver, speaks: str, body: bytes, *, path: str, account: str, at: float) -> Reading:
    """Raises whatever a body that we do not understand makes us raise."""
    improved = improver.improved(speaks, body, path=path)
    adapter = adapter_for(speaks)
    draft = Draft(adapter, lambda spelled: len(spelled) // BYTES_A_TOKEN)
    draft.update(improved.wire.prompt)
    links, rules = draft.scroll.links, improved.row.cache
    marks = [mark for mark in improved.wire.plan.marks if mark.piece < len(links)]
    if not any(change.habit.startswith(VOLATILE) for change in improved.changes):
        # Else the provider's own mark stands on what was moved, which no later request begins with.
        marks += automatic_mark(improved.wire.parameters, draft.scroll.pieces, marks, rules)
    prefixes = tuple(
        MarkedPrefix(links[mark.piece].digest, links[mark.piece].end, rules.ttls_seconds[mark.ttl])
        for mark in marks
        if links[mark.piece].end >= rules.tokens_min * BYTES_A_TOKEN and mark.ttl in rules.ttls_seconds
    )
    claim = Claim(_scope(adapter, improved, account), prefixes)
    letter = None
    if prefixes and prefixes[-1].digest == links[marks[-1].piece].digest:
        tokens = sum(draft.scroll.tokens[: marks[-1].piece + 1])
        letter = _letter(adapter, improved, body, mark=marks[-1], prefix=prefixes[-1], tokens=tokens, at=at)
    return Reading(improved, claim, frozenset(link.digest for link in links), letter)


def _scope(adapter: Adapter, improved: Improved, account: str) -> str:
    """Whose cache it is, and everything that the request says besides its prompt, less what no cache depends on."""
    said = msgspec.structs.replace(
        improved.wire.parameters, output_tokens_max=0, stream=False, stop_sequences=(), temperature=None
    )
    return chain(digest(f"{account}\n{improved.row.id}".encode()), adapter.opening(said))


def _letter(
    adapter: Adapter, improved: Improved, body: bytes, *, mark: Mark, prefix: MarkedPrefix, tokens: int, at: float
) -> Letter | None:
    """None where no request can ask for nothing, or where none would pay."""
    sent = improved.body or body
    if not isinstance(adapter, AsksForNothing) or not improved.row.prices or len(sent) > LETTER_BYTES_MAX:
        return None
    emptied = adapter.emptied(improved.wire.parameters)
    if adapter.conflict_with_empty(emptied) is not None:
        return None
    members: Body = msgspec.json.decode(sent)
    members["max_tokens"] = emptied.output_tokens_max
    members.pop("stream", None)
    price = price_at(improved.row, utc_date(at), tokens)
    times = pings_max(read=price.cache_read, write=write_rate(mark.ttl, price))
    cost = price.cache_read * tokens / 1_000_000
    return Letter(
        body=plain_json(members),
        tail=prefix.digest,
        ttl=mark.ttl,
        ttl_seconds=prefix.ttl_seconds,
        cost_usd=cost,
        times_max=times or 0,
        piece=mark.piece,
    )
