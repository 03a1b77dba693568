"""In which worlds a prompt is built again to see what it depends on: each differs from the first in one thing."""

from typing import Literal

import msgspec

Cause = Literal[
    "clock", "random", "set order", "unsorted JSON keys", "environment", "directory order",
    "locale", "time zone", "working folder", "object address", "something else",
]  # fmt: skip

ADVICE: dict[Cause, str] = {
    "clock": "the time is in it; give it as an argument, behind what is stable",
    "random": "a uuid or another random value is in it; make it once per session",
    "set order": "a set, or what hashing orders, is written out; sort it",
    "unsorted JSON keys": "an object's members come in another order each time; sort the keys",
    "environment": "an environment variable is in it",
    "directory order": "files come in the order in which the disk lists them; sort them",
    "locale": "the locale is in it",
    "time zone": "the time zone is in it",
    "working folder": "the folder it was started in is in it",
    "object address": "the address of an object is in it, as by repr(); write out its fields",
    "something else": "two equal runs differ: a process id, a stopwatch, a thread, or something from outside",
}

NOON = 1_790_000_000.25
ANOTHER_DAY = NOON + 400 * 86_400 + 19_427.5


class World(msgspec.Struct, frozen=True):
    """`clock` and `chance` are None where they are the real ones. `changed` is what differs from the first world."""

    changed: str = "nothing"
    clock: float | None = NOON
    chance: str | None = "first"
    hash_seed: int = 0
    locale: str = "C.UTF-8"
    time_zone: str = "UTC"
    elsewhere: bool = False
    folders: Literal["sorted", "backwards"] = "sorted"
    variables: tuple[tuple[str, str], ...] = ()


FIRST = World()


def worlds(runs: int, first: World = FIRST) -> tuple[World, ...]:
    """The worlds beside the first, the plain repetitions in front; chances are tried `runs` times."""

    def but(**changes: object) -> World:
        return msgspec.structs.replace(first, **changes)

    repeated = [but(changed="nothing") for _ in range(max(1, runs - 1))]
    hashed = [but(changed="set order", hash_seed=seed) for seed in range(1, runs + 1)]
    drawn = [but(changed="random", chance="second")] if first.chance is not None else []
    clock = [but(changed="clock", clock=ANOTHER_DAY)] if first.clock is not None else []
    return (
        *repeated,
        *clock,
        *drawn,
        *hashed,
        but(changed="directory order", folders="backwards"),
        but(changed="time zone", time_zone="JST-9"),
        but(changed="locale", locale="de_DE.UTF-8"),
        but(changed="working folder", elsewhere=True),
    )
