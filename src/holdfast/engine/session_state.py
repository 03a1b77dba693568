"""The state of a session at one moment."""

from decimal import Decimal
from typing import Literal

import msgspec

from holdfast.canonical.pieces import Link
from holdfast.canonical.prompt import Parameters, Passage, Segment
from holdfast.canonical.tools import ToolSpec
from holdfast.canonical.usage import Usage
from holdfast.canonical.view import LayerText, Layout
from holdfast.catalog.tokens import Calibration
from holdfast.compaction.watch import Watch
from holdfast.engine.activation import NOTHING_ACTIVE, Activations
from holdfast.engine.answered import Comparison
from holdfast.engine.limits import UNLIMITED, Limits
from holdfast.engine.sent import SentCall, Turn
from holdfast.events.payloads import (
    CacheLearned,
    LlmCallStarted,
    Parent,
)
from holdfast.events.payloads_controls import CacheControlled
from holdfast.planning.explicit import KeptPrefix
from holdfast.planning.memory import Memory, Sent
from holdfast.recovery.ledger import NOTHING_HAPPENED, Ledger


class State(msgspec.Struct, frozen=True):
    """The first `sent` entries were in the last request or its reply; `links` is that request's digest chain.

    `uncached_calls` counts calls that read nothing from any cache; `uncached_span` holds the start times of the first
    and the last of them. `padding` is the reason for the padding decision. `request` is the newest request, `last_call`
    the newest completed one. `delegating` are sessions that work for this one; their cost is not included yet.
    `messages` counts all messages on the log, including those no longer in the view.
    """

    session_id: str
    model: str = ""
    name: str | None = None
    profile: Literal["default", "seed"] = "default"
    layout: Layout = "default"
    workspace_path: str | None = None
    simulated: bool = False
    user_id: str | None = None
    team_id: str | None = None
    spend_max_usd: Decimal | None = None
    parameters: Parameters | None = None
    started_at: float = 0.0
    last_event_id: str | None = None
    epoch: int = 0
    pinned: tuple[LayerText, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    skills: tuple[str, ...] = ()
    head: tuple[Segment, ...] = ()
    passages: tuple[Passage, ...] = ()
    sent: int = 0
    emitted: tuple[LayerText, ...] = ()
    first_ephemeral: int | None = None
    system_tail: LayerText | None = None
    links: tuple[Link, ...] = ()
    answered_links: int = 0
    request: Sent | None = None
    memory: Memory = Memory()
    taught: CacheLearned | None = None
    turn: Turn | None = None
    turn_count: int = 0
    padding: str | None = None
    call_open: LlmCallStarted | None = None
    last_call: SentCall | None = None
    comparison: Comparison = Comparison()
    called_tools: bool = False
    activations: Activations = NOTHING_ACTIVE
    usage: Usage = Usage()
    cost_usd: Decimal = Decimal(0)
    pinged_usd: Decimal = Decimal(0)
    calibration: Calibration = Calibration()
    uncached_calls: int = 0
    uncached_span: tuple[float, float] = (0.0, 0.0)
    kept: KeptPrefix | None = None
    refused_prefix: str | None = None
    parent: Parent | None = None
    delegating: frozenset[str] = frozenset()
    limits: Limits = UNLIMITED
    incidents: Ledger = NOTHING_HAPPENED
    control: CacheControlled = CacheControlled()
    ended: bool = False
    messages: int = 0
    compaction: Watch = Watch()
