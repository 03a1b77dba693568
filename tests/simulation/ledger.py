"""What must hold in every run: what the provider has billed, what agents have received, and what is on the log."""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import msgspec
from tests.simulation.machine import Machine

from holdfast.catalog.lookup import find_model_or_none, price_at, shipped_models, utc_date
from holdfast.economics.cost import cost_usd
from holdfast.events.payloads.calls import GatewayForwarded, LlmCallCompleted, LlmCallFailed, LlmCallStarted
from holdfast.events.payloads.union import AnyPayload
from holdfast.gateway.exchange import INTERRUPTIONS
from holdfast.ledger.money import to_picodollars
from holdfast.ledger.requests.parse import parse_request
from holdfast.simulator.exchange import SimulatedResponse
from holdfast.stores.open import open_store
from holdfast.types.request_buffer import PrefixDigest, count_shared_blocks
from holdfast.types.usage import Usage

_NEW_EVENTS = "SELECT seq, payload FROM events WHERE seq > ? ORDER BY seq"
_BUDGETS = "SELECT key_id, sum(spent), sum(reserved) FROM budgets GROUP BY key_id"
_OPEN_RESERVATIONS = """
SELECT count(*), coalesce(sum(reserved), 0), coalesce(sum(charged), 0) FROM reservations
WHERE key_id = ? AND is_settled = 0"""
_OPEN_IDS = "SELECT id FROM reservations WHERE is_settled = 0"
_BILLED_FAILURES = {INTERRUPTIONS[end][1] for end in ("cancelled", "stopped", "cut")}


class BrokenInvariant(AssertionError):
    """The run has shown an error."""


class Answer(msgspec.Struct, frozen=True):
    id: str
    text: str

    @classmethod
    def decode(cls, received: bytes, *, is_streamed: bool) -> "Answer":
        if not is_streamed:
            message = json.loads(received)
            return cls(message["id"], message["content"][0]["text"])
        lines = [line for line in received.decode().splitlines() if line.startswith("data: ")]
        events = [json.loads(line.removeprefix("data: ")) for line in lines]
        deltas = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
        return cls(events[0]["message"]["id"], "".join(deltas))


decode_payload = msgspec.json.Decoder(AnyPayload).decode


class BilledCall(msgspec.Struct, frozen=True):
    account: str
    usage: Usage
    cost: Decimal
    prompt_cost: Decimal
    body: bytes


class RecordedOutcomes:
    """The calls on the log by their request id, each once, and what they cost by gateway key."""

    def __init__(self) -> None:
        self.completed: dict[str, LlmCallCompleted] = {}
        self.begun: set[str] = set()
        self.ended: set[str] = set()
        self.spent: Counter[str] = Counter()
        self._keys: dict[str, str] = {}
        self._key = ""

    def add(self, payload: object) -> None:
        match payload:
            case GatewayForwarded():
                self._key = payload.key_id or ""
            case LlmCallStarted():
                _add_once(self.begun, payload.request_id, "began")
                self._keys[payload.request_id] = self._key
            case LlmCallCompleted():
                if payload.response_id in self.completed:
                    raise BrokenInvariant(f"{payload.response_id} is on the log twice")
                self.completed[payload.response_id] = payload
                self._end(payload.request_id, payload.cost_usd)
            case LlmCallFailed():
                if payload.error_message_redacted in _BILLED_FAILURES and not payload.cost_usd:
                    raise BrokenInvariant(f"{payload.request_id} is free: {payload.error_message_redacted}")
                self._end(payload.request_id, payload.cost_usd)
            case _:
                pass

    def _end(self, request_id: str, cost: Decimal) -> None:
        if request_id not in self.begun:
            raise BrokenInvariant(f"call {request_id} ended and did not begin")
        _add_once(self.ended, request_id, "ended")
        self.spent[self._keys[request_id]] += to_picodollars(cost)


def _add_once(ids: set[str], id: str, what: str) -> None:
    if id in ids:
        raise BrokenInvariant(f"call {id} {what} twice")
    ids.add(id)


class CallLedger:
    """Collects what happens outside of the gateway, and compares it with the log."""

    def __init__(self, machine: Machine, db: Path, spool: Path, read_synced: Callable[[Path], bytes]) -> None:
        self._machine, self._db, self._spool = machine, db, spool
        self._read_synced = read_synced
        self.budgets: dict[str, float] = {}
        """In dollars, by account at the provider."""
        self.requests = 0
        """Whole requests that the provider got."""
        self.cut_off = 0
        """Calls that were in progress in a gateway when it ended."""
        self.is_memory_lost = False
        """Whether a gateway ended after the disk had refused records, so that those in its memory are lost."""
        self.billed: dict[str, BilledCall] = {}
        self.answered: set[str] = set()
        self.unwritten: set[str] = set()
        """Answered while the disk was full: their records wait in memory."""
        self.interrupted = 0
        self.overshoot = 0
        self._days: set[str] = set()
        self._prompts: dict[str, tuple[PrefixDigest, ...]] = {}
        self._log = sqlite3.connect(f"{db.as_uri()}?mode=ro", uri=True, check_same_thread=False)
        self._position = 0
        self._outcomes = RecordedOutcomes()

    def bill(self, account: str, request: bytes, response: SimulatedResponse, body: bytes) -> None:
        assert response.reply is not None
        usage, row = response.reply.usage, find_model_or_none(response.model, shipped_models())
        assert row is not None
        today = utc_date(self._machine.read_wall_clock())
        price = price_at(row, today, usage.tokens_sent)
        cost, prompt_cost = cost_usd(usage, price), cost_usd(msgspec.structs.replace(usage, output=0), price)
        self.billed[response.reply.id] = BilledCall(account, usage, cost, prompt_cost, body)
        self._machine.note(f"the provider bills {response.reply.id} to {account}: ${cost:.6f}")
        self._check_prefix(request)
        self._check_budget(account)

    def _check_prefix(self, request: bytes) -> None:
        """A conversation is known by its first question."""
        parsed = parse_request(request)
        conversation = str(json.loads(request)["messages"][0]["content"])[:200]
        before, after = self._prompts.get(conversation, ()), parsed.buffer.digests
        shared = count_shared_blocks(before, after)
        if shared < min(len(before), len(after)):
            raise BrokenInvariant(f"block {shared} of {len(before)} of the prompt has changed")
        self._prompts[conversation] = tuple(after)

    def note_day(self) -> None:
        self._days.add(utc_date(self._machine.read_wall_clock()).isoformat())

    def _check_budget(self, account: str) -> None:
        if account not in self.budgets:
            return
        # Every day has its own; the clock of a run may pass midnight, in both directions.
        self.note_day()
        limit = Decimal(str(self.budgets[account])) * len(self._days)
        self.check_step()
        costs = sorted(self._count_cost(id, call) for id, call in self.billed.items() if call.account == account)
        self.overshoot = max(self.overshoot, int(sum(costs) > limit))
        if sum(costs[:-1]) >= limit:
            raise BrokenInvariant(f"the budget of {account} is exceeded by more than one call: ${sum(costs):.6f}")

    def _count_cost(self, id: str, call: BilledCall) -> Decimal:
        """How much output an interrupted call had, only the provider knows."""
        return call.cost if id in self._outcomes.completed else call.prompt_cost

    def check_answer(self, answer: Answer, received: bytes, *, is_disk_full: bool) -> None:
        """An agent has received a whole response: it is the provider's, and it is on disk."""
        billed = self.billed.get(answer.id)
        if billed is None or billed.body != received:
            raise BrokenInvariant(f"{answer.id} was not passed on as the provider sent it")
        self.check_step()
        self.answered.add(answer.id)
        if answer.id not in self._outcomes.completed and not self._is_spooled(answer.id.encode()):
            if not is_disk_full:
                raise BrokenInvariant(f"{answer.id} was answered before it was on disk")
            self.unwritten.add(answer.id)

    def _is_spooled(self, id: bytes) -> bool:
        return any(id in self._read_synced(path) for path in self._spool.glob("*/*.frames"))

    def check_step(self) -> None:
        """Reads what is new on the log."""
        for position, payload in self._log.execute(_NEW_EVENTS, (self._position,)):
            self._position = position
            self._outcomes.add(decode_payload(payload))

    def check_end(self) -> None:
        """When everything has been recorded."""
        with closing(self._log):
            self._check_end()

    def _check_end(self) -> None:
        self.check_step()
        left = [path.name for path in self._spool.iterdir()]
        if left:
            raise BrokenInvariant(f"spools are left: {left}")
        outcomes = self._outcomes
        if outcomes.begun != outcomes.ended:
            raise BrokenInvariant(f"calls without an end: {outcomes.begun - outcomes.ended}")
        lost = self.answered - outcomes.completed.keys()
        if not lost <= self.unwritten or (lost and not self.is_memory_lost):
            raise BrokenInvariant(f"answered calls are lost: {sorted(lost)}")
        # What a killed gateway had in progress may not even have begun on the log.
        missing = self.requests - self.cut_off - len(outcomes.begun)
        if missing > 0 and not self.is_memory_lost:
            raise BrokenInvariant(f"{missing} calls that the provider got are not on the log")
        for id, payload in outcomes.completed.items():
            billed = self.billed[id]
            if (payload.usage, payload.cost_usd) != (billed.usage, billed.cost):
                raise BrokenInvariant(f"{id} cost {billed.cost}, {payload.cost_usd} on the log")
        self.interrupted = len(outcomes.ended) - len(outcomes.completed)
        self._check_tables()

    def _check_tables(self) -> None:
        outcomes = self._outcomes
        with open_store(str(self._db), read_only=True) as store:
            totals = store.cost_queries().totals()
        if to_picodollars(totals.spent_usd) != outcomes.spent.total():
            raise BrokenInvariant(f"the tables say {totals.spent_usd}, the events {outcomes.spent.total()}")
        for key_id, spent, reserved in self._log.execute(_BUDGETS):
            ((open_count, open_sum, charged),) = self._log.execute(_OPEN_RESERVATIONS, (key_id,))
            if spent != outcomes.spent[key_id] + charged or reserved != open_sum:
                raise BrokenInvariant(
                    f"the budget of {key_id} has {spent} spent and {reserved} reserved; its calls cost "
                    f"{outcomes.spent[key_id]}, {open_count} are open with {open_sum}, {charged} are expired"
                )
        for (id,) in self._log.execute(_OPEN_IDS):
            if id in outcomes.ended:
                raise BrokenInvariant(f"call {id} is recorded, and still reserved")
