"""The program that runs somebody's prompt-building function once, in a world that was changed on purpose.

It is started by its path, not imported: nothing of Holdfast and as little as possible of the standard library is
loaded before the world is changed, because a module that has been loaded keeps the clock it was loaded with.
"""

import os
import sys
import time


def main(arguments: list[str]) -> None:
    """`arguments`: where to write, the folder to import from, the target, and what to change as name=value."""
    answer_path, import_from, target, *changes = arguments
    world = dict(change.split("=", 1) for change in changes)
    read: set[str] = set()
    if "clock" in world:
        freeze_clock(float(world["clock"]))
    if "chance" in world:
        fix_chance(world["chance"].encode())
    if "folders" in world:
        order_folders(backwards=world["folders"] == "backwards")
    if "environment" in world:
        watch_environment(read)
    sys.path.insert(0, import_from)
    kind, said = answer(target, bytes_max=int(world["bytes_max"]))
    with open(answer_path, "wb") as file:
        file.write(kind.encode() + b"\n" + "\t".join(sorted(read)).encode(errors="replace") + b"\n" + said)


def answer(target: str, *, bytes_max: int) -> tuple[str, bytes]:
    """What the function returns, as bytes, behind the kind of value; or why there is none."""
    import importlib  # noqa: PLC0415 - after the world was changed

    module_name, _, function_name = target.partition(":")
    try:
        found: object = importlib.import_module(module_name)
        for name in function_name.split("."):
            found = getattr(found, name)
        if not callable(found):
            return "missing", f"{function_name} is no function".encode(errors="replace")
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        own = module_name == missing or module_name.startswith(f"{missing}.")
        return ("missing" if own else "raised"), f"there is no module {missing}".encode(errors="replace")
    except AttributeError as error:
        return "missing", str(error).encode(errors="replace")
    except BaseException as error:  # noqa: BLE001 - whatever the module does when it is loaded
        return "raised", _named(error)
    try:
        kind, said = _spelled(_settled(found()))
    except BaseException as error:  # noqa: BLE001 - whatever the function does
        return "raised", _named(error)
    if len(said) > bytes_max:
        return "raised", f"what it returns has more than {bytes_max} bytes".encode()
    return kind, said


def _settled(value: object) -> object:
    import types  # noqa: PLC0415 - after the world was changed

    if not isinstance(value, types.CoroutineType):
        return value
    import asyncio  # noqa: PLC0415 - takes long to load, and is seldom needed

    return asyncio.run(value)


def _spelled(value: object) -> tuple[str, bytes]:
    if isinstance(value, bytes):
        return "bytes", value
    if isinstance(value, str):
        return "text", value.encode(errors="surrogatepass")
    import json  # noqa: PLC0415 - after the world was changed

    try:
        return "json", json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    except (TypeError, ValueError) as error:
        raise TypeError(f"what it returns is neither text nor JSON ({error})") from None


def _named(error: BaseException) -> bytes:
    return f"{type(error).__name__}: {error}"[:2000].encode(errors="replace")


def freeze_clock(start: float) -> None:
    """Time stands at `start` and moves by a microsecond whenever somebody looks, the same in every run."""
    looks = iter(range(10**15))

    def now() -> float:
        return start + next(looks) / 1_000_000

    def at_now(function: object) -> object:
        def asked(seconds: float | None = None) -> object:
            assert callable(function)
            return function(now() if seconds is None else seconds)

        return asked

    real_strftime, real_localtime, real_asctime = time.strftime, time.localtime, time.asctime
    changed = {
        "time": now,
        "time_ns": lambda: int(now() * 1_000_000) * 1000,
        "localtime": at_now(time.localtime),
        "gmtime": at_now(time.gmtime),
        "ctime": at_now(time.ctime),
        "strftime": lambda layout, moment=None: real_strftime(layout, moment or real_localtime(now())),
        "asctime": lambda moment=None: real_asctime(moment or real_localtime(now())),
    }
    for name, function in changed.items():
        setattr(time, name, function)
    _freeze_datetime(now)


def _freeze_datetime(now: object) -> None:
    import datetime as module  # noqa: PLC0415 - it must be loaded here and not sooner

    assert callable(now)
    read_clock = now
    stands_for: dict[type, type] = {}

    class Like(type):
        """Values that the C code of the standard library makes are of the real types, and pass for these."""

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, stands_for[cls]) if cls in stands_for else super().__instancecheck__(value)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, stands_for[cls]) if cls in stands_for else super().__subclasscheck__(other)

    class Date(module.date, metaclass=Like):
        @classmethod
        def today(cls) -> "Date":
            return cls.fromtimestamp(read_clock())

    class DateTime(module.datetime, metaclass=Like):
        @classmethod
        def now(cls, tz: module.tzinfo | None = None) -> "DateTime":
            return cls.fromtimestamp(read_clock(), tz)

        @classmethod
        def today(cls) -> "DateTime":
            return cls.fromtimestamp(read_clock())

        @classmethod
        def utcnow(cls) -> "DateTime":
            return cls.fromtimestamp(read_clock(), module.UTC).replace(tzinfo=None)

    made: dict[str, type] = {"date": Date, "datetime": DateTime}
    for name, changed in made.items():
        changed.__name__ = changed.__qualname__ = name
        changed.__module__ = "datetime"
        stands_for[changed] = getattr(module, name)
        setattr(module, name, changed)


def fix_chance(seed: bytes) -> None:
    """What the system offers as random follows from the seed; `uuid4`, `secrets` and `random` take it from there."""
    import hashlib  # noqa: PLC0415 - after the clock was changed

    counted = iter(range(10**15))

    def bytes_of(size: int) -> bytes:
        drawn = b""
        while len(drawn) < size:
            drawn += hashlib.sha256(seed + str(next(counted)).encode()).digest()
        return drawn[:size]

    os.urandom = bytes_of
    import random  # noqa: PLC0415 - it keeps the function that it finds

    random.seed(seed)


class _Listing:
    """What `os.scandir` gives, in an order of ours."""

    def __init__(self, entries: list["os.DirEntry[str]"]) -> None:
        self._left = iter(entries)

    def __iter__(self) -> "_Listing":
        return self

    def __next__(self) -> "os.DirEntry[str]":
        return next(self._left)

    def __enter__(self) -> "_Listing":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._left = iter(())


def order_folders(*, backwards: bool) -> None:
    real_listdir, real_scandir = os.listdir, os.scandir

    def listdir(path: str = ".") -> list[str]:
        return sorted(real_listdir(path), reverse=backwards)

    def scandir(path: str = ".") -> _Listing:
        with real_scandir(path) as entries:
            return _Listing(sorted(entries, key=lambda entry: entry.name, reverse=backwards))

    os.listdir = listdir  # type: ignore[assignment]  # a changed world keeps no overloads
    os.scandir = scandir  # type: ignore[assignment]


def watch_environment(read: set[str]) -> None:
    """Remember the names of the variables that are looked at; their values are nobody's business."""
    kind = type(os.environ)
    real = kind.__getitem__

    def looked_up(self: "os._Environ[str]", key: str) -> str:
        read.add(str(key))
        return real(self, key)

    kind.__getitem__ = looked_up  # type: ignore[method-assign]


if __name__ == "__main__":
    main(sys.argv[1:])
