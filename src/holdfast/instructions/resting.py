"""Let background work yield: pause between units of work for as long as the last one took, until asked to stop."""

from collections.abc import Callable

Rest = Callable[[], bool]
"""Called between two units of work; False means stop."""


def no_rest() -> bool:
    return True


class Turns:
    """Leave half of the time to foreground requests. `pause` sleeps for some seconds and returns whether to stop."""

    def __init__(self, pause: Callable[[float], bool], clock: Callable[[], float]) -> None:
        self._pause = pause
        self._clock = clock
        self._started = clock()

    def rest(self) -> bool:
        # Resting exactly as long as the work took leaves half of the time to requests.
        is_stopped = self._pause(self._clock() - self._started)
        self._started = self._clock()
        return not is_stopped
