"""The checks of a client's three runs. Each problem is one line that says what was expected and what was seen."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain

from conformance.client import Client
from conformance.run import ClientRun, RecordedSession
from conformance.tap import TappedExchange
from holdfast.catalog.lookup import find_model, price_at, utc_date
from holdfast.economics.cost import cost_usd
from holdfast.simulator.exchange import RecordedRequest
from holdfast.types.reply import Reply
from holdfast.types.usage import Usage


def check_run(client: Client, run: ClientRun) -> Iterator[str]:
    if any(run.exit_statuses):
        yield f"exit statuses {', '.join(map(str, run.exit_statuses))}: {_last_line(run.output)}"
    if "Kittiwake" not in run.notes:
        yield "the client's tools were not called: notes.txt is unchanged"
    answers = [turn.answer.splitlines()[0] for turn in client.turns if not turn.delegated]
    yield from (f"the answer {answer!r} was not shown" for answer in answers if answer not in run.output)
    for exchange in run.sent:
        if exchange.status >= 400:
            origin = "the gateway" if exchange.by_gateway else "the simulator"
            start = exchange.response[:200].decode(errors="replace")
            yield f"{exchange.method} {exchange.path}: {exchange.status} of {origin}: {start}"
    if run.mode != "direct":
        yield from _check_bytes(client, run)
        yield from _check_recording(run)
        yield from _check_sessions(client, run.sessions)


def compare_runs(direct: ClientRun, gateway: ClientRun, improved: ClientRun) -> Iterator[str]:
    counts = [count_model_calls(run) for run in (direct, gateway, improved)]
    if len(set(counts)) > 1:
        yield "the runs made {}, {} and {} model calls".format(*counts)
    if (resent := sum(request.reply is not None for request in improved.unimproved)) != counts[2]:
        yield f"{resent} of {counts[2]} model calls could be answered as the client sent them"
    before, after = sum_cost_usd(improved.unimproved), sum_cost_usd(improved.simulated)
    if after > before:
        yield f"--improve costs more: ${before:.4f} became ${after:.4f}"


def count_model_calls(run: ClientRun) -> int:
    return sum(request.reply is not None for request in run.simulated)


def sum_usage(run: ClientRun) -> Usage:
    """As the simulator reported it."""
    return sum((request.reply.usage for request in run.simulated if request.reply is not None), Usage())


def sum_cost_usd(requests: Iterable[RecordedRequest]) -> Decimal:
    """At list prices, with the usage that the simulator reported."""
    return sum((_price_request(request, request.reply) for request in requests if request.reply), Decimal(0))


def _price_request(request: RecordedRequest, reply: Reply) -> Decimal:
    return cost_usd(reply.usage, price_at(find_model(request.model), utc_date(request.at), reply.usage.tokens_sent))


def find_conversation(sessions: Sequence[RecordedSession]) -> RecordedSession | None:
    """The session with the most calls."""
    return max(sessions, key=lambda session: len(session.verdicts), default=None)


def _check_bytes(client: Client, run: ClientRun) -> Iterator[str]:
    prefix = f"/{client.provider}"
    responses = _count((exchange.path.removeprefix(prefix), exchange.response) for exchange in _forwarded(run))
    if responses != _count((exchange.path, exchange.response) for exchange in run.received):
        yield "the client received other response bytes than the simulator sent"
    if run.mode == "improve":
        return
    sent = _count((e.method, e.path.removeprefix(prefix), e.body) for e in _forwarded(run))
    received = _count((e.method, e.path, e.body) for e in run.received)
    if sent != received:
        yield f"{(sent - received).total()} of {sent.total()} requests were not forwarded byte for byte"


def _forwarded(run: ClientRun) -> Iterator[TappedExchange]:
    return (exchange for exchange in run.sent if not exchange.by_gateway)


def _count(values: Iterable[tuple[str | bytes, ...]]) -> Counter[tuple[str | bytes, ...]]:
    """Requests can overlap, so their order means nothing."""
    return Counter(values)


def _check_recording(run: ClientRun) -> Iterator[str]:
    recorded, calls = sum(len(session.verdicts) for session in run.sessions), count_model_calls(run)
    if recorded != calls:
        yield f"{recorded} of {calls} model calls were recorded"
    usage = sum((session.usage for session in run.sessions), Usage())
    if usage != sum_usage(run):
        yield f"recorded {usage}, the simulator reported {sum_usage(run)}"
    unexpected = [line for line in run.gateway_log.splitlines() if line.strip() not in ("", "stopped")]
    yield from (f"gateway log: {line}" for line in unexpected[:3])


def _check_sessions(client: Client, sessions: Sequence[RecordedSession]) -> Iterator[str]:
    conversation = find_conversation(sessions)
    if conversation is None:
        yield "no session was recorded"
        return
    children = [session for session in sessions if session.parent == conversation.id]
    others = len(sessions) - len(children) - 1
    if (len(children), others) != (client.children, client.others):
        expected = f"{client.children} children of the conversation and {client.others} others"
        yield f"expected {expected}, recorded {len(children)} and {others}"
    if conversation.parent is not None:
        yield "the conversation is recorded as the child of another session"
    kinds = list(chain.from_iterable(session.verdicts for session in sessions))
    breaks = [kind for kind in kinds if kind not in ("first_use", "held", "no_breakpoint", "below_floor")]
    # Without `--improve` a client may mark nothing: then nothing was cached that it could break.
    expected_breaks = 0 if "no_breakpoint" in kinds else client.breaks
    if len(breaks) != expected_breaks:
        yield f"cache breaks: expected {expected_breaks}, verdicts are {', '.join(kinds)}"


def _last_line(output: str) -> str:
    return next((line.strip()[:300] for line in reversed(output.splitlines()) if line.strip()), "no output")
