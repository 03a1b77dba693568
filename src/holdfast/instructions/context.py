"""The dependencies of every instruction operation: records, settings, signing key, clock, ids, cached sets."""

from collections.abc import Callable

from holdfast.clock import Clock, NewId, new_ulid, system_clock
from holdfast.errors import InstructionError
from holdfast.instructions.models import Agent, Manifest, Signer
from holdfast.instructions.recall.selection import InstructionSet
from holdfast.instructions.recall.snapshot import InstructionSetCache
from holdfast.instructions.settings import InstructionSettings
from holdfast.instructions.store import InstructionRecords
from holdfast.instructions.units.signatures import DeploymentKey
from holdfast.instructions.uri import RESERVED_OWNERS, SEGMENT_PATTERN

DEPLOYMENT_SIGNER = "deployment"


class InstructionContext:
    """One per process; everything it caches can be rebuilt from the records at any time."""

    def __init__(
        self,
        records: InstructionRecords,
        settings: InstructionSettings,
        *,
        key: DeploymentKey | None,
        clock: Clock = system_clock,
        new_id: NewId = new_ulid,
        warn: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.records = records
        self.settings = settings
        self.key = key
        self.instruction_sets = InstructionSetCache(records, settings, self.now)
        self.warn = warn
        self._clock = clock
        self._new_id = new_id

    def now(self) -> int:
        """Milliseconds."""
        return int(self._clock() * 1000)

    def new_id(self, prefix: str) -> str:
        return f"{prefix}_{self._new_id(self._clock())}"

    def signers(self) -> tuple[Signer, ...]:
        """Trusted signers: the deployment itself, and people who currently have an admin key."""
        deployment = (Signer(DEPLOYMENT_SIGNER, self.key.public_key, 0),) if self.key else ()
        return (*deployment, *self.records.signers(at=self.now()))

    def require_manifest(self, agent_name: str) -> tuple[Agent, Manifest]:
        """Raises InstructionError `manifest_not_found`."""
        agent = self.records.agent(agent_name)
        manifest = self.records.manifest(agent.id) if agent else None
        if agent is None or manifest is None:
            raise manifest_not_found_error(agent_name)
        return agent, manifest

    def require_instruction_set(self, agent_name: str, agent: Agent | None) -> tuple[Agent, InstructionSet]:
        """Raises InstructionError `manifest_not_found`."""
        instruction_set = None if agent is None else self.instruction_sets.load_current(agent)
        if agent is None or instruction_set is None:
            raise manifest_not_found_error(agent_name)
        return agent, instruction_set


def manifest_not_found_error(agent_name: str) -> InstructionError:
    how = "`holdfast instructions publish` publishes one"
    return InstructionError("manifest_not_found", f"agent {agent_name[:80]!a} has no manifest; {how}")


def make_agent(context: InstructionContext, agent_id: str) -> Agent:
    """Raises InstructionError `agent_id_invalid`."""
    if not SEGMENT_PATTERN.fullmatch(agent_id) or agent_id in RESERVED_OWNERS:
        message = "an agent id has letters, digits and . _ @ + - only, and is not shared, skill or agent"
        raise InstructionError("agent_id_invalid", message)
    return Agent(agent_id, context.settings.deployment, context.now())
