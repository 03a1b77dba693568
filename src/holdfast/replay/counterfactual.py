"""What a forwarded session would have cost with `--improve`, under other policies, and at the optimum.

The log holds no text of such a session, but the digest, size and kind of every block. All estimates are of prompts
only, computed with the cache model and the provider's own token counts; they are meant to be compared with one another.
"""

from collections.abc import Iterable
from decimal import Decimal

import msgspec

from holdfast.cachemodel.values import BlockKind, PromptPrefix
from holdfast.catalog.lookup import Models, find_model_or_none, price_at, utc_date
from holdfast.catalog.schema import Model, Price
from holdfast.events.log import Event
from holdfast.events.payloads.calls import (
    GatewayForwarded,
    LlmCallCompleted,
    LlmCallFailed,
    LlmCallStarted,
    RequestPrepared,
)
from holdfast.ledger.calls import ping_cost_usd
from holdfast.planning.adaptive_policy import AdaptivePolicy
from holdfast.planning.learned import LearnedParameters
from holdfast.planning.optimum import CallStep, optimal_cost, token_rates
from holdfast.planning.policies.fixed import TEXT_BLOCK_START
from holdfast.planning.policies.peers import new_compared_policies
from holdfast.planning.policy import PlanningMoment
from holdfast.providers.registry import find_adapter
from holdfast.replay.comparison import LAYOUTS
from holdfast.replay.size_estimate import PolicyTrack
from holdfast.types.blocks import Role
from holdfast.types.prompt import PromptSection, Stability
from holdfast.types.request_buffer import EncodedBlock, PrefixDigest, RequestBuffer
from holdfast.types.usage import Usage

# Letters of `GatewayForwarded.shape`: t tool definition, s system, u and a text of user and assistant, b tool use,
# r tool result; upper case if the block can take a breakpoint.
_SECTION_OF_LETTER: dict[str, PromptSection] = {"t": "tools", "s": "system"}
_KIND_OF_LETTER: dict[str, BlockKind] = {"b": "tool_use", "r": "tool_result"}


class AntiPatternCost(msgspec.Struct, frozen=True):
    """What keeping one anti-pattern costs if all others are fixed, and in how many calls it occurred."""

    anti_pattern: str
    calls: int
    is_fixed: bool
    usd: float


class PolicyCost(msgspec.Struct, frozen=True):
    policy: str
    usd: float


class Counterfactual(msgspec.Struct, frozen=True):
    """`cost_usd` is what was paid, replies and pings included. All other amounts are modelled, for prompts only.

    `optimum_usd` is the lowest possible cost of the prompts as sent, under any placement of breakpoints;
    `improved_optimum_usd` is the same for the improved prompts. If nothing can be planned there are no policies and no
    optimum.
    """

    calls: int
    cost_usd: float
    as_sent_usd: float
    improved_usd: float
    optimum_usd: float | None
    improved_optimum_usd: float | None
    anti_patterns: tuple[AntiPatternCost, ...]
    policies: tuple[PolicyCost, ...]


class _ForwardedCall(msgspec.Struct):
    """A logged request; `tokens` is the provider's count once the call has completed.

    A request that failed without usage was not paid for and left nothing in the cache.
    """

    at: float
    model: str
    forwarded: GatewayForwarded
    shared_blocks: int
    digests: tuple[PrefixDigest, ...]
    tokens: int
    cost_usd: Decimal = Decimal(0)
    failed: bool = False


def list_paid_calls(events: Iterable[Event]) -> tuple[GatewayForwarded, ...]:
    """The forwarding record of each call that was answered or is in progress."""
    return tuple(call.forwarded for call in _list_forwarded_calls(events) if not call.failed)


def estimate_counterfactual(events: Iterable[Event], models: Models) -> Counterfactual | None:
    """None if no call of the session went through a gateway, was answered and was priced."""
    logged = list(events)
    calls = [call for call in _list_forwarded_calls(logged) if call.forwarded.prompt_price is not None]
    answered = [call for call in calls if not call.failed]
    if not answered:
        return None
    spent = sum((call.cost_usd for call in answered), ping_cost_usd(logged))
    lowest, lowest_improved, policies = _price_policies(calls, models)
    priced = [call.forwarded.prompt_price for call in answered if call.forwarded.prompt_price is not None]
    as_sent = sum(estimate.as_sent_usd for estimate in priced)
    improved = sum(estimate.improved_usd for estimate in priced)
    paid = (as_sent, *(row.usd for row in policies))
    return Counterfactual(
        calls=len(answered),
        cost_usd=float(spent),
        as_sent_usd=as_sent,
        improved_usd=improved,
        # Token counts are rounded slightly differently in the two models; no reached cost may be below the optimum.
        optimum_usd=None if lowest is None else min(lowest, *paid),
        improved_optimum_usd=None if lowest_improved is None else min(lowest_improved, improved),
        anti_patterns=_price_anti_patterns(answered),
        policies=policies,
    )


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
                    size = forwarded.prompt_price.tokens if forwarded.prompt_price else 0
                    shared_blocks, digests = prepared.shared_blocks, prepared.digests
                    call = _ForwardedCall(event.at, payload.model, forwarded, shared_blocks, digests, size)
                    in_progress[payload.request_id] = call
                    calls.append(call)
            case LlmCallCompleted() | LlmCallFailed() as payload:
                completed = in_progress.pop(payload.request_id, None)
                if completed is not None:
                    completed.tokens = payload.usage.tokens_sent or completed.tokens
                    completed.cost_usd = payload.cost_usd
                    completed.failed = isinstance(payload, LlmCallFailed) and payload.usage == Usage()
            case _:
                pass
    return calls


def _price_anti_patterns(forwarded_calls: Iterable[_ForwardedCall]) -> tuple[AntiPatternCost, ...]:
    totals: dict[tuple[str, bool], tuple[int, float]] = {}
    for call in forwarded_calls:
        for change in call.forwarded.changes:
            calls, usd = totals.get((change.anti_pattern, change.is_applied), (0, 0.0))
            totals[change.anti_pattern, change.is_applied] = calls + 1, usd + (change.cost_usd or 0.0)
    rows = (AntiPatternCost(name, calls, fixed, usd) for (name, fixed), (calls, usd) in totals.items())
    return tuple(sorted(rows, key=lambda row: (-row.usd, row.anti_pattern)))


def _price_policies(
    calls: list[_ForwardedCall], models: Models
) -> tuple[float | None, float | None, tuple[PolicyCost, ...]]:
    """The lowest cost of the prompts as sent and as improved, and the cost under each policy."""
    row = find_model_or_none(calls[-1].model, models)
    if (
        row is None
        or row.cache.kind != "explicit"
        or not {"5m", "1h"} <= row.cache.ttls_seconds.keys()
        or not row.prices
    ):
        return None, None, ()
    # A policy that changes the layout of prompts needs their text, which the log does not have.
    baselines = [policy for name, policy in new_compared_policies().items() if name not in LAYOUTS]
    tracks = [PolicyTrack(row.cache, policy, row) for policy in (AdaptivePolicy(LearnedParameters()), *baselines)]
    prompt, as_sent, improved = _Prompt(row), list[CallStep](), list[CallStep]()
    previous: _ForwardedCall | None = None
    shared_since: int | None = None
    for call in calls:
        shared = prompt.enter(call)
        # A prefix shared with the last answered request must be shared with every failed request in between as well.
        shared = shared if shared_since is None else min(shared_since, shared)
        shared_since = shared if call.failed else None
        if call.failed:
            continue
        idle = call.at - previous.at if previous else None
        price = price_at(row, utc_date(call.at), call.tokens)
        moment = PlanningMoment(prompt.buffer, row.cache, price, call.at, idle, "user" if previous else "start")
        for track in tracks:
            track.send(moment, tuple(prompt.prefixes))
        as_sent.append(CallStep(prompt.prefixes[-1].tokens if prompt.prefixes else 0, shared, idle))
        if call.forwarded.prompt_price is not None:
            size = call.forwarded.prompt_price
            improved.append(CallStep(size.improved_tokens, size.improved_shared_tokens, idle))
        previous = call
    newest = price_at(row, utc_date(calls[-1].at), max(step.prompt_tokens for step in as_sent))
    rows = (PolicyCost(track.policy.name, float(track.cost_usd)) for track in tracks)
    lowest, lowest_improved = (_lowest_cost(steps, newest, row) for steps in (as_sent, improved))
    return lowest, lowest_improved, tuple(sorted(rows, key=lambda row: (row.usd, row.policy)))


def _lowest_cost(steps: list[CallStep], price: Price, row: Model) -> float:
    """The optimum with hindsight: tokens that no later call shares are sent uncached, the rest is planned optimally."""
    rates = token_rates(price, row.cache)
    plain_tokens, cacheable = 0, list[CallStep]()
    # Step(prompt, shared, idle): what neither this call shares with the last one nor the next with this is plain input.
    for current, following in zip(steps, (*steps[1:], None), strict=True):
        reusable = max(current.shared_tokens, following.shared_tokens if following else 0)
        plain_tokens += current.prompt_tokens - reusable
        cacheable.append(CallStep(reusable, current.shared_tokens, current.idle_seconds))
    return optimal_cost(cacheable, rates, upgrades=row.cache.ttl_upgrade) + rates.plain * plain_tokens


class _Prompt:
    """The prompt of the newest call: one encoded block for each logged block, with its digest in place of its text."""

    def __init__(self, row: Model) -> None:
        self._sizes: list[int] = []
        self.buffer = RequestBuffer(find_adapter(row.provider), lambda data: self._sizes[-1])
        self.prefixes: list[PromptPrefix] = []
        self._bytes = 0

    def enter(self, call: _ForwardedCall) -> int:
        """Switch to the prompt of a call; returns how many leading tokens it shares with the previous prompt."""
        shared_blocks = min(call.shared_blocks, len(self.prefixes))
        self.buffer.truncate(shared_blocks)
        del self.prefixes[shared_blocks:]
        total_bytes = call.digests[-1].end if call.digests else 0
        # The provider's count of the whole prompt is spread over the blocks by their size in bytes.
        tokens_per_byte = call.tokens / total_bytes if total_bytes else 0.0
        for digest, letter in zip(call.digests, call.forwarded.shape, strict=False):
            self._sizes.append(round((digest.end - digest.start) * tokens_per_byte))
            self.buffer.extend((_make_block(digest, letter),))
            total = (self.prefixes[-1].tokens if self.prefixes else 0) + self._sizes[-1]
            section, chained = self.buffer.blocks[-1].section, self.buffer.digests[-1].digest
            self.prefixes.append(PromptPrefix(section, chained, total, _KIND_OF_LETTER.get(letter.lower(), "plain")))
        return self.prefixes[shared_blocks - 1].tokens if shared_blocks else 0


def _make_block(digest: PrefixDigest, letter: str) -> EncodedBlock:
    section = _SECTION_OF_LETTER.get(letter.lower(), "messages")
    role: Role | None = None if section != "messages" else "assistant" if letter.lower() in "ab" else "user"
    start = TEXT_BLOCK_START if letter.lower() in "ua" else b'{"type":"other"'
    stability = Stability.GROWING if section == "messages" else Stability.FROZEN
    data = start + b',"digest":"%s"}' % digest.digest.encode()
    return EncodedBlock(section, section, stability, data, accepts_breakpoint=letter.isupper(), role=role)
