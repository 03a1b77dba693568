"""The perturbations under which a prompt is built again to see what it depends on; each changes one thing."""

from typing import Literal

import msgspec

Cause = Literal[
    "clock", "random", "set order", "unsorted JSON keys", "environment", "directory order",
    "locale", "time zone", "working folder", "object address", "something else",
]  # fmt: skip

ADVICE: dict[Cause, str] = {
    "clock": "it contains the time; pass the time as an argument and put it after the stable part",
    "random": "it contains a uuid or another random value; create it once per session",
    "set order": "it writes out a set, or something else in hash order; sort it",
    "unsorted JSON keys": "it writes the members of an object in a different order each time; sort the keys",
    "environment": "it contains an environment variable",
    "directory order": "it lists files in the order of the file system; sort them",
    "locale": "it depends on the locale",
    "time zone": "it depends on the time zone",
    "working folder": "it contains the folder it was started in",
    "object address": "it contains the address of an object, as repr() shows it; write out the object's fields",
    "something else": "two equal runs differ: a process id, a timer, a thread, or an outside source",
}

# Two fixed moments that differ in every component, so that a prompt with any part of the time in it changes.
FIRST_TIME = 1_790_000_000.25
OTHER_TIME = FIRST_TIME + 400 * 86_400 + 19_427.5


class Perturbation(msgspec.Struct, frozen=True):
    """One environment to run in; `changed` names its difference from the first one, None if there is none.

    `clock` and `random_seed` are None to use the real ones.
    """

    changed: Cause | None = None
    clock: float | None = FIRST_TIME
    random_seed: str | None = "first"
    hash_seed: int = 0
    locale: str = "C.UTF-8"
    time_zone: str = "UTC"
    other_folder: bool = False
    folder_order: Literal["sorted", "reversed"] = "sorted"
    variables: tuple[tuple[str, str], ...] = ()


UNPERTURBED = Perturbation()


def list_perturbations(runs: int, first: Perturbation = UNPERTURBED) -> tuple[Perturbation, ...]:
    """All perturbations of the first environment, unchanged repetitions first; hash seeds are tried `runs` times."""

    def with_changes(**changes: object) -> Perturbation:
        return msgspec.structs.replace(first, **changes)

    repetitions = [with_changes(changed=None) for _ in range(max(1, runs - 1))]
    hash_seeds = [with_changes(changed="set order", hash_seed=seed) for seed in range(1, runs + 1)]
    random = [with_changes(changed="random", random_seed="second")] if first.random_seed is not None else []
    clock = [with_changes(changed="clock", clock=OTHER_TIME)] if first.clock is not None else []
    return (
        *repetitions,
        *clock,
        *random,
        *hash_seeds,
        with_changes(changed="directory order", folder_order="reversed"),
        with_changes(changed="time zone", time_zone="JST-9"),
        with_changes(changed="locale", locale="de_DE.UTF-8"),
        with_changes(changed="working folder", other_folder=True),
    )
