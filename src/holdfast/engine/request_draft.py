"""The next request under construction: blocks encoded for the last call are reused, only new ones are encoded."""

from collections.abc import Callable

from holdfast.engine.state import SessionState
from holdfast.ledger.cache.change_cause import find_prefix_change
from holdfast.providers.adapter import Adapter
from holdfast.types.prompt import HistoryEntry, LayerText, PrefixChange, Prompt, Segment, Stability, View
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest, RequestBuffer


class RequestDraft:
    """The encoded bytes of the newest prompt; encoded again only from the block where it differs from the last one."""

    def __init__(self, adapter: Adapter, count: Callable[[bytes], int]) -> None:
        self._adapter = adapter
        self._stable_prefix: tuple[Segment, ...] = ()
        self._entries: tuple[HistoryEntry, ...] = ()
        self._starts: list[int] = []  # The block at which each history entry starts.
        self.scroll = RequestBuffer(adapter, count)
        self._dropped: tuple[EncodedBlock, ...] = ()
        self._unchanged_blocks = 0

    def update(self, prompt: Prompt) -> None:
        stable_prefix = tuple(segment for segment in prompt.segments if segment.place != "messages")
        if stable_prefix != self._stable_prefix:
            self._cut(0)
            self._entries, self._starts = (), []
            for segment in stable_prefix:
                self.scroll.extend(self._adapter.spell(segment))
            self._stable_prefix = stable_prefix
        entries = prompt.passages
        unchanged = self._unchanged_count(entries)
        if unchanged < len(self._entries):
            self._cut(self._starts[unchanged])
            del self._starts[unchanged:]
        for entry in entries[unchanged:]:
            self._starts.append(len(self.scroll.pieces))
            self.scroll.extend(self.spelled(entry))
        self._entries = entries

    @property
    def head_tokens(self) -> int:
        """Tokens of tools and system prompt, before the messages."""
        return sum(self.scroll.tokens[: self._starts[0]]) if self._starts else self.scroll.tokens_total

    def passage_tokens(self) -> list[int]:
        """Tokens of each history entry."""
        ends = [*self._starts[1:], len(self.scroll.tokens)]
        return [sum(self.scroll.tokens[start:end]) for start, end in zip(self._starts, ends, strict=True)]

    def _cut(self, keep: int) -> None:
        if keep < self._unchanged_blocks:
            self._dropped = (*self.scroll.pieces[keep : self._unchanged_blocks], *self._dropped)
            self._unchanged_blocks = keep
        self.scroll.cut(keep)

    def settle(self) -> None:
        """Mark the newest prompt as sent: later changes are compared with it."""
        self._dropped, self._unchanged_blocks = (), len(self.scroll.pieces)

    def move(self, shared: int) -> PrefixChange:
        """How the newest prompt differs from the last sent one, after the `shared` blocks that both have."""
        previous_blocks = self._dropped[max(0, shared - self._unchanged_blocks) :]
        digests = self.scroll.links
        position = digests[shared] if shared < len(digests) else digests[-1] if digests else PrefixDigest("", 0, 0, "")
        return find_prefix_change(previous_blocks, self.scroll.pieces[shared:], position)

    def spelled(self, entry: HistoryEntry) -> tuple[EncodedBlock, ...]:
        """A history entry encoded for the provider; it is not added to the draft."""
        return self._adapter.spell(_segment_of(entry))

    def _unchanged_count(self, entries: tuple[HistoryEntry, ...]) -> int:
        """How many leading entries are the same as in the previous prompt."""
        previous = self._entries
        # Views share their entries, so that this comparison is mostly by identity.
        if entries[: len(previous)] == previous:
            return len(previous)
        pairs = enumerate(zip(previous, entries, strict=False))
        return next((index for index, (old, new) in pairs if old != new), min(len(previous), len(entries)))


def _segment_of(entry: HistoryEntry) -> Segment:
    return Segment("history", Stability.GROWING, "messages", passages=(entry,))


def build_view(state: SessionState, current: tuple[LayerText, ...] = ()) -> View:
    """The conversation as the layers see it."""
    return View(
        tools=state.tools,
        pinned=state.pinned,
        history=state.passages[: state.sent],
        newest=state.passages[state.sent :],
        current=current,
        emitted=state.emitted,
        layout=state.layout,
        head=state.head,
    )


def build_sent_view(state: SessionState) -> View:
    """The view to send next. The seed layout uses the recorded volatile text: a request depends on the log alone."""
    tail = state.system_tail
    return build_view(state, (tail,) if state.layout == "seed" and tail else ())
