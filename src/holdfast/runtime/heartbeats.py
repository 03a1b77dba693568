"""One run of an agent: what it is told at its start, what it asks for, and that it says in the end what it used."""

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self

from holdfast.errors import HoldfastError
from holdfast.instructions.asking import Answered
from holdfast.instructions.heartbeat import Heartbeat, Preloaded


class SubmitUsage(Protocol):
    def __call__(self, audit_token: str, *, used: tuple[str, ...], missed: tuple[str, ...]) -> None: ...


class Beat:
    """Leave it, and every recall is closed with the units of it that were used; what fails then fails nothing else."""

    def __init__(
        self,
        recall: Callable[[str], Answered],
        submit_usage: SubmitUsage,
        *,
        stub: str,
        begun: Heartbeat | None = None,
    ) -> None:
        self.stub = stub
        self.preloads: tuple[Preloaded, ...] = begun.preloads if begun else ()
        self._recall = recall
        self._submit = submit_usage
        self._open: list[tuple[str, tuple[str, ...]]] = []
        if begun is not None:
            self._open.append((begun.audit_token, tuple(one.name for one in begun.preloads)))
        self._used: dict[str, None] = {}
        self._missed: dict[str, None] = {}

    def recall(self, intent: str) -> Answered:
        answered = self._recall(intent)
        self._open.append((answered.audit_token, tuple(one.name for one in answered.recalled.chunks)))
        return answered

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
        for place, (token, loaded) in enumerate(self._open):
            used = tuple(name for name in loaded if name in self._used)
            missed = tuple(self._missed) if place == last else ()
            try:
                self._submit(token, used=used, missed=missed)
            except HoldfastError:
                # The record is best effort: a run that went well does not fail for it.
                continue
        self._open.clear()
