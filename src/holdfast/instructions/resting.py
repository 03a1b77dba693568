"""How long work that nobody waits for lets others go first: as long as it worked, and until it is told to end."""

from collections.abc import Callable

Rest = Callable[[], bool]
"""Called between two pieces of work; False says that there is to be no other."""


def no_rest() -> bool:
    return True


class Turns:
    """Half of the time is left to those who wait for an answer. `pause` takes seconds, and says whether to end."""

    def __init__(self, pause: Callable[[float], bool], clock: Callable[[], float]) -> None:
        self._pause = pause
        self._clock = clock
        self._began = clock()

    def rest(self) -> bool:
        ended = self._pause(self._clock() - self._began)
        self._began = self._clock()
        return not ended
