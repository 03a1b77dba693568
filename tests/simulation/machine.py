"""A machine in simulated time: threads of which one runs at a time, processes that can be killed, pipes, a clock.

Threads are real ones that pass a baton. One that waits (for a condition, a pipe, a timer) gives the baton back, and the
machine chooses by its seed who runs next; if nobody can, time moves to the next timer. So every run of a seed is the
same, and code that uses `threading` runs unchanged with the primitives of this module in the place of its own.
"""

import asyncio
import asyncio.base_events
import heapq
import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from itertools import count
from typing import IO, Any, TypeVar, cast

STUCK_SECONDS_MAX = 60.0
"""Real time after which a thread that does not give the baton back waits for something that is not simulated."""

WALL_CLOCK_START = 1_800_000_000.0
T = TypeVar("T")


class ProcessKilled(BaseException):
    """Unwinds the threads of a dead process when the machine is switched off."""


class SimulationError(Exception):
    """The simulation itself cannot continue."""


class Waiter:
    """What one thread waits for at the moment."""

    def __init__(self, thread: "SimulatedThread") -> None:
        self.thread = thread
        self.is_over = False
        self.is_notified = False

    def release(self) -> None:
        """As a lock of `threading.Condition` is released to notify its waiter."""
        self.is_notified = True
        self.thread.machine.end_wait(self)


class Machine:
    """Only the thread with the baton changes anything here, so nothing is locked."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.wall_offset = WALL_CLOCK_START
        self.trace: list[str] = []
        self.failure: BaseException | None = None
        self.is_off = False
        self._numbers = count()
        self._ready: list[SimulatedThread] = []
        self._timers: list[tuple[float, int, Waiter]] = []
        self._baton = threading.Semaphore(0)
        self._threads: list[SimulatedThread] = []
        self.steps = 0

    def read_wall_clock(self) -> float:
        return self.wall_offset + self.now

    def note(self, text: str) -> None:
        self.trace.append(f"{self.now:10.4f}  {text}")

    def run(self, is_done: Callable[[], bool], *, seconds_max: float) -> None:
        """Raises the first failure, and SimulationError if it does not end in time."""
        while self.failure is None and not is_done():
            if self._ready:
                thread = self._ready.pop(self.random.randrange(len(self._ready)))
                if thread.process.is_alive:
                    self.steps += 1
                    self._pass_baton(thread)
                continue
            if not self._timers:
                raise SimulationError("every thread waits for another one")
            at, _, waiter = heapq.heappop(self._timers)
            if waiter.is_over or not waiter.thread.process.is_alive:
                continue
            if at > seconds_max:
                raise SimulationError(f"it has not ended after {seconds_max:.0f} simulated seconds")
            self.now = max(self.now, at)
            self.end_wait(waiter)
        if self.failure is not None:
            raise self.failure

    def switch_off(self) -> None:
        """Ends all threads; what they do while they unwind has no effect that anybody looks at."""
        self.is_off = True
        for thread in self._threads:
            if not thread.is_finished:
                self._pass_baton(thread)
            threading.Thread.join(thread)
        self._threads.clear()
        self._ready.clear()
        self._timers.clear()

    def add(self, thread: "SimulatedThread") -> None:
        self._threads.append(thread)
        self._ready.append(thread)

    def end_wait(self, waiter: Waiter) -> None:
        if not waiter.is_over:
            waiter.is_over = True
            self._ready.append(waiter.thread)

    def wait(self, waiter: Waiter, seconds: float | None) -> bool:
        """Gives the baton away until the waiter is notified; false if the time has passed first."""
        thread = waiter.thread
        if self.is_off:
            raise ProcessKilled
        if seconds is not None:
            heapq.heappush(self._timers, (self.now + max(seconds, 0.0), next(self._numbers), waiter))
        self._baton.release()
        thread.baton.acquire()
        if self.is_off:
            raise ProcessKilled
        return waiter.is_notified

    def sleep(self, seconds: float) -> None:
        self.wait(Waiter(current()), seconds)

    def leave(self) -> None:
        """The current thread ends."""
        self._baton.release()

    def _pass_baton(self, thread: "SimulatedThread") -> None:
        thread.baton.release()
        if not self._baton.acquire(timeout=STUCK_SECONDS_MAX):
            raise SimulationError(f"{thread.name} of {thread.process.name} is stuck outside of the simulation")


def current() -> "SimulatedThread":
    return cast("SimulatedThread", threading.current_thread())


class Process:
    """A simulated process: its threads run until it ends or is killed; then its locks and pipes are released."""

    def __init__(self, machine: Machine, name: str, main: Callable[[], None]) -> None:
        self.machine = machine
        self.name = name
        self.is_alive = True
        self.stdin, self.stdout = Pipe(machine), Pipe(machine)
        self.loop: SimulatedLoop | None = None
        self.locks: list[IO[bytes]] = []
        self.children: list[Process] = []
        self.on_end: list[Callable[[], None]] = []
        self._main = main
        self._ended = SimulatedEvent()
        SimulatedThread(target=self._run_main, name="main", process=self).start()

    def kill(self) -> None:
        """As SIGKILL: nothing of the process runs any more. Its files stay as they are."""
        if not self.is_alive:
            return
        self.is_alive = False
        for file in self.locks:
            file.close()
        self.stdout.close()
        self.stdin.close()
        for child in self.children:
            child.stdin.close()
        for callback in self.on_end:
            callback()
        self._ended.set()

    def kill_from_inside(self) -> None:
        """For a thread of the process itself, which does not continue."""
        self.kill()
        self.machine.wait(Waiter(current()), None)

    def wait(self, seconds: float | None = None) -> bool:
        return self._ended.wait(seconds)

    def _run_main(self) -> None:
        try:
            self._main()
        finally:
            if not self.machine.is_off:
                self.kill()


class Pipe:
    """One end writes, the other reads; both may be asked as a file object."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._bytes = bytearray()
        self._is_closed = False
        self._changed = SimulatedCondition()

    def fileno(self) -> "Pipe":
        """In the place of a number: the simulated `os` and `select` take the pipe itself."""
        return self

    def write(self, data: bytes) -> int:
        if self._is_closed:
            raise BrokenPipeError
        with self._changed:
            self._bytes += data
            self._changed.notify_all()
        return len(data)

    def flush(self) -> None:
        """Nothing is buffered."""

    def read(self, size: int) -> bytes:
        """Waits until it has all bytes, or the other end is closed."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._bytes) >= size or self._is_closed)
            return self.take(size)

    def take(self, size: int) -> bytes:
        """What is there."""
        taken = bytes(self._bytes[:size])
        del self._bytes[:size]
        return taken

    def wait_until_readable(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._bytes) or self._is_closed, seconds)

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def __enter__(self) -> "Pipe":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class SimulatedThread(threading.Thread):
    """Belongs to the process of the thread that makes it."""

    def __init__(
        self,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        *,
        args: tuple[object, ...] = (),
        daemon: bool | None = None,
        process: Process | None = None,
    ) -> None:
        super().__init__(target=target, name=name, args=args, daemon=True)
        self.process: Process = process or current().process
        self.machine = self.process.machine
        self.baton = threading.Semaphore(0)
        self.is_finished = False
        self._joiners: list[Waiter] = []

    def start(self) -> None:
        self.machine.add(self)
        super().start()

    def run(self) -> None:
        self.baton.acquire()
        machine = self.machine
        try:
            if not machine.is_off:
                super().run()
        except ProcessKilled:
            pass
        except BaseException as error:  # noqa: BLE001 - a bug; reported with the trace
            if not machine.is_off:
                machine.failure = machine.failure or error
        finally:
            self.is_finished = True
            for waiter in self._joiners:
                waiter.release()
            machine.leave()

    def join(self, timeout: float | None = None) -> None:
        if not self.is_finished and not self.machine.is_off:
            waiter = Waiter(current())
            self._joiners.append(waiter)
            self.machine.wait(waiter, timeout)


class SimulatedCondition(threading.Condition):
    def wait(self, timeout: float | None = None) -> bool:
        thread = current()
        waiter = Waiter(thread)
        waiters = cast("deque[Waiter]", self._waiters)  # type: ignore[attr-defined]
        waiters.append(waiter)
        saved = self._release_save()  # type: ignore[attr-defined]
        try:
            return thread.machine.wait(waiter, timeout)
        finally:
            self._acquire_restore(saved)  # type: ignore[attr-defined]
            with suppress(ValueError):
                waiters.remove(waiter)

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        machine = current().machine
        deadline = None if timeout is None else machine.now + timeout
        while not (result := predicate()):
            left = None if deadline is None else deadline - machine.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result


class SimulatedEvent(threading.Event):
    def __init__(self) -> None:
        super().__init__()
        self._cond = SimulatedCondition(threading.Lock())


class SimulatedExecutor(Executor):
    """Runs jobs on the loop of their process, each after a time of its own, in the place of threads."""

    def __init__(self, workers_max: int | None = None, thread_name_prefix: str = "", *, delay: "DrawDelay") -> None:
        self._delay = delay

    def submit(self, job: Callable[..., T], /, *arguments: Any, **named: Any) -> "Future[T]":
        done: Future[T] = Future()
        thread = threading.current_thread()
        if isinstance(thread, SimulatedThread) and not thread.machine.is_off and thread.process.loop is not None:
            thread.process.loop.call_later(self._delay(), _run_job, done, lambda: job(*arguments, **named))
        return done

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Jobs that have not run yet are forgotten, as when a process ends."""


DrawDelay = Callable[[], float]


def _run_job(done: "Future[T]", job: Callable[[], T]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(job())
    except Exception as error:  # noqa: BLE001 - whoever waits for the job gets it
        done.set_exception(error)


Connect = Callable[["SimulatedLoop", Callable[[], asyncio.Protocol], str, int], Any]


class SimulatedLoop(asyncio.base_events.BaseEventLoop):
    """The event loop of one process; its timers are the machine's, its connections those of `connect`."""

    def __init__(self, process: Process, executor: Executor, connect: Connect) -> None:
        super().__init__()
        self._process = process
        self._executor = executor
        self._connect = connect
        self._waiter: Waiter | None = None
        self._is_woken = False
        self._selector = self  # What BaseEventLoop waits with.
        process.loop = self

    def time(self) -> float:
        return self._process.machine.now

    def select(self, timeout: float | None) -> list[object]:
        machine = self._process.machine
        if not self._is_woken and (timeout is None or timeout > 0):
            self._waiter = Waiter(current())
            machine.wait(self._waiter, timeout)
            self._waiter = None
        elif timeout == 0:
            # Others may run between two iterations.
            machine.sleep(0.0)
        self._is_woken = False
        return []

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        # From another process, or from nowhere, when a killed one is cleared away.
        if not self._process.machine.is_off and current().process is not self._process:
            self._write_to_self()
        return handle

    def _process_events(self, event_list: list[object]) -> None:
        """There are no files."""

    def _write_to_self(self) -> None:
        self._is_woken = True
        if self._waiter is not None:
            self._waiter.release()

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        return asyncio.wrap_future((executor or self._executor).submit(func, *args), loop=self)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self._connect(self, protocol_factory, host, port)

    def __del__(self) -> None:
        """A killed process does not close its loop."""
