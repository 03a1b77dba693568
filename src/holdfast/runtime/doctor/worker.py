"""The worker process of `holdfast doctor`: runs a prompt-building function once, in a perturbed environment.

It is started by its path, not imported: neither Holdfast nor most of the standard library may be loaded before the
environment is changed, because a loaded module keeps the clock function that it imported.
"""

import os
import sys
import time


def run_worker(arguments: list[str]) -> None:
    """`arguments`: the result file, the folder to import from, the target, and the changes as name=value."""
    result_path, import_from, target, *changes = arguments
    settings = dict(change.split("=", 1) for change in changes)
    variables_read: set[str] = set()
    if "clock" in settings:
        freeze_clock(float(settings["clock"]))
    if "random_seed" in settings:
        seed_randomness(settings["random_seed"].encode())
    if "folder_order" in settings:
        sort_listings(descending=settings["folder_order"] == "reversed")
    if "environment" in settings:
        watch_environment(variables_read)
    sys.path.insert(0, import_from)
    kind, content = run_target(target, bytes_max=int(settings["bytes_max"]))
    with open(result_path, "wb") as file:
        file.write(kind.encode() + b"\n" + "\t".join(sorted(variables_read)).encode(errors="replace") + b"\n" + content)


def run_target(target: str, *, bytes_max: int) -> tuple[str, bytes]:
    """The kind of the returned value and its bytes; or the kind of failure and its description."""
    import importlib  # noqa: PLC0415 - after the environment was changed

    module_name, _, function_name = target.partition(":")
    try:
        function: object = importlib.import_module(module_name)
        for name in function_name.split("."):
            function = getattr(function, name)
        if not callable(function):
            return "missing", f"{function_name} is not a function".encode(errors="replace")
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        own = module_name == missing or module_name.startswith(f"{missing}.")
        return ("missing" if own else "raised"), f"there is no module {missing}".encode(errors="replace")
    except AttributeError as error:
        return "missing", str(error).encode(errors="replace")
    except BaseException as error:  # noqa: BLE001 - whatever the module does when it is loaded
        return "raised", _describe_error(error)
    try:
        kind, content = _encode_result(_await_result(function()))
    except BaseException as error:  # noqa: BLE001 - whatever the function does
        return "raised", _describe_error(error)
    if len(content) > bytes_max:
        return "raised", f"what it returns has more than {bytes_max} bytes".encode()
    return kind, content


def _await_result(value: object) -> object:
    import types  # noqa: PLC0415 - after the environment was changed

    if not isinstance(value, types.CoroutineType):
        return value
    import asyncio  # noqa: PLC0415 - takes long to load, and is seldom needed

    return asyncio.run(value)


def _encode_result(value: object) -> tuple[str, bytes]:
    if isinstance(value, bytes):
        return "bytes", value
    if isinstance(value, str):
        return "text", value.encode(errors="surrogatepass")
    import json  # noqa: PLC0415 - after the environment was changed

    try:
        return "json", json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    except (TypeError, ValueError) as error:
        raise TypeError(f"what it returns is neither text nor JSON ({error})") from None


def _describe_error(error: BaseException) -> bytes:
    return f"{type(error).__name__}: {error}"[:2000].encode(errors="replace")


def freeze_clock(start: float) -> None:
    """Make the clock start at `start` and advance a microsecond per reading, so that every run sees the same times."""
    readings = iter(range(10**15))

    def now() -> float:
        return start + next(readings) / 1_000_000

    def at_now(function: object) -> object:
        def call(seconds: float | None = None) -> object:
            assert callable(function)
            return function(now() if seconds is None else seconds)

        return call

    # strftime and asctime read the clock in C, not through time.time, so they get the time explicitly.
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
    real_types: dict[type, type] = {}

    class PatchedType(type):
        """Makes values of the real types, as C code of the standard library creates them, pass isinstance checks."""

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, real_types[cls]) if cls in real_types else super().__instancecheck__(value)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, real_types[cls]) if cls in real_types else super().__subclasscheck__(other)

    class Date(module.date, metaclass=PatchedType):
        @classmethod
        def today(cls) -> "Date":
            return cls.fromtimestamp(read_clock())

    class DateTime(module.datetime, metaclass=PatchedType):
        @classmethod
        def now(cls, tz: module.tzinfo | None = None) -> "DateTime":
            return cls.fromtimestamp(read_clock(), tz)

        @classmethod
        def today(cls) -> "DateTime":
            return cls.fromtimestamp(read_clock())

        @classmethod
        def utcnow(cls) -> "DateTime":
            return cls.fromtimestamp(read_clock(), module.UTC).replace(tzinfo=None)

    patched: dict[str, type] = {"date": Date, "datetime": DateTime}
    for name, changed in patched.items():
        changed.__name__ = changed.__qualname__ = name
        changed.__module__ = "datetime"
        real_types[changed] = getattr(module, name)
        setattr(module, name, changed)


def seed_randomness(seed: bytes) -> None:
    """Derive `os.urandom` from the seed, which `uuid4`, `secrets` and `random` use."""
    import hashlib  # noqa: PLC0415 - after the clock was changed

    counter = iter(range(10**15))

    def seeded_bytes(size: int) -> bytes:
        content = b""
        while len(content) < size:
            content += hashlib.sha256(seed + str(next(counter)).encode()).digest()
        return content[:size]

    os.urandom = seeded_bytes
    import random  # noqa: PLC0415 - it binds os.urandom when it is imported

    random.seed(seed)


class _SortedScan:
    """An iterator like that of `os.scandir`, in a given order."""

    def __init__(self, entries: list["os.DirEntry[str]"]) -> None:
        self._remaining = iter(entries)

    def __iter__(self) -> "_SortedScan":
        return self

    def __next__(self) -> "os.DirEntry[str]":
        return next(self._remaining)

    def __enter__(self) -> "_SortedScan":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._remaining = iter(())


def sort_listings(*, descending: bool) -> None:
    """Make `os.listdir` and `os.scandir` list names in ascending or descending order."""
    real_listdir, real_scandir = os.listdir, os.scandir

    def listdir(path: str = ".") -> list[str]:
        return sorted(real_listdir(path), reverse=descending)

    def scandir(path: str = ".") -> _SortedScan:
        with real_scandir(path) as entries:
            return _SortedScan(sorted(entries, key=lambda entry: entry.name, reverse=descending))

    os.listdir = listdir  # type: ignore[assignment]  # The replacement does not repeat the overloads.
    os.scandir = scandir  # type: ignore[assignment]


def watch_environment(read: set[str]) -> None:
    """Record the names of the variables that are read. Values are not recorded: they may be secrets."""
    kind = type(os.environ)
    real = kind.__getitem__

    def get_and_record(self: "os._Environ[str]", key: str) -> str:
        read.add(str(key))
        return real(self, key)

    kind.__getitem__ = get_and_record  # type: ignore[method-assign]


if __name__ == "__main__":
    run_worker(sys.argv[1:])
