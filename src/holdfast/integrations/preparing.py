"""What is sent in the place of a call, and what is recorded of it; sent as it was where we cannot read it."""

from collections.abc import Callable
from threading import Lock

from holdfast.canonical.encoding import digest, plain_json
from holdfast.canonical.moves import Move
from holdfast.canonical.pieces import shared_links
from holdfast.canonical.prompt import Plan
from holdfast.canonical.scroll import Scroll
from holdfast.catalog.rows import Model
from holdfast.catalog.tokens import count_block
from holdfast.engine.draft import Draft
from holdfast.integrations.dialect import Dialect, Request, Rewritten
from holdfast.integrations.faults import Warnings
from holdfast.integrations.plain import Arguments, body_of, settled
from holdfast.integrations.recorder import Prepared, Recorder
from holdfast.providers.adapter import PATH, Adapter, WireRequest
from holdfast.providers.diagnosing import compares
from holdfast.providers.tier_parameters import settings_of

_SENT_AS_IT_WAS = "a call is sent as it was written, without marks and unrecorded"


class Desk:
    """Prepares the calls of one wrapped client; what was spelled for the call before is not spelled again."""

    def __init__(self, recorder: Recorder, warnings: Warnings, *, session: str | None) -> None:
        self.recorder = recorder
        self.warnings = warnings
        self._session = session
        self._lock = Lock()
        self._drafts: dict[tuple[str, float], Draft] = {}
        self._tails: dict[str, tuple[int, str]] = {}

    def prepare(self, dialect: Dialect, given: Arguments) -> tuple[Arguments, Prepared | None]:
        """The arguments to send, and what to record; no record where the arguments could not be read."""
        # Not guarded: what the caller's own iterator raises is the caller's, as it would be without us.
        arguments: Arguments = {name: settled(value) for name, value in given.items()}
        with self.warnings.harmless(_SENT_AS_IT_WAS):
            body = body_of(arguments, left_out=dialect.left_out)
            wire = dialect.adapter.read_request(plain_json(body))

            def rewrite(scroll: Scroll, row: Model) -> Rewritten:
                tail = self._tail(dialect.adapter, scroll)
                return dialect.rewrite(arguments, Request(body, wire, scroll, row, self._session_of(wire), tail))

            rewritten, prepared = self._spell(dialect.adapter, Rewritten(arguments, wire), rewrite)
            return rewritten.arguments, prepared
        return arguments, None

    def read(self, adapter: Adapter, body: bytes, path: str) -> Prepared | None:
        """What to record of a body that is sent as it is."""
        with self.warnings.harmless("a call is not recorded"):
            wire = adapter.read_request(body, {PATH: path})
            as_it_is = Rewritten({}, wire)
            return self._spell(adapter, as_it_is, lambda scroll, row: as_it_is)[1]
        return None

    def _spell(
        self, adapter: Adapter, written: Rewritten, rewrite: Callable[[Scroll, Model], Rewritten]
    ) -> tuple[Rewritten, Prepared]:
        model = f"{adapter.name}:{written.wire.parameters.model}"
        row = self.recorder.row_of(model)
        if row is None:
            self.warnings.once(f"model {model[:120]!r} is not in the catalog: nothing is changed, and it has no price")
        with self._lock:
            scroll, move = self._scroll(adapter, written.wire, 1.0 if row is None else row.tokens_factor)
            rewritten = written if row is None else rewrite(scroll, row)
            # What the provider cannot be told was left out of our spelling, and a mark on it too.
            marks = tuple(mark for mark in rewritten.wire.plan.marks if mark.piece < len(scroll.pieces))
            if marks:
                self._tails[adapter.name] = marks[-1].piece, scroll.links[marks[-1].piece].digest
            opening = adapter.opening(rewritten.wire.parameters)
            prepared = Prepared(
                model=model,
                provider=adapter.name,
                row=row,
                plan=Plan(marks),
                links=tuple(scroll.links),
                parameters_digest=digest(opening),
                body_bytes=len(scroll.render(opening, marks)),
                tokens=scroll.tokens_total,
                compares=compares(adapter, rewritten.wire.parameters),
                settings=() if row is None else settings_of(row.provider, row.cache, rewritten.wire.parameters),
                move=move,
            )
        return rewritten, prepared

    def _session_of(self, wire: WireRequest) -> str:
        """What all calls of this client have in common; by default the first system text that it sent."""
        if self._session is None:
            texts = (text.text for segment in wire.prompt.segments for text in segment.system if text.text)
            first = next(texts, self.recorder.session_id)
            self._session = f"holdfast-{digest(first.encode(errors='replace'))[:32]}"
        return self._session

    def _tail(self, adapter: Adapter, scroll: Scroll) -> int | None:
        piece, known = self._tails.get(adapter.name, (-1, ""))
        return piece if 0 <= piece < len(scroll.links) and scroll.links[piece].digest == known else None

    def _scroll(self, adapter: Adapter, wire: WireRequest, factor: float) -> tuple[Scroll, Move | None]:
        """The request spelled, and how it left the one before, if it did."""
        key = (adapter.name, factor)
        if key not in self._drafts:
            self._drafts[key] = Draft(adapter, lambda spelled: count_block(spelled, factor))
        draft = self._drafts[key]
        before = tuple(draft.scroll.links)
        try:
            draft.update(wire.prompt)
        except BaseException:
            # Half of an update would be taken for the whole of it by the next call.
            del self._drafts[key]
            raise
        shared = shared_links(before, draft.scroll.links)
        move = draft.move(shared) if shared < len(before) else None
        draft.settle()
        return draft.scroll, move
