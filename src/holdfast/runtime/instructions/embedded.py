"""`Library`: instructions embedded in a program, in one database file, with the same rules as the service."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from holdfast.clock import Clock, NewId, new_ulid, system_clock
from holdfast.errors import InstructionError, UserError
from holdfast.events.payloads.session import MessageAppended
from holdfast.instructions import context
from holdfast.instructions.access import InstructionCaller
from holdfast.instructions.coverage.compare import CoverageDiff, MeasuredUnit, compare_manifest_versions, measure_units
from holdfast.instructions.coverage.measure import ProbeReport, probe_manifest
from holdfast.instructions.coverage.metrics import RecallMetrics, compute_recall_metrics
from holdfast.instructions.coverage.schedule import choose_encoder, use_recorded_encoder
from holdfast.instructions.manifest.check import DraftCheck, LintFlaw, find_nonsense_triggers, lint_manifest
from holdfast.instructions.manifest.deploy import (
    ApprovalResult,
    ArchiveResult,
    DeploymentResult,
    UnitDeployment,
    approve_unit,
    archive_files,
    check_instruction_folder,
    promote_manifest,
    publish_instruction_folder,
    record_approval_of,
    roll_back_manifest,
    write_proposed_units,
)
from holdfast.instructions.manifest.publish import PublicationResult
from holdfast.instructions.manifest.validate import SubmittedApproval
from holdfast.instructions.migration.files import read_instruction_folder, read_migration_files
from holdfast.instructions.migration.proposal import MigrationProposal, MigrationTarget, propose_migration
from holdfast.instructions.models import Agent, ManifestEntry
from holdfast.instructions.recall.answer import (
    RecallAnswer,
    RecallReplay,
    answer_recall,
    close_audit_record,
    manifest_digest,
    render_all_instructions,
    render_standing_instructions,
    replay_recall,
)
from holdfast.instructions.recall.boot_stub import (
    EntryCost,
    measure_entry_cost,
    normalize_profile,
    render_index,
    with_published_contract,
)
from holdfast.instructions.recall.heartbeat import load_boot_stub, start_heartbeat
from holdfast.instructions.recall.selection import InstructionSet, RecallQuery
from holdfast.instructions.settings import InstructionSettings
from holdfast.instructions.units.signatures import load_deployment_key
from holdfast.instructions.units.write import withdraw_unit
from holdfast.instructions.usage.detect import UsageComparison, analyse_trace, record_trace_usage
from holdfast.instructions.usage.shadow import ShadowReport, make_shadow_report
from holdfast.instructions.usage.trace import (
    Trace,
    TraceStep,
    extract_steps,
    find_audit_tokens,
    trace_from_token,
    truncate_trace,
)
from holdfast.retrieval.encoders.registry import create_semantic_stage, default_encoder
from holdfast.runtime.instructions.heartbeat import HeartbeatRun, Preload, WakeStart
from holdfast.stores.memory import MemoryStore
from holdfast.stores.open import open_store

if TYPE_CHECKING:
    from holdfast.runtime.options import SessionInstructions


class EncoderStatus(msgspec.Struct, frozen=True):
    """The encoder that recall uses; None means lexical and link ranking only.

    `failing_agents` are those whose manifests fail their coverage gate with the configured encoder. `is_switched`
    is true if another encoder was in use before this library was opened.
    """

    configured: str | None
    active: str | None
    is_switched: bool
    failing_agents: tuple[str, ...]


DAY_MS = 86_400_000
DEFAULT_AGENT = "main"


class Library:
    """The instructions of agents in one database; a context manager. Writes are signed by a key stored beside the file.

    `entity` is the URI of the person on whose behalf the library acts. Agents are named by id or shortname.
    `accept_encoder` uses the configured encoder even if manifests fail their coverage gate with it; `certify_again`
    measures manifests again that failed with it before. With `read_only` neither the store nor a key file is written;
    the encoder in use stays in use.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        settings: InstructionSettings | None = None,
        key_path: Path | None = None,
        entity: str | None = None,
        accept_encoder: bool = False,
        certify_again: bool = False,
        read_only: bool = False,
        clock: Clock = system_clock,
        new_id: NewId = new_ulid,
        warn: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._store = open_store(path, read_only=read_only)
        if self._store.notice is not None:
            warn(f"holdfast: {self._store.notice}")
        try:
            if isinstance(self._store, MemoryStore):
                raise UserError("instructions need a SQLite file or a PostgreSQL URL as their store")
            # A database URL has no folder: key and files then go into the working folder.
            base_path = Path("instructions") if "://" in os.fspath(path) else Path(path)
            if settings is None:
                root = base_path.parent / f"{base_path.stem}-files"
                settings = InstructionSettings(root=root, encoder=default_encoder())
            key_path = key_path or base_path.with_suffix(".key")
            self._context = context.InstructionContext(
                self._store.instructions,
                settings,
                key=None if read_only and not key_path.exists() else load_deployment_key(key_path),
                clock=clock,
                new_id=new_id,
                warn=warn,
            )
            # Switching the encoder changes which units a recall finds, so it is measured and reported.
            previous_encoder = self._context.records.encoder()
            self._failing: tuple[str, ...] = ()
            if read_only:
                use_recorded_encoder(self._context)
            else:
                self._failing = choose_encoder(self._context, accept=accept_encoder, again=certify_again)
            self._switched = previous_encoder is not None and previous_encoder != self._context.records.encoder()
        except BaseException:
            self._store.close()
            raise
        self._admin = InstructionCaller("admin", "embedded", entity)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        self._store.close()

    @property
    def encoder(self) -> EncoderStatus:
        """The encoder, loaded and ready to use. Raises UserError if it cannot be loaded."""
        context = self._context
        context.instruction_sets.load_encoder()
        return EncoderStatus(context.settings.encoder, context.instruction_sets.encoder, self._switched, self._failing)

    def migrate(
        self, *paths: str | os.PathLike[str], agent: str = DEFAULT_AGENT, version: str = "v1", root: Path | None = None
    ) -> MigrationProposal:
        """Propose how to split instruction files into units; nothing is written or published."""
        settings = self._context.settings
        source = read_migration_files([Path(path) for path in paths], root=root)
        encoder = settings.encoder
        proposal = propose_migration(
            source.files,
            MigrationTarget(agent_id=agent, deployment=settings.deployment, version=version),
            meaning=lambda: create_semantic_stage(encoder) if encoder else None,
        )
        return msgspec.structs.replace(proposal, warnings=(*source.warnings, *proposal.warnings))

    def write(self, proposal: MigrationProposal) -> dict[str, UnitDeployment]:
        """Store the units of a proposal; they cannot be recalled before a published manifest lists them."""
        return write_proposed_units(self._context, proposal, self._admin)

    def check(self, folder: str | os.PathLike[str]) -> DraftCheck:
        return check_instruction_folder(self._context, read_instruction_folder(Path(folder)), self._admin)

    def publish(self, folder: str | os.PathLike[str], *, skip_coverage_gate: bool = False) -> DeploymentResult:
        """Raises InstructionError if a check fails; then nothing was changed."""
        units = read_instruction_folder(Path(folder))
        return publish_instruction_folder(self._context, units, self._admin, skip_coverage_gate=skip_coverage_gate)

    def promote(self, agent: str = DEFAULT_AGENT, *, force: bool = False) -> PublicationResult:
        return promote_manifest(self._context, agent, self._admin, force=force)

    def rollback(self, version: str, *, agent: str = DEFAULT_AGENT) -> DeploymentResult:
        return roll_back_manifest(self._context, agent, version, self._admin)

    def approve(self, unit: str, *, agent: str = DEFAULT_AGENT, reason: str = "") -> ApprovalResult:
        """Approve the newest version of a unit that is loaded without a recall. Raises InstructionError."""
        return approve_unit(self._context, agent, unit, self._admin, reason=reason)

    def record_approval(self, approval: SubmittedApproval, *, agent: str = DEFAULT_AGENT) -> ApprovalResult:
        """Record any approval that a manifest needs, also before it is published. Raises InstructionError."""
        return record_approval_of(self._context, agent, approval, self._admin)

    def withdraw(self, unit: str, *, agent: str = DEFAULT_AGENT) -> str:
        """Quarantine the newest version of a unit: no recall returns it from now on. Returns its URI."""
        entry = next((entry for entry in self.entries(agent) if entry.name == unit), None)
        content = self._instruction_set(agent)[1].contents.get(unit)
        if entry is None or content is None or content.fact_uri is None:
            how = "`holdfast instructions index` shows the units of its manifest"
            raise InstructionError("unit_not_found", f"agent {agent[:80]!a} has no active unit {unit[:80]!a}; {how}")
        return withdraw_unit(self._context, content.fact_uri).uri

    def archive(
        self, *files: str | os.PathLike[str], root: str | os.PathLike[str], agent: str = DEFAULT_AGENT
    ) -> ArchiveResult:
        return archive_files(self._context, agent, [Path(file) for file in files], root=Path(root))

    def recall(
        self,
        intent: str,
        *,
        agent: str = DEFAULT_AGENT,
        max_chunks: int | None = None,
        token_budget: int | None = None,
        manifest_hint: Sequence[str] = (),
        heartbeat_id: str | None = None,
        shadow: bool = False,
    ) -> RecallAnswer:
        """The units that match the intent, and the audit token for reporting usage. Raises InstructionError.

        With `shadow`, record the recall as one of a turn whose prompt had all instructions; see `shadow_report`.
        """
        if not intent.strip():
            raise InstructionError("intent_required", "say in `intent` what you are about to do")
        record, instruction_set = self._instruction_set(agent)
        use_floor, limits = self._context.settings.use_floor, {"max_chunks": max_chunks, "token_budget": token_budget}
        question = RecallQuery(intent=intent, manifest_hint=tuple(manifest_hint), use_floor=use_floor)
        given_limits = {name: limit for name, limit in limits.items() if limit is not None}
        question = msgspec.structs.replace(question, **given_limits)
        caller = InstructionCaller(f"agent:{record.id}", "embedded")
        return answer_recall(
            self._context, record, instruction_set, question, caller=caller, heartbeat_id=heartbeat_id, shadow=shadow
        )

    def submit_usage(self, audit_token: str, *, used: Sequence[str] = (), missed: Sequence[str] = ()) -> None:
        close_audit_record(self._context, audit_token, self._admin, used=tuple(used), missed=tuple(missed))

    def submit_trace(self, audit_token: str, trace: Sequence[TraceStep]) -> None:
        """Submit, once, the agent's steps after the recall, from which usage is detected. The record stays open."""
        record_trace_usage(self._context, audit_token, self._admin, trace)

    def detect_usage(self, audit_token: str, trace: Sequence[TraceStep], *, keep: bool = False) -> UsageComparison:
        """Compare the loaded units with the usage that the agent reported and that the trace shows."""
        steps = truncate_trace(trace_from_token(trace, audit_token))
        return analyse_trace(self._context, audit_token, steps, keep=keep)

    def detect_all_usage(
        self, trace: Sequence[TraceStep], *, agent: str = DEFAULT_AGENT, keep: bool = False
    ) -> tuple[UsageComparison, ...]:
        """`detect_usage` for every recall of the agent in the trace, each with the steps that followed it."""
        record = self._context.records.agent(agent)
        audits = (self._context.records.audit(token) for token in find_audit_tokens(trace))
        return tuple(
            self.detect_usage(audit.audit_token, trace, keep=keep)
            for audit in audits
            if audit is not None and record is not None and audit.agent_id == record.id
        )

    def session_trace(self, session_id: str) -> Trace:
        """The messages and tool calls of a session in this store, as steps."""
        payloads = (event.payload for event in self._store.read(session_id))
        return tuple(extract_steps(payload.message for payload in payloads if isinstance(payload, MessageAppended)))

    def heartbeat(
        self, wake_token: str | None = None, *, agent: str = DEFAULT_AGENT, profile: str = "generic"
    ) -> HeartbeatRun[RecallAnswer]:
        """A context manager that reports usage when it exits. Preloads need a signed wake token."""
        record = self._context.records.agent(agent)
        if wake_token is None:
            stub = load_boot_stub(self._context, agent, record, profile)
            recall = partial(self.recall, agent=agent, heartbeat_id=self._context.new_id("run"))
            return HeartbeatRun(recall, self.submit_usage, self.submit_trace, stub=stub.body)
        caller = InstructionCaller(f"agent:{agent}", "embedded")
        started = start_heartbeat(self._context, agent, record, wake_token, caller=caller, profile=profile)
        preloads = tuple(Preload(unit.name, unit.content.text) for unit in started.preloads)
        begun = WakeStart(started.heartbeat_id, preloads, started.audit_token)
        recall = partial(self.recall, agent=agent, heartbeat_id=started.heartbeat_id)
        return HeartbeatRun(recall, self.submit_usage, self.submit_trace, stub=started.stub.body, begun=begun)

    def for_session(
        self,
        agent: str = DEFAULT_AGENT,
        *,
        profile: str = "generic",
        manifest_uri: str | None = None,
        sha256: str | None = None,
        shadow: bool = False,
    ) -> "SessionInstructions":
        """The value for a session's `instructions` option.

        Raises InstructionError if the manifest is not the one that `manifest_uri` and `sha256` name. With `shadow`,
        all instructions are in the prompt, and what would be recalled for each message is only recorded.
        """
        # They import the engine, which no other method needs and which a session-start hook would wait for.
        from holdfast.runtime.instructions import session_tools  # noqa: PLC0415
        from holdfast.runtime.options import SessionInstructions  # noqa: PLC0415

        record, instruction_set = self._instruction_set(agent)
        manifest = instruction_set.manifest
        if manifest_uri not in (None, manifest.fact_uri) or sha256 not in (None, manifest_digest(manifest)):
            reason = f"the manifest of {agent[:80]!a} is {manifest.fact_uri}, which is not the requested one"
            raise InstructionError("manifest_refused", reason)
        recall = partial(self.recall, agent=agent)
        if shadow:
            text = render_all_instructions(record, instruction_set)
            return session_tools.shadow_instructions(text, recall, self.submit_usage, self.submit_trace)
        named = with_published_contract(self._context.records, record)
        text = render_standing_instructions(named, manifest, normalize_profile(profile))
        tools = session_tools.instruction_tools(recall, self.submit_usage)
        return SessionInstructions(text, tools, session_tools.make_trace_submitter(self.submit_trace))

    def manifest_sha256(self, agent: str = DEFAULT_AGENT) -> str:
        return manifest_digest(self._instruction_set(agent)[1].manifest)

    def stub(self, agent: str = DEFAULT_AGENT, *, profile: str = "generic") -> str:
        return load_boot_stub(self._context, agent, self._context.records.agent(agent), profile).body

    def entries(self, agent: str = DEFAULT_AGENT) -> tuple[ManifestEntry, ...]:
        return self._instruction_set(agent)[1].manifest.body

    def index(self, agent: str = DEFAULT_AGENT) -> str:
        """One line per unit, for the part of the prompt that an agent always sees."""
        return render_index(self.entries(agent))

    def costs(self, agent: str = DEFAULT_AGENT) -> tuple[EntryCost, ...]:
        return tuple(map(measure_entry_cost, self.entries(agent)))

    def lint(self, agent: str = DEFAULT_AGENT) -> tuple[LintFlaw, ...]:
        instruction_set = self._instruction_set(agent)[1]
        texts = {name: content.text for name, content in instruction_set.contents.items()}
        entries, encoder = instruction_set.manifest.body, self._context.instruction_sets.encoder
        return (*lint_manifest(entries, texts), *find_nonsense_triggers(entries, texts, encoder))

    def probe(self, agent: str = DEFAULT_AGENT, *, k: int = 3) -> ProbeReport:
        record, instruction_set = self._instruction_set(agent)
        probes = self._context.records.probes(record.id)
        return probe_manifest(instruction_set, probes, k=k, use_floor=self._context.settings.use_floor)

    def coverage(self, agent: str = DEFAULT_AGENT) -> tuple[MeasuredUnit, ...]:
        """How well recall finds each unit now, measured like the coverage gate of a publication."""
        return measure_units(self._instruction_set(agent)[1], self._context.settings)

    def coverage_diff(self, version: str, *, agent: str = DEFAULT_AGENT) -> CoverageDiff:
        """How the coverage changed since an earlier version of the manifest."""
        return compare_manifest_versions(self._context, agent, version)

    def replay(self, audit_token: str) -> RecallReplay:
        record = self._context.records.audit(audit_token)
        agent = self._context.records.agent(record.agent_id) if record else None
        if record is None or agent is None:
            raise InstructionError(
                "audit_not_found", "there is no such audit record; the answer to a recall has its token"
            )
        return replay_recall(self._context, agent, record)

    def metrics(self, agent: str = DEFAULT_AGENT, *, days: int = 7, k: int = 3) -> RecallMetrics:
        record, instruction_set = self._instruction_set(agent)
        audits = self._context.records.audits(record.id, since=self._context.now() - days * DAY_MS)
        return compute_recall_metrics(audits, instruction_set.manifest.body, k=k)

    def shadow_report(self, agent: str = DEFAULT_AGENT, *, days: int = 30) -> ShadowReport:
        """Whether lazy recall would have been enough in the shadow-mode turns recorded for the current manifest."""
        record, instruction_set = self._instruction_set(agent)
        audits = self._context.records.audits(record.id, since=self._context.now() - days * DAY_MS)
        return make_shadow_report(audits, instruction_set.manifest)

    def _instruction_set(self, agent: str) -> tuple[Agent, InstructionSet]:
        return self._context.require_instruction_set(agent, self._context.records.agent(agent))
