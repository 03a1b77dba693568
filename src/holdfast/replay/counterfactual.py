"""What forwarded sessions cost without and with a rewrite, and under the policies of other tools.

The log holds no text of such a session, but the digest, size and kind of every block. So other policies run through the
cache model; what they differ by from the requests as sent is added to what was paid.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal

import msgspec

from holdfast.cachemodel.values import BlockKind, PromptPrefix
from holdfast.catalog.lookup import find_model_or_none, price_at, utc_date
from holdfast.catalog.schema import Model
from holdfast.errors import UserError
from holdfast.events.log import Event
from holdfast.events.payloads.calls import (
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    RequestPrepared,
    RewriteEstimate,
)
from holdfast.ledger.money import to_dollars
from holdfast.ledger.spending import EVERYTHING, KINDS, AuditScope, SessionSpending, SpendingFold
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.policies.fixed import TEXT_BLOCK_START
from holdfast.planning.policies.peers import new_compared_policies
from holdfast.planning.policy import CachePolicy, PlanningMoment
from holdfast.providers.registry import find_adapter
from holdfast.replay.audit import PriceLookup, audit_transcript
from holdfast.replay.comparison import LAYOUTS, PolicyFactory, ReplayTotals, compare_policies
from holdfast.replay.playback import make_replay_setting
from holdfast.replay.recording import Transcript
from holdfast.replay.size_estimate import PolicyTrack, has_plannable_cache
from holdfast.replay.stored_sessions import audit_stored_session
from holdfast.types.blocks import Role
from holdfast.types.prompt import Breakpoint, PromptSection, Stability
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest, RequestBuffer
from holdfast.types.usage import Usage

# Letters of `GatewayForwarded.shape`: t tool definition, s system, u and a text of user and assistant, b tool use,
# r tool result; upper case if the block can take a breakpoint.
_SECTION_OF_LETTER: dict[str, PromptSection] = {"t": "tools", "s": "system"}
_KIND_OF_LETTER: dict[str, BlockKind] = {"b": "tool_use", "r": "tool_result"}


_PAID_ANYWAY = tuple(map(KINDS.index, ("output", "thinking", "other")))


class AntiPatternCost(msgspec.Struct, frozen=True):
    """What keeping one anti-pattern costs if all others are fixed, and in how many calls it occurred."""

    anti_pattern: str
    calls: int
    is_fixed: bool
    usd: float


class PolicyCost(msgspec.Struct, frozen=True):
    policy: str
    usd: float


class GatewayCosts(msgspec.Struct, frozen=True):
    """What a session or the sessions of a client cost, replies and pings included, without and with the rewrite.

    Of `unplanned_usd` and `planned_usd` one is `observed_usd` where all calls were sent one way, and the other is an
    estimate. `overspent` says why `saved_usd` is below zero.
    """

    client: str
    sessions: int
    calls: int
    observed_usd: float
    unplanned_usd: float
    planned_usd: float
    saved_usd: float
    lost_usd: float
    overspent: str = ""


class Counterfactual(GatewayCosts, frozen=True, kw_only=True):
    """`optimum_usd` is the lowest cost that any plan could have reached. Other tools' policies: where there is one."""

    optimum_usd: float
    anti_patterns: tuple[AntiPatternCost, ...]
    policies: tuple[PolicyCost, ...]


def replay_transcripts(
    transcripts: Iterable[Transcript], prices: PriceLookup, scope: AuditScope = EVERYTHING
) -> ReplayTotals:
    """What conversations whose text is recorded cost under each policy, replies included; ours as in the audit.

    The text is replayed with the rules of the model that answered most calls. What is not in a transcript, such as tool
    definitions, every policy sends: so the costs of the other prompts are to ours as they are in the replay.
    """
    totals = ReplayTotals()
    for transcript in transcripts:
        name = Counter(call.model or "" for call in transcript.recording.calls).most_common(1)[0][0]
        row = prices.find_row(name)
        conversation = audit_transcript(transcript, prices, scope)
        # Replaying needs the message text, and a model whose cache is controlled by breakpoints.
        if conversation is None or row is None or not transcript.has_text or not has_plannable_cache(row):
            continue
        setting = make_replay_setting(row, ttl_upgrade=False)
        comparison = compare_policies(transcript.recording, PolicyFactory().create_policies(), setting)
        ours = next(result.cost_usd for result in comparison.results if result.policy == AdaptivePolicy.name)
        extra = sum(sums.pico[kind] for sums in conversation.groups.values() for kind in _PAID_ANYWAY)
        prompts = to_dollars(max(0, conversation.planned - extra))
        scale = prompts / ours if ours else Decimal(1)
        totals.add_comparison(comparison, None, 0, scale=scale, extra_usd=to_dollars(conversation.planned) - prompts)
    return totals


class _ForwardedCall(msgspec.Struct):
    """A logged request; `tokens` is the provider's count once the call has completed.

    A request that failed without usage was not paid for and left nothing in the cache.
    """

    at: float
    model: str
    forwarded: GatewayForwarded
    prepared: RequestPrepared
    tokens: int
    failed: bool = True
    rewrite: RewriteEstimate | None = None


def estimate_counterfactual(events: Iterable[Event], session_id: str, prices: PriceLookup) -> Counterfactual | None:
    """None if no call of the session went through a gateway, was answered and was priced."""
    logged = list(events)
    calls = _list_forwarded_calls(logged)
    conversation = audit_stored_session(logged, session_id, prices, AuditScope(ranges=True))
    if conversation is None or conversation.unplanned is None or all(call.failed for call in calls):
        return None
    fold = SpendingFold()
    fold.add(conversation)
    (session,) = fold.build().sessions
    return Counterfactual(
        **msgspec.structs.asdict(sum_gateway_costs(session.client, (session,))),
        optimum_usd=float(session.optimum_usd or session.amounts.usd),
        anti_patterns=list_anti_patterns(logged),
        policies=_price_policies(calls, prices, session.amounts.usd),
    )


def sum_gateway_costs(client: str, sessions: Sequence[SessionSpending]) -> GatewayCosts:
    """The sessions of one client; those that no gateway has recorded with an estimate are left out."""
    known = [(row, row.unplanned_usd) for row in sessions if row.unplanned_usd is not None]
    unplanned = sum((usd for _, usd in known), Decimal(0))
    planned = sum((row.planned_usd for row, _ in known), Decimal(0))
    worst = min(known, key=lambda pair: pair[0].saved_usd or 0, default=None)
    return GatewayCosts(
        client=client,
        sessions=len(known),
        calls=sum(row.amounts.calls for row, _ in known),
        observed_usd=float(sum((row.amounts.usd for row, _ in known), Decimal(0))),
        unplanned_usd=float(unplanned),
        planned_usd=float(planned),
        saved_usd=float(unplanned - planned),
        lost_usd=float(sum((row.amounts.lost_usd for row, _ in known), Decimal(0))),
        overspent=worst[0].overspent if worst is not None and unplanned < planned else "",
    )


def list_anti_patterns(events: Iterable[Event]) -> tuple[AntiPatternCost, ...]:
    """The anti-patterns of the calls that were answered, the most expensive first."""
    totals: dict[tuple[str, bool], tuple[int, float]] = {}
    for call in _list_forwarded_calls(events):
        if call.failed:
            continue
        costs = dict(call.rewrite.findings) if call.rewrite else {}
        for change in call.forwarded.changes:
            count, usd = totals.get((change.anti_pattern, change.is_applied), (0, 0.0))
            cost = 0.0 if change.is_applied else float(costs.get(change.anti_pattern, 0))
            totals[change.anti_pattern, change.is_applied] = count + 1, usd + cost
    rows = (AntiPatternCost(name, count, fixed, usd) for (name, fixed), (count, usd) in totals.items())
    return tuple(sorted(rows, key=lambda row: (-row.usd, row.anti_pattern)))


def _list_forwarded_calls(events: Iterable[Event]) -> list[_ForwardedCall]:
    forwarded: GatewayForwarded | None = None
    prepared: RequestPrepared | None = None
    in_progress: dict[str, _ForwardedCall] = {}
    calls: list[_ForwardedCall] = []
    for event in events:
        match event.payload:
            case GatewayForwarded() as payload:
                forwarded = payload
            case RequestPrepared() as payload:
                prepared = payload
            case LlmCallStarted() as payload:
                if forwarded is not None and prepared is not None:
                    size = payload.estimated_input_tokens
                    call = _ForwardedCall(event.at, payload.model, forwarded, prepared, size)
                    in_progress[payload.request_id] = call
                    calls.append(call)
            case LlmCallCompleted() | LlmCallFailed() as payload:
                ended = in_progress.pop(payload.request_id, None)
                if ended is not None:
                    ended.tokens = payload.usage.tokens_sent or ended.tokens
                    ended.failed = isinstance(payload, LlmCallFailed) and payload.usage == Usage()
                    if isinstance(payload, LlmCallCompleted):
                        ended.rewrite = payload.rewrite or None
            case _:
                pass
    return calls


def _price_policies(calls: list[_ForwardedCall], prices: PriceLookup, paid: Decimal) -> tuple[PolicyCost, ...]:
    """What the session would have cost under the policy of each other tool."""
    row = find_model_or_none(calls[-1].model, prices.models)
    if row is None or not row.prices or not has_plannable_cache(row):
        return ()
    as_sent = _SentBreakpoints()
    # A policy that changes the layout of prompts needs their text, which the log does not have.
    peers: list[CachePolicy] = [policy for name, policy in new_compared_policies().items() if name not in LAYOUTS]
    sent, *tracks = (PolicyTrack(row.cache, policy, row) for policy in (as_sent, *peers))
    prompt, previous = _Prompt(row), None
    for call in calls:
        prompt.enter(call)
        if call.failed or not prompt.prefixes:
            continue
        idle = call.at - previous.at if previous else None
        price = price_at(row, utc_date(call.at), call.tokens)
        moment = PlanningMoment(prompt.buffer, row.cache, price, call.at, idle, "user" if previous else "start")
        points = call.prepared.plan.breakpoints
        as_sent.breakpoints = tuple(point for point in points if point.block_index < len(prompt.prefixes))
        try:
            for track in (sent, *tracks):
                track.send(moment, tuple(prompt.prefixes))
        except UserError:
            # Breakpoints that the cache model refuses, though the provider took them.
            return ()
        previous = call
    rows = (PolicyCost(track.policy.name, float(paid + track.cost_usd - sent.cost_usd)) for track in tracks)
    return tuple(sorted(rows, key=lambda policy: (policy.usd, policy.policy)))


class _SentBreakpoints:
    """The breakpoints that were sent, as a policy."""

    name = "as sent"

    def __init__(self) -> None:
        self.breakpoints: tuple[Breakpoint, ...] = ()

    def choose_breakpoints(self, moment: PlanningMoment) -> tuple[Breakpoint, ...]:
        return self.breakpoints

    def record_usage(self, moment: PlanningMoment, usage: Usage) -> None:
        pass

    def next_ping(self, moment: PlanningMoment, pings_so_far: int, waits_for: object) -> None:
        return None

    def record_ping(self, ping: object) -> None:
        pass


class _Prompt:
    """The prompt of the newest call: one encoded block for each logged block, with its digest in place of its text."""

    def __init__(self, row: Model) -> None:
        self._sizes: list[int] = []
        self.buffer = RequestBuffer(find_adapter(row.provider), lambda data: self._sizes[-1])
        self.prefixes: list[PromptPrefix] = []

    def enter(self, call: _ForwardedCall) -> None:
        """Switch to the prompt of a call."""
        shared_blocks, digests = min(call.prepared.shared_blocks, len(self.prefixes)), call.prepared.digests
        self.buffer.truncate(shared_blocks)
        del self.prefixes[shared_blocks:]
        total_bytes = digests[-1].end if digests else 0
        # The provider's count of the whole prompt is spread over the blocks by their size in bytes.
        tokens_per_byte = call.tokens / total_bytes if total_bytes else 0.0
        for digest, letter in zip(digests, call.forwarded.shape, strict=False):
            self._sizes.append(round((digest.end - digest.start) * tokens_per_byte))
            self.buffer.extend((_make_block(digest, letter),))
            total = (self.prefixes[-1].tokens if self.prefixes else 0) + self._sizes[-1]
            section, chained = self.buffer.blocks[-1].section, self.buffer.digests[-1].digest
            self.prefixes.append(PromptPrefix(section, chained, total, _KIND_OF_LETTER.get(letter.lower(), "plain")))


def _make_block(digest: PrefixDigest, letter: str) -> EncodedBlock:
    section = _SECTION_OF_LETTER.get(letter.lower(), "messages")
    role: Role | None = None if section != "messages" else "assistant" if letter.lower() in "ab" else "user"
    start = TEXT_BLOCK_START if letter.lower() in "ua" else b'{"type":"other"'
    stability = Stability.GROWING if section == "messages" else Stability.FROZEN
    data = start + b',"digest":"%s"}' % digest.digest.encode()
    return EncodedBlock(section, section, stability, data, accepts_breakpoint=letter.isupper(), role=role)
