"""How fast instructions are recalled over HTTP, authentication and records included, and how long publishing takes.

Times are elapsed times, so they assume an otherwise idle machine; the load is printed too, and on Linux the server's
processor time per recall.
"""

import http.client
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from benchmarks._recall_load import LoadPlan, LoadResult
from holdfast.events.records import HasRecords, StoreRecords
from holdfast.instructions.store import InstructionRecords, SupportsInstructions
from holdfast.retrieval.encoders.registry import default_encoder
from holdfast.service.auth.keys import make_key
from holdfast.stores.open import open_store

RECALLS = 400
WARM_UP = 30
CLIENTS = 64
KEYS = 10_000
AGENTS = 1_000
TURNS = 3
SECONDS = 5.0

INTENTS: dict[str, tuple[str, ...]] = {
    "security-posture": ("what am I not allowed to do", "security escalation threshold", "handle a leaked credential"),
    "checkout-procedure": ("check out an issue", "claim a ticket before work", "start work on a task"),
    "code-review": ("review a pull request", "leave comments on a change"),
    "budget-rules": ("approve a purchase", "spending limit for invoices"),
    "release-notes": ("write release notes", "announce a new version"),
    "incident-response": ("respond to an outage", "write a postmortem of an incident", "page the person on call"),
    "data-retention": ("delete customer records", "how long to keep backups"),
    "hiring-loop": ("schedule an interview", "give feedback on a candidate"),
}
"""Eight units, nineteen intents, and so ninety-five paraphrases."""


def run() -> Iterator[tuple[str, str]]:
    yield "encoder", default_encoder() or "none: words and links alone"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log.db")
        with closing(open_store(path)) as store:
            assert isinstance(store, HasRecords)
            admin, agent = _key(store.records, "admin"), _key(store.records, "agent:a0")
        yield from _measure_server(folder, path, admin, agent)
        yield "first recall after the start, index not built", _measure_first_recall(folder, path, agent)
        crowded = Path(folder, "crowded.db")
        shutil.copy(path, crowded)
        with closing(open_store(crowded)) as store:
            assert isinstance(store, HasRecords)
            assert isinstance(store, SupportsInstructions)
            _fill(store.records, store.instructions)
        with _serve(folder, path) as (few_url, _), _serve(folder, crowded) as (many_url, _):
            few, many = _in_turns(few_url, many_url, agent)
            share = statistics.median(many) / statistics.median(few)
            text = f"{_percentiles(many)}, {share:.2f} times the median without them in the same minute"
            yield f"recall, {KEYS} keys and {AGENTS} agents", text


def _measure_server(folder: str, path: Path, admin: str, agent: str) -> Iterator[tuple[str, str]]:
    with _serve(folder, path) as (url, server):
        yield (
            "gate of 8 units, 95 paraphrases",
            f"{1000 * _publish_instructions(url, admin):.0f} ms, publishing included",
        )
        stolen_before = _stolen_seconds()
        yield "recall, each with a different phrasing", _percentiles(_latencies(url, agent))
        yield f"{CLIENTS} clients, repeated intents", _measure_load(url, agent, server, numbered=False)
        yield f"{CLIENTS} clients, each intent new", _measure_load(url, agent, server, numbered=True)
        yield "load of the machine meanwhile, processors", f"{os.getloadavg()[0]:.1f}, {os.cpu_count()}"
        if stolen_before is not None:
            yield "time the machine's host took meanwhile", f"{(_stolen_seconds() or 0) - stolen_before:.2f} s"


def _in_turns(few_url: str, many_url: str, key: str) -> tuple[list[float], list[float]]:
    """Measure both in turns, so that other load on the machine affects both."""
    few, many = [], []
    for turn in range(TURNS):
        few += _latencies(few_url, key, turn)
        many += _latencies(many_url, key, turn)
    return few, many


def _percentiles(seconds: list[float]) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    return f"p50 {1000 * cuts[49]:.1f} ms, p99 {1000 * cuts[98]:.1f} ms"


def _key(records: StoreRecords, scope: str) -> str:
    new_key = make_key(scope, at=time.time(), random_bytes=secrets.token_bytes)
    records.add_key(new_key.row)
    return new_key.key


def _fill(records: StoreRecords, instructions: InstructionRecords) -> None:
    """Ten times as many keys as agents; every agent has the units and the manifest of the first."""
    first, manifest, run = instructions.agent("a0"), instructions.manifest("a0"), instructions.coverage("a0")
    assert first is not None
    assert manifest is not None
    assert run is not None
    for number in range(1, AGENTS):
        name = f"a{number}"
        manifest_copy = msgspec.structs.replace(
            manifest, id=f"m{number}", agent_id=name, fact_uri=f"instruction:local/{name}/manifest/v1"
        )
        agent = msgspec.structs.replace(first, id=name, shortname=None)
        coverage_copy = msgspec.structs.replace(run, id=f"c{number}", agent_id=name)
        instructions.publish(manifest_copy, replaces_id=None, agent=agent, run=coverage_copy, approvals=(), events=())
    for number in range(KEYS):
        _key(records, f"agent:a{number % AGENTS}")


@contextmanager
def _serve(folder: str, path: Path) -> Iterator[tuple[str, int]]:
    words = [sys.executable, "-m", "holdfast", "serve", "--instructions", "--port", "0", "--db", str(path)]
    environ = {**os.environ, "HOLDFAST_HOME": folder}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip(), server.pid
        server.terminate()


def _send(connection: http.client.HTTPConnection, key: str, method: str, path: str, body: object) -> bytes:
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    connection.request(method, path, body=json.dumps(body).encode(), headers=headers)
    response = connection.getresponse()
    text = response.read()
    assert response.status in (200, 201), text
    return text


def _publish_instructions(url: str, admin: str) -> float:
    """Publish the units and the manifest; returns the seconds of the publication."""
    entries = []
    with closing(http.client.HTTPConnection(urlsplit(url).netloc)) as connection:
        for name, intents in INTENTS.items():
            address = f"instruction:local/a0/{name}/v1"
            content = f"How to {intents[0]}. {' '.join(intents)}. " * 8
            _send(connection, admin, "PUT", "/v1/instruction/units", {"fact_uri": address, "content": content})
            triggers = {"intents": list(intents)}
            description = f"How we {intents[0]}."
            entries.append({"name": name, "description": description, "load_triggers": triggers, "fact_uri": address})
        started = time.perf_counter()
        body = {"version": "v1", "entries": entries}
        _send(connection, admin, "PUT", "/v1/agents/a0/instruction-manifest", body)
        return time.perf_counter() - started


def _phrase(number: int) -> str:
    """No two are alike, so that no cached result is used."""
    intents = [intent for some in INTENTS.values() for intent in some]
    return f"I need to {intents[number % len(intents)]} for number {number}"


def _latencies(url: str, key: str, turn: int = 0) -> list[float]:
    seconds = []
    first = turn * (WARM_UP + RECALLS)
    with closing(http.client.HTTPConnection(urlsplit(url).netloc)) as connection:
        for number in range(first, first + WARM_UP + RECALLS):
            started = time.perf_counter()
            _send(connection, key, "POST", "/v1/agents/a0/recall-instruction", {"intent": _phrase(number)})
            seconds.append(time.perf_counter() - started)
    return seconds[WARM_UP:]


def _measure_load(url: str, key: str, server: int, *, numbered: bool) -> str:
    """Recalls a second, and the processor time of each on both sides: clients and server share the machine."""
    before = _processor_seconds(server)
    intents = tuple(intent for some in INTENTS.values() for intent in some)
    plan = LoadPlan(url, key, intents, clients=CLIENTS, seconds=SECONDS, numbered=numbered)
    words = [sys.executable, "-m", "benchmarks._recall_load"]
    output = subprocess.run(words, input=msgspec.json.encode(plan), stdout=subprocess.PIPE, check=True).stdout
    load = msgspec.json.decode(output, type=LoadResult)
    after, count = _processor_seconds(server), len(load.latencies)
    text = f"{count / load.seconds:.0f} recalls a second, {_percentiles(load.latencies)}"
    if before is None or after is None:
        return text
    each = f"{1000 * (after - before) / count:.2f} ms of processor in the server"
    return f"{text}, {each}, {1000 * load.processor_seconds / count:.2f} ms in the clients"


def _measure_first_recall(folder: str, path: Path, key: str) -> str:
    """Of a service that has just started, from when it prints its address."""
    with _serve(folder, path) as (url, _), closing(http.client.HTTPConnection(urlsplit(url).netloc)) as connection:
        started = time.perf_counter()
        _send(connection, key, "POST", "/v1/agents/a0/recall-instruction", {"intent": "review a pull request"})
        return f"{1000 * (time.perf_counter() - started):.0f} ms"


def _processor_seconds(process: int) -> float | None:
    stat = Path(f"/proc/{process}/stat")
    if not stat.is_file():
        return None
    own, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(own) + int(system)) / os.sysconf("SC_CLK_TCK")


def _stolen_seconds() -> float | None:
    """Processor time that other machines on the same host took from this one; None if the system does not report it."""
    stat = Path("/proc/stat")
    return int(stat.read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK") if stat.is_file() else None
