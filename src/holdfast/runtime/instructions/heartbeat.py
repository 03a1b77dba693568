"""One run of an agent: its boot stub and preloads, its recalls, and the usage report at the end."""

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, Self, TypeVar

import msgspec

from holdfast.errors import HoldfastError
from holdfast.events.log import Event
from holdfast.instructions.usage.trace import StepCollector, Trace, TraceStep, truncate_trace


class RecallResult(Protocol):
    """The result of a recall, from an embedded library or from a service."""

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
    text: str = msgspec.field(name="content")  # The name in the service's response.


class WakeStart(msgspec.Struct, frozen=True):
    """The instructions that a signed wake token loaded at the start of the run."""

    heartbeat_id: str
    preloads: tuple[Preload, ...]
    audit_token: str


class _OpenRecall(msgspec.Struct, frozen=True):
    """A recall whose usage is not reported yet, and the number of steps before it."""

    token: str
    loaded: tuple[str, ...]
    steps_before: int


Recalled = TypeVar("Recalled", bound=RecallResult)


class HeartbeatRun(Generic[Recalled]):
    """A context manager that reports the usage of every recall when it exits; errors of reporting are ignored.

    It also submits the steps that it knows, from `session.subscribe(run.on_event)` or from calls of `add_steps`.
    """

    def __init__(
        self,
        recall: Callable[[str], Recalled],
        submit_usage: SubmitUsage,
        submit_trace: SubmitTrace,
        *,
        stub: str,
        begun: WakeStart | None = None,
    ) -> None:
        self.stub = stub
        self.preloads = begun.preloads if begun else ()
        self._recall = recall
        self._submit = submit_usage
        self._submit_trace = submit_trace
        self._open_recalls: list[_OpenRecall] = []
        if begun is not None:
            names = tuple(preload.name for preload in begun.preloads)
            self._open_recalls.append(_OpenRecall(begun.audit_token, names, 0))
        self._steps = StepCollector()
        self._used: dict[str, None] = {}
        self._missed: dict[str, None] = {}

    def recall(self, intent: str) -> Recalled:
        recalled = self._recall(intent)
        self._open_recalls.append(_OpenRecall(recalled.audit_token, recalled.names, len(self._steps.steps)))
        return recalled

    def on_event(self, event: Event) -> None:
        """Listen to the events of the session that does the work."""
        self._steps.on_event(event)

    def add_steps(self, *steps: TraceStep) -> None:
        """Add steps in order: what the agent wrote, which tools it called, and what they returned."""
        self._steps.steps.extend(steps)

    def report_used(self, *names: str) -> None:
        self._used.update(dict.fromkeys(names))

    def report_missed(self, *names: str) -> None:
        """Report units that were needed but not loaded; they are submitted with the last recall."""
        self._missed.update(dict.fromkeys(names))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        last = len(self._open_recalls) - 1
        for index, open_recall in enumerate(self._open_recalls):
            if not open_recall.token:
                continue  # Its record could not be written.
            used = tuple(name for name in open_recall.loaded if name in self._used)
            missed = tuple(self._missed) if index == last else ()
            # The audit record is best effort: it must not fail a run that succeeded.
            with suppress(HoldfastError):
                self._submit(open_recall.token, used=used, missed=missed)
                if trace_steps := truncate_trace(self._steps.steps[open_recall.steps_before :]):
                    self._submit_trace(open_recall.token, trace_steps)
        self._open_recalls.clear()
