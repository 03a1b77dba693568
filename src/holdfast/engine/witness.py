"""Observes requests written by other clients: encodes them and compares each with the previous one."""

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
"""Rewrites a request: the same prompt with other breakpoints."""


class Witness:
    """Follows the requests of one conversation; blocks encoded for the previous request are reused."""

    def __init__(self, recorder: Recorder, warnings: Warnings) -> None:
        self.recorder = recorder
        self.warnings = warnings
        self._lock = Lock()
        self._drafts: dict[tuple[str, float], Draft] = {}
        self._tails: dict[str, tuple[int, str]] = {}
        self.newest: Scroll | None = None
        """The last prepared request in our encoding; the next request changes it in place."""

    def prepared(self, adapter: Adapter, wire: WireRequest, rewrite: Rewrite | None = None) -> Prepared:
        """The record of a request; without `rewrite` it is sent unchanged."""
        model = f"{adapter.name}:{wire.parameters.model}"
        row = self.recorder.row_of(model)
        if row is None:
            self.warnings.once(
                f"model {model[:120]!r} is not in the catalog: its requests are not rewritten, and it has no price"
            )
        with self._lock:
            buffer, move = self._update_draft(adapter, wire, 1.0 if row is None else row.tokens_factor)
            sent = wire if row is None or rewrite is None else rewrite(buffer, row)
            # Our encoding omits what the provider would not accept, and any breakpoint on it.
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
        """The last breakpoint's block in the previous request, if this request is unchanged up to it."""
        block, digest_before = self._tails.get(adapter.name, (-1, ""))
        return block if 0 <= block < len(buffer.links) and buffer.links[block].digest == digest_before else None

    def _update_draft(self, adapter: Adapter, wire: WireRequest, factor: float) -> tuple[Scroll, Move | None]:
        """The encoded request, and how its prefix changed from the previous one, if it did."""
        key = (adapter.name, factor)
        if key not in self._drafts:
            self._drafts[key] = Draft(adapter, lambda encoded: count_block(encoded, factor))
        draft = self._drafts[key]
        previous_digests = tuple(draft.scroll.links)
        try:
            draft.update(wire.prompt)
        except BaseException:
            # A partial update would be taken for a complete one by the next call.
            del self._drafts[key]
            raise
        shared_blocks = shared_links(previous_digests, draft.scroll.links)
        move = draft.move(shared_blocks) if shared_blocks < len(previous_digests) else None
        draft.settle()
        self.newest = draft.scroll
        return draft.scroll, move
