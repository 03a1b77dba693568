"""The cache plan of the next request, and the prefixes that it reads or writes."""

from msgspec.structs import replace

from holdfast.catalog.schema import CacheRules
from holdfast.engine.cache.ping import keep_alive_refusal
from holdfast.engine.cache.single_flight import BreakpointPrefix, FlightKey
from holdfast.engine.conversation import Conversation
from holdfast.engine.reducer import wait_cause
from holdfast.engine.state import ProviderLimits
from holdfast.events.payloads.cache import CacheLearned
from holdfast.planning.adaptive_policy import first_block_above
from holdfast.planning.learned import forget_cached, has_new_evidence, make_learned_record
from holdfast.planning.plan import plan_cache
from holdfast.planning.policy import PlanningMoment
from holdfast.providers.adapter import model_capabilities
from holdfast.types.json_encoding import extend_digest, sha256_hex
from holdfast.types.prompt import Plan, Ttl
from holdfast.types.request_buffer import RequestBuffer


def plan_next_call(conversation: Conversation, buffer: RequestBuffer, shared: int) -> Plan:
    """The cache plan of the next call; empty if the model does not cache.

    `shared` is the number of leading blocks that equal the previous call's.
    """
    model, state = conversation.deps.model, conversation.state
    if not model_capabilities(model).supports_prompt_caching and not _carries_breakpoints(conversation):
        return Plan()
    memory = state.cache_memory if shared >= len(state.digests) else forget_cached(state.cache_memory)
    # Until the provider has reported this prompt's size it is an estimate, so breakpoints near the floor are kept.
    next_plan = plan_cache(
        current_moment(conversation, buffer),
        memory,
        conversation.deps.learned,
        profile=state.profile,
        keep_small=not memory.blocks,
        ttl=None if state.cache_settings.ttl == "auto" else state.cache_settings.ttl,
    )
    next_plan = apply_limits(next_plan, state.limits, model.cache)
    if conversation.deps.keep_alive is not None and (reason := keep_alive_refusal(conversation)):
        return replace(next_plan, notes=(*next_plan.notes, f"no keep-alive: {reason}"))
    return next_plan


def _carries_breakpoints(conversation: Conversation) -> bool:
    """Whether requests carry breakpoints although nothing is promised: a host behind OpenRouter may cache or not."""
    model = conversation.deps.model
    is_relayed = model.provider == "openrouter" and model.cache.kind == "explicit"
    return is_relayed and conversation.state.cache_settings.caching_enabled


def apply_limits(plan: Plan, limits: ProviderLimits, rules: CacheRules) -> Plan:
    """The plan without its deepest breakpoints, if there are too many; cache reads are then no longer predicted."""
    count_max = len(plan.breakpoints) if limits.breakpoints_max is None else max(0, limits.breakpoints_max)
    breakpoints = plan.breakpoints[:count_max]
    if limits.short_ttls_only:
        breakpoints = tuple(replace(breakpoint, ttl=shortest_ttl(rules)) for breakpoint in breakpoints)
    if breakpoints == plan.breakpoints:
        return plan
    note = f"the provider refused the planned breakpoints: {len(breakpoints)} of {len(plan.breakpoints)} are set"
    return replace(plan, breakpoints=breakpoints, notes=(*plan.notes, note), expected_read_tokens=0)


def shortest_ttl(rules: CacheRules) -> Ttl:
    ttls: tuple[Ttl, ...] = ("5m", "30m", "1h", "12h")
    return next((ttl for ttl in ttls if ttl in rules.ttls_seconds), "5m")


def current_moment(conversation: Conversation, buffer: RequestBuffer) -> PlanningMoment:
    """The current moment, as the planner needs it."""
    state, at = conversation.state, conversation.deps.clock()
    idle_seconds = None if state.cache_memory.last_at is None else at - state.cache_memory.last_at
    price = conversation.price(state.calibration.correct_estimate(buffer.tokens_total))
    return PlanningMoment(buffer, conversation.deps.model.cache, price, at, idle_seconds, wait_cause(state))


def make_flight_key(conversation: Conversation, buffer: RequestBuffer, plan: Plan) -> FlightKey:
    """The single-flight key: the prefixes that end at a breakpoint and reach the floor. Scans no further than that."""
    rules = conversation.deps.model.cache
    # The floor counts the provider's tokens; dividing by the calibration factor converts it to our estimates.
    first_block = first_block_above(buffer.tokens, rules.tokens_min / conversation.state.calibration.factor)
    ends = ((buffer.digests[breakpoint.block_index], breakpoint) for breakpoint in plan.breakpoints)
    prefixes = tuple(
        BreakpointPrefix(end.digest, end.end, rules.ttls_seconds[breakpoint.ttl])
        for end, breakpoint in ends
        if breakpoint.block_index >= first_block
    )
    return FlightKey(_scope(conversation), prefixes) if prefixes else FlightKey("")


def _scope(conversation: Conversation) -> str:
    """The account, the model, and all request parameters that a cache entry may depend on."""
    deps, sent = conversation.deps, conversation.parameters
    # Output limit, streaming, stop sequences and temperature are in no provider's list of what invalidates a cache.
    parameters = replace(sent, output_tokens_max=0, stream=False, stop_sequences=(), temperature=None)
    headers = repr(deps.adapter.endpoint(parameters).headers).encode()
    account = sha256_hex(f"{deps.account}\n{deps.model.id}".encode())
    return extend_digest(account, deps.adapter.request_head(parameters) + headers)


async def record_new_evidence(conversation: Conversation) -> None:
    """Record new evidence about the provider's cache with the end of its turn: a session may end at any time.

    Idle times are recorded at the end only.
    """
    record = _learned_record(conversation)
    if record is not None and has_new_evidence(record, conversation.state.learned_record):
        await conversation.stage("system", record)


async def record_learned(conversation: Conversation) -> None:
    """Record everything that was learned, unless it is already on the log."""
    record = _learned_record(conversation)
    if record is not None and record != conversation.state.learned_record:
        await conversation.record("system", record)


def _learned_record(conversation: Conversation) -> CacheLearned | None:
    memory = conversation.state.cache_memory
    return make_learned_record(memory, conversation.deps.learning_scope) if memory.calls else None
