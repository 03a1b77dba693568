"""What a request would cost as it was sent, improved, and improved but for one habit, by the model of the cache.

Prompts alone, sizes by bytes: figures to be compared with one another.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal

from holdfast.cachemodel.machine import step
from holdfast.cachemodel.values import BlockKind, Call, Entries, Prefix, Scope
from holdfast.canonical.pieces import Link, Piece, shared_links
from holdfast.catalog.lookup import price_at, utc_date
from holdfast.catalog.rows import Model
from holdfast.economics.cost import cost_usd
from holdfast.engine.draft import Draft
from holdfast.events.payloads_gateway import Priced
from holdfast.providers.adapter import Adapter, WireRequest
from holdfast.providers.automatic import automatic_mark

AS_SENT = ""
IMPROVED = "improved"

PIECES_MAX = 4_000
_KINDS: Mapping[bytes, BlockKind] = {b'{"type":"tool_use"': "tool_use", b'{"type":"tool_result"': "tool_result"}


class _Track:
    """One way to say what a conversation says, and what a cache would hold of it."""

    def __init__(self, adapter: Adapter) -> None:
        self.draft = Draft(adapter, len)
        self.entries = Entries()
        self.links: tuple[Link, ...] = ()

    def price(self, wire: WireRequest, row: Model, at: float, tokens_a_byte: float) -> tuple[Decimal, int, int]:
        """What it costs, how many tokens it has, and how many of them the one before began with."""
        self.draft.update(wire.prompt)
        self.draft.settle()
        links, pieces = self.draft.scroll.links, self.draft.scroll.pieces
        prefixes = tuple(
            Prefix(piece.place, link.digest, round(link.end * tokens_a_byte), kind_of(piece), ending)
            for piece, link, ending in zip(pieces, links, _endings(pieces), strict=True)
        )
        own = tuple(mark for mark in wire.plan.marks if mark.piece < len(pieces))
        marks = (*own, *automatic_mark(wire.parameters, pieces, own, row.cache))
        call = Call(Scope("", row.name), prefixes, marks, at)
        outcome, self.entries = step(row.cache, self.entries, call)
        shared = shared_links(self.links, links)
        self.links = tuple(links)
        price = price_at(row, utc_date(at), outcome.usage.tokens_sent)
        return cost_usd(outcome.usage, price), call.tokens, prefixes[shared - 1].tokens if shared else 0


class Shadow:
    """Follows one conversation. `tokens_factor` is by how much the provider's own count is larger than ours."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, str], _Track] = {}
        self._before: dict[tuple[str, str], tuple[Entries, tuple[Link, ...]]] = {}
        self.tokens_factor = 1.0
        self.priced_count = 0
        """How many requests were priced; the number of the newest."""

    def priced(
        self, adapter: Adapter, row: Model, at: float, *, tokens: int, ways: Mapping[str, WireRequest]
    ) -> tuple[Priced, dict[str, float]] | None:
        """Figures of one call, and what leaving each habit costs above mending all; `tokens` are as it was sent.

        None where it cannot be said: the model has no price, or its cache would refuse the marks.
        """
        if not row.prices or not tokens:
            return None
        as_sent = self._track(adapter, AS_SENT)
        as_sent.draft.update(ways[AS_SENT].prompt)
        links = as_sent.draft.scroll.links
        if not links or len(links) > PIECES_MAX:
            return None
        tokens_a_byte = tokens * self.tokens_factor / links[-1].end
        self._before = {name: (track.entries, track.links) for name, track in self._tracks.items()}
        self.priced_count += 1
        found = {name: self._track(adapter, name).price(wire, row, at, tokens_a_byte) for name, wire in ways.items()}
        sent_usd, sent_tokens, sent_shared = found[AS_SENT]
        usd, size, shared = found.get(IMPROVED, (sent_usd, sent_tokens, sent_shared))
        extra = {name: float(cost - usd) for name, (cost, _, _) in found.items() if name not in (AS_SENT, IMPROVED)}
        return Priced(float(sent_usd), float(usd), sent_tokens, size, shared), extra

    def take_back(self, number: int) -> None:
        """A request came to nothing, and has left nothing in a cache; not where others were priced by it meanwhile."""
        if number == self.priced_count:
            for name, track in self._tracks.items():
                track.entries, track.links = self._before.get(name, (Entries(), ()))

    def _track(self, adapter: Adapter, name: str) -> _Track:
        return self._tracks.setdefault((adapter.name, name), _Track(adapter))


def kind_of(piece: Piece) -> BlockKind:
    return next((kind for start, kind in _KINDS.items() if piece.data.startswith(start)), "plain")


def _endings(pieces: Sequence[Piece]) -> list[bool]:
    """Whether each ends the head, or a message of the user: there a cache may look and write of itself."""
    following = [*pieces[1:], None]
    return [
        (piece.place == "system" and (after is None or after.place != "system"))
        or (piece.role == "user" and (after is None or after.role != "user"))
        for piece, after in zip(pieces, following, strict=True)
    ]


def shape_of(pieces: Sequence[Piece]) -> str:
    """One letter a piece: where it stands, who says it, whether it is text; capital where a mark can stand on it."""
    letters = []
    for piece in pieces:
        if piece.place != "messages":
            letter = piece.place[0]
        elif piece.data.startswith(b'{"type":"text"') or b'"text"' in piece.data[:24]:
            letter = "a" if piece.role == "assistant" else "u"
        else:
            letter = "b" if piece.role == "assistant" else "r"
        letters.append(letter.upper() if piece.markable else letter)
    return "".join(letters)
