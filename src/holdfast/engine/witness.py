"""What is recorded of requests that others wrote: spelled by us, and compared with the one before."""

from collections.abc import Callable
from threading import Lock

from holdfast.canonical.encoding import digest
from holdfast.canonical.moves import Move
from holdfast.canonical.pieces import shared_links
from holdfast.canonical.prompt import Plan
from holdfast.canonical.scroll import Scroll
from holdfast.catalog.rows import Model
from holdfast.catalog.tokens import count_block
from holdfast.engine.draft import Draft
from holdfast.engine.harmless import Warnings
from holdfast.engine.recorder import Prepared, Recorder
from holdfast.providers.adapter import Adapter, WireRequest
from holdfast.providers.automatic import automatic_mark
from holdfast.providers.diagnosing import compares
from holdfast.providers.tier_parameters import settings_of

Rewrite = Callable[[Scroll, Model], WireRequest]
"""The request that is sent in the place of another: the same prompt, with other marks."""


class Witness:
    """Follows the requests of one conversation; what was spelled for the one before is not spelled again."""

    def __init__(self, recorder: Recorder, warnings: Warnings) -> None:
        self.recorder = recorder
        self.warnings = warnings
        self._lock = Lock()
        self._drafts: dict[tuple[str, float], Draft] = {}
        self._tails: dict[str, tuple[int, str]] = {}
        self.newest: Scroll | None = None
        """The request that was prepared last, as we spell it; it changes with the next one."""

    def prepared(self, adapter: Adapter, wire: WireRequest, rewrite: Rewrite | None = None) -> Prepared:
        """What to record of a request; without `rewrite` it is sent as it is."""
        model = f"{adapter.name}:{wire.parameters.model}"
        row = self.recorder.row_of(model)
        if row is None:
            self.warnings.once(f"model {model[:120]!r} is not in the catalog: nothing is changed, and it has no price")
        with self._lock:
            buffer, move = self._update_draft(adapter, wire, 1.0 if row is None else row.tokens_factor)
            sent = wire if row is None or rewrite is None else rewrite(buffer, row)
            # What the provider cannot be told was left out of our spelling, and a mark on it too.
            breakpoints = tuple(breakpoint for breakpoint in sent.plan.marks if breakpoint.piece < len(buffer.pieces))
            automatic = () if row is None else automatic_mark(sent.parameters, buffer.pieces, breakpoints, row.cache)
            all_breakpoints = (*breakpoints, *automatic)
            if breakpoints:
                self._tails[adapter.name] = breakpoints[-1].piece, buffer.links[breakpoints[-1].piece].digest
            request_head = adapter.opening(sent.parameters)
            return Prepared(
                model=model,
                provider=adapter.name,
                row=row,
                plan=Plan(all_breakpoints),
                links=tuple(buffer.links),
                parameters_digest=digest(request_head),
                body_bytes=len(buffer.render(request_head, breakpoints)),
                tokens=buffer.tokens_total,
                compares=compares(adapter, sent.parameters),
                settings=() if row is None else settings_of(row.provider, row.cache, sent.parameters),
                move=move,
            )

    def tail(self, adapter: Adapter, buffer: Scroll) -> int | None:
        """The last piece that the request before had marked, where this one says the same up to it."""
        block, digest_before = self._tails.get(adapter.name, (-1, ""))
        return block if 0 <= block < len(buffer.links) and buffer.links[block].digest == digest_before else None

    def _update_draft(self, adapter: Adapter, wire: WireRequest, factor: float) -> tuple[Scroll, Move | None]:
        """The request spelled, and how it left the one before, if it did."""
        key = (adapter.name, factor)
        if key not in self._drafts:
            self._drafts[key] = Draft(adapter, lambda encoded: count_block(encoded, factor))
        draft = self._drafts[key]
        previous_links = tuple(draft.scroll.links)
        try:
            draft.update(wire.prompt)
        except BaseException:
            # Half of an update would be taken for the whole of it by the next call.
            del self._drafts[key]
            raise
        shared_blocks = shared_links(previous_links, draft.scroll.links)
        move = draft.move(shared_blocks) if shared_blocks < len(previous_links) else None
        draft.settle()
        self.newest = draft.scroll
        return draft.scroll, move
