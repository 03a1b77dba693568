"""One run of an agent: what it is told at its start, what it asks for, and that it says in the end what it used."""

from collections.abc import Callable
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from holdfast.errors import HoldfastError
from holdfast.events.envelope import Event
from holdfast.instructions.trace import Step, Trace, shortened
from holdfast.runtime.heard_steps import HeardSteps


class Recalls(Protocol):
    """What a recall gives, wherever the instructions are kept."""

    @property
    def audit_token(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]: ...


class SubmitUsage(Protocol):
    def __call__(self, audit_token: str, *, used: tuple[str, ...], missed: tuple[str, ...]) -> None: ...


class SubmitTrace(Protocol):
    def __call__(self, audit_token: str, trace: Trace) -> None: ...


class Preload(msgspec.Struct, frozen=True):
    name: str
    text: str


class Begun(msgspec.Struct, frozen=True):
    """What a signed trigger has loaded."""

    heartbeat_id: str
    preloads: tuple[Preload, ...]
    audit_token: str


class _Open(msgspec.Struct, frozen=True):
    """A recall, and how much had been done before it."""

    token: str
    loaded: tuple[str, ...]
    steps_before: int


Given = TypeVar("Given", bound=Recalls)


class Beat(Generic[Given]):
    """Leave it, and every recall is closed with the units of it that were used; what fails then fails nothing else.

    What the agent did is looked at beside that, where it is known: by `session.subscribe(beat.hear)`, or by `did`.
    """

    def __init__(
        self,
        recall: Callable[[str], Given],
        submit_usage: SubmitUsage,
        submit_trace: SubmitTrace,
        *,
        stub: str,
        begun: Begun | None = None,
    ) -> None:
        self.stub = stub
        self.preloads = begun.preloads if begun else ()
        self._recall = recall
        self._submit = submit_usage
        self._submit_trace = submit_trace
        self._open: list[_Open] = []
        if begun is not None:
            self._open.append(_Open(begun.audit_token, tuple(one.name for one in begun.preloads), 0))
        self._steps = HeardSteps()
        self._used: dict[str, None] = {}
        self._missed: dict[str, None] = {}

    def recall(self, intent: str) -> Given:
        given = self._recall(intent)
        self._open.append(_Open(given.audit_token, given.names, len(self._steps.steps)))
        return given

    def hear(self, event: Event) -> None:
        """A listener for the session that does the work."""
        self._steps.hear(event)

    def did(self, *steps: Step) -> None:
        """What the agent wrote, called and was shown, in order."""
        self._steps.steps.extend(steps)

    def used(self, *names: str) -> None:
        self._used.update(dict.fromkeys(names))

    def missed(self, *names: str) -> None:
        """Units that would have been needed and were not loaded; told with the last recall."""
        self._missed.update(dict.fromkeys(names))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        last = len(self._open) - 1
        for place, one in enumerate(self._open):
            used = tuple(name for name in one.loaded if name in self._used)
            missed = tuple(self._missed) if place == last else ()
            try:
                self._submit(one.token, used=used, missed=missed)
                if done := shortened(self._steps.steps[one.steps_before :]):
                    self._submit_trace(one.token, done)
            except HoldfastError:
                # The record is best effort: a run that went well does not fail for it.
                continue
        self._open.clear()
