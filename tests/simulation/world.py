"""One run of a seed: agents that talk through gateways to a provider, while processes, disks and stores fail."""

import asyncio
import gc
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from tests.simulation.ledger import Answer, CallLedger
from tests.simulation.machine import Machine, Process, SimulatedLoop, current
from tests.simulation.network import HttpRequest, HttpServerConnection, connect_links
from tests.simulation.seams import STORE_SECONDS, CommitFault, Faults, Seams, make_loop, replace_seams

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.serve.gateway import GatewayMount, GatewayOptions, open_gateway
from holdfast.errors import StoreError
from holdfast.service.auth.keys import NewKey, make_key
from holdfast.service.context import AppContext
from holdfast.simulator.exchange import SimulatedResponse
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.open import open_store
from holdfast.stores.sqlite.store import SqliteStore

SECONDS_MAX = 3_000.0
"""Of simulated time; a run takes about a minute."""

ATTEMPTS_MAX = 4
KEYS_MAX = 3
MODEL = "claude-sonnet-5-5"
_SYSTEM = "You read before you write, and you say what you did. " * 40


class Client(msgspec.Struct, frozen=True):
    key: str
    questions: int
    is_streamed: bool
    leaves_early: float
    """The share of calls that it does not wait for."""


class World:
    def __init__(self, machine: Machine, seams: Seams, folder: Path) -> None:
        self.machine, self.seams, self.faults, self._folder = machine, seams, seams.faults, folder
        chance = machine.random
        self._db, self._spool = folder / "store.db", folder / "spool"
        self.ledger = CallLedger(machine, self._db, self._spool, seams.read_synced)
        self._provider = SimulatedProvider(
            clock=machine.read_wall_clock, script=json.dumps({"content": "Yes. " * chance.randint(1, 40)})
        )
        self._improves = chance.random() < 0.5
        self._drains = chance.random() < 0.3
        self._replicas = chance.choice((1, 1, 2))
        self._fault_count = chance.randint(0, 6)
        self._kill_rate = chance.random()
        self._gateways: list[RunningGateway] = []
        self._gateway_count = 0
        self._budgets = {
            number: chance.choice((None, 0.002, 0.01, 0.05)) for number in range(1, chance.randint(1, KEYS_MAX) + 1)
        }
        self._clients = [
            Client(
                key=_make_key(chance.choice(tuple(self._budgets))).key,
                questions=chance.randint(1, 5),
                is_streamed=chance.random() < 0.6,
                leaves_early=chance.choice((0.0, 0.0, 0.3)),
            )
            for _ in range(chance.randint(1, 5))
        ]
        self._write_grants()
        self._call_count = 0
        self.is_over = self.was_disk_full = False
        self._process = Process(machine, "world", self._run)

    def _write_grants(self) -> None:
        rows = []
        for number, budget in self._budgets.items():
            rows.append(f'[keys.{_make_key(number).row.id}]\nanthropic = "sk-{number}"')
            if budget is not None:
                rows.append(f"budget_usd_a_day = {budget}")
                self.ledger.budgets[f"sk-{number}"] = budget
        grants = self._folder / "grants.toml"
        grants.write_text("\n".join(rows))
        grants.chmod(0o600)

    # The world: agents, provider, operator and faults, in one process that nothing kills.

    def _run(self) -> None:
        self._loop = make_loop(self.seams, current().process, _refuse_connection)
        self._loop.run_until_complete(self._play())

    async def _play(self) -> None:
        for _ in range(self._replicas):
            self._start_gateway()
        operator = asyncio.create_task(self._operate())
        injector = asyncio.create_task(self._inject_faults())
        await asyncio.gather(*(self._talk(number, client) for number, client in enumerate(self._clients)))
        injector.cancel()
        with suppress(asyncio.CancelledError):
            await injector
        operator.cancel()
        self._lift_faults()
        self.machine.note("all agents are done; the gateways are stopped")
        for gateway in self._gateways:
            gateway.stop()
        await self._wait_for(lambda: not any(gateway.process.is_alive for gateway in self._gateways))
        # A last one records what the others have left behind.
        await self._run_gateway_alone()
        # Recorders outlive their gateway for some seconds.
        await asyncio.sleep(30.0)
        self.is_over = True

    async def _run_gateway_alone(self) -> None:
        gateway = self._start_gateway()
        await self._wait_for(lambda: gateway.mount is not None)
        await self._wait_for(lambda: len(list(self._spool.iterdir())) == 1)
        gateway.stop()
        await self._wait_for(lambda: not gateway.process.is_alive)

    async def _wait_for(self, is_true: Callable[[], bool]) -> None:
        while not is_true():  # noqa: ASYNC110 - what it waits for are files and other processes
            await asyncio.sleep(0.5)

    def _start_gateway(self) -> "RunningGateway":
        self._gateway_count += 1
        gateway = RunningGateway(self, f"gateway {self._gateway_count}")
        self._gateways = [known for known in self._gateways if known.process.is_alive] + [gateway]
        return gateway

    async def _operate(self) -> None:
        """Starts a gateway wherever one has ended."""
        while True:
            await asyncio.sleep(self.machine.random.uniform(0.1, 3.0))
            if sum(gateway.process.is_alive for gateway in self._gateways) < self._replicas:
                self._start_gateway()

    async def _inject_faults(self) -> None:
        chance = self.machine.random
        for _ in range(self._fault_count):
            await asyncio.sleep(chance.expovariate(1 / 3.0))
            await chance.choice(self._list_faults())()

    def _list_faults(self) -> tuple[Callable[[], Any], ...]:
        return (
            self._kill_gateway,
            self._kill_recorder,
            self._kill_both,
            self._stop_gateway,
            self._fill_disk,
            self._lose_store,
            self._slow_store,
            self._break_commits,
            self._change_clock,
            self._lose_provider,
        )

    def _choose_gateway(self) -> "RunningGateway | None":
        alive = [gateway for gateway in self._gateways if gateway.process.is_alive]
        return self.machine.random.choice(alive) if alive else None

    async def _kill_gateway(self) -> None:
        if gateway := self._choose_gateway():
            self.machine.note(f"kill {gateway.process.name}")
            gateway.process.kill()

    async def _kill_recorder(self) -> None:
        if gateway := self._choose_gateway():
            for child in gateway.process.children:
                if child.is_alive:
                    self.machine.note(f"kill {child.name} of {gateway.process.name}")
                    child.kill()

    async def _kill_both(self) -> None:
        if gateway := self._choose_gateway():
            self.machine.note(f"kill {gateway.process.name} and its recorder")
            gateway.process.kill()
            for child in gateway.process.children:
                child.kill()

    async def _stop_gateway(self) -> None:
        if gateway := self._choose_gateway():
            self.machine.note(f"stop {gateway.process.name}")
            gateway.stop()

    async def _fill_disk(self) -> None:
        self.was_disk_full = True
        await self._break_for("the disk of the spool is full", "is_disk_full", True)

    async def _lose_store(self) -> None:
        await self._break_for("the store is gone", "is_store_down", True)

    async def _slow_store(self) -> None:
        await self._break_for("the store is slow", "store_seconds", self.machine.random.choice((0.3, 3.0, 10.0)))

    async def _lose_provider(self) -> None:
        await self._break_for("the provider is gone", "is_provider_down", True)

    async def _break_for(self, text: str, name: str, value: object) -> None:
        before = getattr(self.faults, name)
        seconds = self.machine.random.expovariate(1 / 4.0)
        self.machine.note(f"{text} for {seconds:.1f} s")
        setattr(self.faults, name, value)
        await asyncio.sleep(seconds)
        setattr(self.faults, name, before)

    async def _break_commits(self) -> None:
        faults: tuple[CommitFault, ...] = (
            "fails",
            "fails after it took effect",
            "kills its process",
            "kills its process afterwards",
        )
        self.faults.commits.append(self.machine.random.choice(faults))

    async def _change_clock(self) -> None:
        seconds = self.machine.random.choice((-7_200.0, -900.0, -60.0, -1.0, 1.0, 60.0, 900.0, 7_200.0))
        self.machine.note(f"the clock is changed by {seconds:+.0f} s")
        self.machine.wall_offset += seconds

    def _lift_faults(self) -> None:
        self.faults.is_disk_full = self.faults.is_store_down = self.faults.is_provider_down = False
        self.faults.store_seconds = STORE_SECONDS
        self.faults.commits.clear()

    # Agents

    async def _talk(self, number: int, client: Client) -> None:
        chance = self.machine.random
        messages: list[dict[str, object]] = []
        for question in range(client.questions):
            await asyncio.sleep(chance.expovariate(1 / 1.5))
            messages.append({"role": "user", "content": f"Agent {number}, question {question}. " + "Why? " * 20})
            body = {"model": MODEL, "max_tokens": 400, "stream": client.is_streamed, "system": _SYSTEM}
            encoded = json.dumps({**body, "messages": messages}).encode()
            for _ in range(ATTEMPTS_MAX):
                reply = await self._call(number, client, encoded)
                if reply is not None:
                    messages.append({"role": "assistant", "content": reply})
                    break
                await asyncio.sleep(chance.uniform(0.1, 2.0))
            else:
                return

    async def _call(self, number: int, client: Client, body: bytes) -> str | None:
        """The text of the reply; None if there is none."""
        gateway = self._choose_gateway()
        self.ledger.note_day()
        self._call_count += 1
        name = f"call {self._call_count} of agent {number}"
        if gateway is None or gateway.mount is None:
            return None
        request = GatewayRequest(self._loop, gateway, body, client.key)
        leaves = self.machine.random.random() < client.leaves_early
        try:
            async with asyncio.timeout(self.machine.random.uniform(0.0, 0.5) if leaves else 60.0):
                status, received = await request.receive_response()
        except TimeoutError:
            self.machine.note(f"{name}: the agent leaves")
            request.leave()
            return None
        except ConnectionError as error:
            self.machine.note(f"{name}: {error}")
            return None
        self.machine.note(f"{name}: {status}, {len(received)} bytes")
        if status != 200:
            return None
        answer = Answer.decode(received, is_streamed=client.is_streamed)
        self.ledger.check_answer(answer, received, is_disk_full=self.was_disk_full)
        return answer.text

    # The provider

    async def respond(self, connection: HttpServerConnection, request: HttpRequest) -> None:
        try:
            await self._respond(connection, request)
        except Exception as error:  # noqa: BLE001 - nobody waits for the task
            self.machine.failure = error

    async def _respond(self, connection: HttpServerConnection, request: HttpRequest) -> None:
        chance = self.machine.random
        self.ledger.requests += 1
        await asyncio.sleep(chance.uniform(0.01, 0.3))
        if self.faults.is_provider_down or chance.random() < 0.03:
            connection.cut()
            return
        headers = dict(request.headers)
        if chance.random() < 0.03:
            headers["x-holdfast-fault"] = "529"
        response = self._provider.handle("POST", request.path, headers=headers, body=request.body)
        body = response.read_body()
        if response.reply is not None:
            self.ledger.bill(headers["x-api-key"], request.body, response, body)
        chunks = _split(body, chance.randint(1, 6))
        sent = SimulatedResponse(response.status, response.headers, chunks)
        cut_after = chance.randrange(len(chunks)) if chance.random() < 0.03 else -1
        if cut_after >= 0:
            self.machine.note("the provider hangs up in the middle of a response")
        await connection.send(sent, pause_seconds=lambda: chance.uniform(0.0, 0.4), cut_after=cut_after)

    async def connect_provider(
        self, loop: SimulatedLoop, make_protocol: Callable[[], asyncio.Protocol], _: str, __: int
    ) -> Any:
        await asyncio.sleep(0.01)
        if self.faults.is_provider_down:
            raise ConnectionRefusedError
        protocol = make_protocol()
        server = HttpServerConnection(self._loop, self.respond)
        near, _far = connect_links((loop, self._loop), (current().process, self._process), (protocol, server))
        return near, protocol

    # Gateways

    def run_gateway(self, gateway: "RunningGateway") -> None:
        """The main function of a gateway's process, as that of `holdfast serve`."""
        try:
            self._serve(gateway)
        except StoreError as error:
            self.machine.note(f"{current().process.name} cannot start: {error}")

    def _serve(self, gateway: "RunningGateway") -> None:
        loop = make_loop(self.seams, current().process, self.connect_provider)
        options = GatewayOptions(
            grants=str(self._folder / "grants.toml"),
            improve=self._improves,
            drain=self._drains,
            db=str(self._db),
            spool=str(self._spool),
        )
        store = open_store(str(self._db), models=shipped_models())
        service = AppContext(store, store.records, shipped_models(), clock=self.machine.read_wall_clock)
        with store, open_gateway(service, ["anthropic=http://provider"], options) as mount:
            gateway.mount = mount
            loop.run_until_complete(gateway.serve())
            gateway.mount = None


class RunningGateway:
    def __init__(self, world: World, name: str) -> None:
        self.mount: GatewayMount | None = None
        self._stop: asyncio.Event | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        world.machine.note(f"start {name}")
        self.process = Process(world.machine, name, lambda: world.run_gateway(self))
        self.process.on_end.append(lambda: self._note_end(world))

    def _note_end(self, world: World) -> None:
        world.machine.note(f"{self.process.name} ended, with {len(self._tasks)} calls in progress")
        world.ledger.cut_off += len(self._tasks)
        world.ledger.is_memory_lost |= world.was_disk_full

    async def serve(self) -> None:
        self._stop = asyncio.Event()
        await self._stop.wait()
        # As a server does: no new requests, and those in progress may end.
        self.mount = None
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5.0)

    def stop(self) -> None:
        if self._stop is not None and self.process.loop is not None:
            self.process.loop.call_soon_threadsafe(self._stop.set)
        else:
            self.process.kill()

    def start(self, handle: Callable[[GatewayMount], Any]) -> None:
        assert self.process.loop is not None
        self.process.loop.call_soon_threadsafe(self._start, handle)

    def _start(self, handle: Callable[[GatewayMount], Any]) -> None:
        if self.mount is not None:
            task = asyncio.get_running_loop().create_task(handle(self.mount))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


class GatewayRequest:
    """A request of an agent, from its own event loop to that of a gateway."""

    def __init__(self, loop: SimulatedLoop, gateway: RunningGateway, body: bytes, key: str) -> None:
        self._loop, self._gateway, self._body = loop, gateway, body
        self._messages: list[dict[str, Any]] = []
        self._changed = asyncio.Event()
        self._is_cut = self._is_left = False
        self._left: asyncio.Event | None = None
        headers = {"x-api-key": key, "content-type": "application/json", "content-length": str(len(body))}
        self._scope = {
            "type": "http",
            "method": "POST",
            "path": "/anthropic/v1/messages",
            "raw_path": b"/anthropic/v1/messages",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "client": ("10.0.0.1", 1),
        }
        gateway.process.on_end.append(self._cut)
        gateway.start(self._handle)

    async def receive_response(self) -> tuple[int, bytes]:
        """Raises ConnectionError if the connection ends before the response does."""
        while not (self._messages and not self._messages[-1].get("more_body", True)):
            if self._is_cut:
                raise ConnectionResetError("the connection to the gateway ended")
            self._changed.clear()
            await self._changed.wait()
        return self._messages[0]["status"], b"".join(message.get("body", b"") for message in self._messages)

    def leave(self) -> None:
        self._is_left = True
        if self._left is not None and self._gateway.process.loop is not None:
            self._gateway.process.loop.call_soon_threadsafe(self._left.set)

    def _cut(self) -> None:
        if self._gateway.process.machine.is_off:
            return
        self._is_cut = True
        self._loop.call_soon_threadsafe(self._changed.set)

    # In the gateway's loop.

    async def _handle(self, mount: GatewayMount) -> None:
        self._left = asyncio.Event()
        if self._is_left:
            return
        is_sent = False

        async def receive() -> dict[str, Any]:
            nonlocal is_sent
            assert self._left is not None
            if is_sent:
                await self._left.wait()
                return {"type": "http.disconnect"}
            is_sent = True
            return {"type": "http.request", "body": self._body, "more_body": False}

        async def send(message: Any) -> None:
            self._messages.append(dict(message))
            self._loop.call_soon_threadsafe(self._changed.set)

        try:
            await mount.handle(self._scope, receive, send)
        finally:
            self._cut()


@cache
def _make_key(number: int) -> NewKey:
    return make_key("gateway", at=0.0, random_bytes=lambda size: bytes([number]) * size)


@cache
def _make_store_file() -> bytes:
    """An empty store with the keys of all agents; making one takes a fifth of the time of a run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        with SqliteStore(path) as store:
            for number in range(1, KEYS_MAX + 1):
                store.records.add_key(_make_key(number).row)
        return path.read_bytes()


def _split(body: bytes, parts: int) -> list[bytes]:
    size = max(1, -(-len(body) // parts))
    return [body[start : start + size] for start in range(0, len(body), size)]


async def _refuse_connection(*_: object) -> Any:
    raise ConnectionRefusedError


class RunReport(msgspec.Struct, frozen=True):
    """What happened in a run that kept all invariants; `trace` is the same whenever the seed is run."""

    trace: tuple[str, ...]
    steps: int
    answered: int
    interrupted: int
    overshoot: int


def run_seed(seed: int, folder: Path) -> RunReport:
    """Raises what went wrong, with the trace as a note."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "spool").mkdir(parents=True)
    machine = Machine(seed)
    try:
        ledger = _play(machine, folder)
        ledger.check_end()
    except Exception as error:
        error.add_note("\n".join(machine.trace))
        raise
    return RunReport(tuple(machine.trace), machine.steps, len(ledger.answered), ledger.interrupted, ledger.overshoot)


def _play(machine: Machine, folder: Path) -> CallLedger:
    seams = Seams(machine, Faults())
    (folder / "store.db").write_bytes(_make_store_file())
    with replace_seams(seams):
        world = World(machine, seams, folder)
        try:
            machine.run(lambda: world.is_over, seconds_max=SECONDS_MAX)
        finally:
            machine.switch_off()
        ledger = world.ledger
        # What killed processes had under way ends here, and not during another run.
        del world.ledger
        gc.collect()
    return ledger
