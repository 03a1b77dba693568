"""One verdict per call: store, command line, HTTP API, analytics and certificate show the same."""

import json
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from benchmarks._call_histories import walk_history
from click.testing import CliRunner
from tests.support.served_service import Client, serve_store

from holdfast.catalog.lookup import shipped_models
from holdfast.cli.main import command
from holdfast.clock import ManualClock
from holdfast.engine.certify import certify
from holdfast.ledger.accounting import LedgerEntry, iter_entries
from holdfast.runtime.options import Options
from holdfast.runtime.session import Session
from holdfast.simulator.provider import SimulatedProvider
from holdfast.stores.sqlite.store import SqliteStore


class Views:
    """A stored session, as each view shows it."""

    def __init__(self, db: Path, session_id: str, *, at: float) -> None:
        self.db, self.session_id, self.at = db, session_id, at

    def check(self) -> list[LedgerEntry]:
        with SqliteStore(self.db) as store, serve_store(store, clock=ManualClock(self.at)) as client:
            entries = list(iter_entries(store.read(self.session_id), shipped_models()))
            assert any(entry.verdict for entry in entries)
            self._check_command_line(entries)
            self._check_reports(entries)
            self._check_calls(client, entries)
            self._check_analytics(client, store, entries)
            self._check_certificates(store, entries)
        return entries

    def _check_command_line(self, entries: list[LedgerEntry]) -> None:
        arguments = ["sessions", "show", self.session_id, "--db", str(self.db)]
        shown = json.loads(CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False).output)
        for row, entry in zip(shown["calls"], entries, strict=True):
            assert entry.verdict is not None
            assert row["verdict"]["kind"] == entry.verdict.kind
            assert Decimal(row["verdict"]["lost_usd"]) == entry.verdict.lost_usd
            # A prefix that moved is never beside a call that held.
            assert row["prefix_held"] or entry.verdict.kind != "held"

    def _check_reports(self, entries: list[LedgerEntry]) -> None:
        """`report` and `audit` add up the losses of the same calls by the same causes."""
        expected: Counter[tuple[str, str]] = Counter()
        lost_usd = Decimal(0)
        for entry in entries:
            if entry.verdict is not None and entry.verdict.lost_usd:
                expected[entry.verdict.kind, entry.verdict.component or ""] += 1
                lost_usd += entry.verdict.lost_usd
        for arguments in (["report", "--db", str(self.db)], ["audit", str(self.db)]):
            shown = json.loads(CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False).stdout)
            losses = shown["losses"]
            assert {(row["cause"], row["component"]): row["calls"] for row in losses} == dict(expected)
            assert sum(Decimal(row["lost_usd"]) for row in losses) == lost_usd

    def _check_calls(self, client: Client, entries: list[LedgerEntry]) -> None:
        calls = client.get(f"/api/sessions/{self.session_id}/calls")["calls"]
        for row, entry in zip(calls, entries, strict=True):
            detail = client.get(f"/api/sessions/{self.session_id}/calls/{row['number']}")
            assert entry.verdict is not None
            kinds = (row["verdict"], detail["call"]["verdict"], detail["verdict"]["kind"])
            assert kinds == (entry.verdict.kind,) * 3
            assert (row["lost_tokens"], row["is_break"]) == (entry.verdict.lost_tokens, entry.verdict.is_unexpected)
            if entry.verdict.kind == "held":
                assert detail["certificate"]["result"] != "broken"
        last = client.get(f"/api/cache/{self.session_id}")
        assert entries[-1].verdict is not None
        assert last["verdict"] == entries[-1].verdict.kind

    def _check_analytics(self, client: Client, store: SqliteStore, entries: list[LedgerEntry]) -> None:
        verdicts = [entry.verdict for entry in entries if entry.verdict is not None]
        kinds = Counter(verdict.kind for verdict in verdicts)
        totals = store.cost_queries().verdicts()
        assert sum((Counter({cause.kind: cause.verdict_count}) for cause in totals), Counter()) == kinds
        assert sum(cause.lost_usd for cause in totals) == sum(verdict.lost_usd for verdict in verdicts)
        rows = client.get("/analytics/breaks/calls?cause=any&limit=100")["data"]
        expected = {entry.record.number: entry.verdict.kind for entry in entries if entry.verdict}
        listed: dict[int, Any] = {row["number"]: row["cause"] for row in rows}
        assert listed == {number: kind for number, kind in expected.items() if kind not in ("held", "first_use")}

    def _check_certificates(self, store: SqliteStore, entries: list[LedgerEntry]) -> None:
        certificates = certify(store.read(self.session_id), self.session_id, shipped_models())
        for certificate, entry in zip(certificates, entries, strict=True):
            assert entry.verdict is not None
            if certificate.result != "not certifiable":
                assert (certificate.result == "broken") == entry.verdict.is_unexpected
            if certificate.result == "broken" and entry.verdict.kind == "prefix_changed":
                assert certificate.byte == entry.verdict.byte


@pytest.mark.parametrize("seed", range(4))
def test_every_view_of_a_forwarded_session_shows_the_same_verdicts(tmp_path: Path, seed: int) -> None:
    db = tmp_path / "log.db"
    with SqliteStore(db) as store:
        session_id = walk_history(seed, 10, store=store)[0].client.recorder.session_id
    entries = Views(db, session_id, at=1_790_100_000.0).check()
    assert len({entry.verdict.kind for entry in entries if entry.verdict}) >= 3


@pytest.mark.parametrize("layout", ["default", "seed"])
async def test_every_view_of_a_session_shows_the_same_verdicts(tmp_path: Path, layout: str) -> None:
    """A clock at the head of a short system prompt, as in the seed's layout, is a prefix change in every view."""
    db, moments = tmp_path / "log.db", iter(range(1_790_000_000, 1_790_000_100))
    options: Options = {
        "model": "anthropic:claude-sonnet-5-5",
        "store": str(db),
        "transport": SimulatedProvider(script='{"content": "Yes."}\n' * 9),
        "simulated": False,  # Stands for a session that is billed.
        "system_prompt": "Follow the rules of the house. " * 200,
        "system_prompt_volatile": lambda: f"It is {next(moments)}.",
        "layout": "seed" if layout == "seed" else "default",
    }
    async with Session.create(**options) as session:
        for _ in range(5):
            await session.send("So?")
    kinds = [entry.verdict.kind for entry in Views(db, session.id, at=time.time()).check() if entry.verdict]
    assert kinds[0] == "first_use"
    assert kinds[1:] == (["prefix_changed"] if layout == "seed" else ["held"]) * 4
