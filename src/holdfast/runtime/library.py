"""`Library`: instructions embedded in a program, in one database file, with the same rules as the service."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from holdfast.clock import Clock, NewId, new_ulid, system_clock
from holdfast.errors import UserError
from holdfast.events.payloads import MessageAppended
from holdfast.instructions import library
from holdfast.instructions.archiving import Archived, archive
from holdfast.instructions.asking import Answered, Replayed, ask, close, replay
from holdfast.instructions.callers import Caller
from holdfast.instructions.certifying import choose_encoder
from holdfast.instructions.checking import Checked
from holdfast.instructions.comparing import CoverageDiff, Measured, compare_versions, covered
from holdfast.instructions.deploying import (
    Approved,
    Change,
    Deployed,
    approve,
    check_folder,
    promote,
    publish_folder,
    roll_back,
    write_units,
)
from holdfast.instructions.failures import InstructionError
from holdfast.instructions.heartbeat import boot_stub, wake
from holdfast.instructions.index_lines import EntryCost, entry_cost, index_text
from holdfast.instructions.lint import Flaw, lint
from holdfast.instructions.measures import Measures, measured
from holdfast.instructions.migration.folder import read_folder
from holdfast.instructions.migration.proposal import Proposal, Wanted, propose
from holdfast.instructions.migration.reading import read_files
from holdfast.instructions.probing import Probed, probe
from holdfast.instructions.publishing import Published
from holdfast.instructions.recall import Question, Shelf
from holdfast.instructions.records import HasInstructions
from holdfast.instructions.settings import InstructionSettings
from holdfast.instructions.shadowing import ShadowReport, shadow_report
from holdfast.instructions.signatures import deployment_key
from holdfast.instructions.stub import known_profile
from holdfast.instructions.told import eager_text, manifest_sha256, standing_text
from holdfast.instructions.trace import Step, Trace, from_token, shortened, steps_of, tokens_in
from holdfast.instructions.values import Agent, Entry
from holdfast.instructions.watching import UsageSeen, keep_trace, look_at
from holdfast.retrieval.meaning import default_encoder, meaning_stage
from holdfast.runtime.heard_steps import TurnTraces
from holdfast.runtime.heartbeats import Beat, Begun, Preload
from holdfast.runtime.in_shadow import in_shadow
from holdfast.runtime.instructed import Instructed
from holdfast.runtime.instruction_tools import instruction_tools
from holdfast.stores.open import open_store


class EncoderInUse(msgspec.Struct, frozen=True):
    """The encoder that recall uses; None means lexical and link ranking only.

    `failing` lists the agents whose manifests fail their coverage gate with the configured encoder. `switched` is
    true if another encoder was in use before this library was opened.
    """

    configured: str | None
    in_use: str | None
    switched: bool
    failing: tuple[str, ...]


DAY_MS = 86_400_000
MAIN = "main"


class Library:
    """The instructions of agents in one database; a context manager. Writes are signed by a key stored beside the file.

    `entity` is the URI of the person on whose behalf the library acts. Agents are named by id or shortname.
    `accept_encoder` uses the configured encoder even if manifests fail their coverage gate with it; `certify_again`
    measures manifests again that failed with it before.
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
        clock: Clock = system_clock,
        new_id: NewId = new_ulid,
        warn: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._store = open_store(path)
        try:
            if not isinstance(self._store, HasInstructions):
                raise UserError("instructions need a SQLite file or a PostgreSQL URL as their store")
            # A database URL has no folder: key and files then go into the working folder.
            base_path = Path("instructions") if "://" in os.fspath(path) else Path(path)
            if settings is None:
                root = base_path.parent / f"{base_path.stem}-files"
                settings = InstructionSettings(root=root, encoder=default_encoder())
            self._context = library.Library(
                self._store.instructions,
                settings,
                key=deployment_key(key_path or base_path.with_suffix(".key")),
                clock=clock,
                new_id=new_id,
                warn=warn,
            )
            # Switching the encoder changes which units a recall finds, so it is measured and reported.
            previous_encoder = self._context.records.encoder()
            self._failing = choose_encoder(self._context, accept=accept_encoder, again=certify_again)
            self._switched = previous_encoder is not None and previous_encoder != self._context.records.encoder()
        except BaseException:
            self._store.close()
            raise
        self._admin = Caller("admin", "embedded", entity)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._store.close()

    @property
    def encoder(self) -> EncoderInUse:
        """The encoder, loaded and ready to use. Raises UserError if it cannot be loaded."""
        context = self._context
        context.shelves.load_encoder()
        return EncoderInUse(context.settings.encoder, context.shelves.encoder, self._switched, self._failing)

    def migrate(
        self, *paths: str | os.PathLike[str], agent: str = MAIN, version: str = "v1", root: Path | None = None
    ) -> Proposal:
        """Propose how to split instruction files into units; nothing is written or published."""
        settings = self._context.settings
        source = read_files([Path(path) for path in paths], root=root)
        encoder = settings.encoder
        proposal = propose(
            source.files,
            Wanted(agent_id=agent, deployment=settings.deployment, version=version),
            meaning=lambda: meaning_stage(encoder) if encoder else None,
        )
        return msgspec.structs.replace(proposal, warnings=(*source.warnings, *proposal.warnings))

    def write(self, proposal: Proposal) -> dict[str, Change]:
        """Store the units of a proposal; they cannot be recalled before a published manifest lists them."""
        return write_units(self._context, proposal, self._admin)

    def check(self, folder: str | os.PathLike[str]) -> Checked:
        return check_folder(self._context, read_folder(Path(folder)), self._admin)

    def publish(self, folder: str | os.PathLike[str], *, skip_coverage_gate: bool = False) -> Deployed:
        """Raises InstructionError if a check fails; then nothing was changed."""
        units = read_folder(Path(folder))
        return publish_folder(self._context, units, self._admin, skip_coverage_gate=skip_coverage_gate)

    def promote(self, agent: str = MAIN, *, force: bool = False) -> Published:
        return promote(self._context, agent, self._admin, force=force)

    def rollback(self, version: str, *, agent: str = MAIN) -> Deployed:
        return roll_back(self._context, agent, version, self._admin)

    def approve(self, unit: str, *, agent: str = MAIN, reason: str = "") -> Approved:
        """Approve the newest version of a unit that is loaded without a recall. Raises InstructionError."""
        return approve(self._context, agent, unit, self._admin, reason=reason)

    def archive(self, *files: str | os.PathLike[str], root: str | os.PathLike[str], agent: str = MAIN) -> Archived:
        return archive(self._context, agent, [Path(file) for file in files], root=Path(root))

    def recall(
        self,
        intent: str,
        *,
        agent: str = MAIN,
        max_chunks: int | None = None,
        token_budget: int | None = None,
        manifest_hint: Sequence[str] = (),
        heartbeat_id: str | None = None,
        shadow: bool = False,
    ) -> Answered:
        """The units that match the intent, and the audit token for reporting usage. Raises InstructionError.

        With `shadow`, record the recall as one of a turn whose prompt had all instructions; see `shadow_report`.
        """
        if not intent.strip():
            raise InstructionError("intent_required", "say in `intent` what you are about to do")
        record, instruction_set = self._instruction_set(agent)
        question = Question(
            intent=intent, manifest_hint=tuple(manifest_hint), use_floor=self._context.settings.use_floor
        )
        if max_chunks is not None:
            question = msgspec.structs.replace(question, max_chunks=max_chunks)
        if token_budget is not None:
            question = msgspec.structs.replace(question, token_budget=token_budget)
        caller = Caller(f"agent:{record.id}", "embedded")
        return ask(
            self._context, record, instruction_set, question, caller=caller, heartbeat_id=heartbeat_id, shadow=shadow
        )

    def submit_usage(self, audit_token: str, *, used: Sequence[str] = (), missed: Sequence[str] = ()) -> None:
        close(self._context, audit_token, self._admin, used=tuple(used), missed=tuple(missed))

    def submit_trace(self, audit_token: str, trace: Sequence[Step]) -> None:
        """Submit, once, the agent's steps after the recall, from which usage is detected. The record stays open."""
        keep_trace(self._context, audit_token, self._admin, trace)

    def usage_seen(self, audit_token: str, trace: Sequence[Step], *, keep: bool = False) -> UsageSeen:
        """Compare the loaded units with the usage that the agent reported and that the trace shows."""
        return look_at(self._context, audit_token, shortened(from_token(trace, audit_token)), keep=keep)

    def usages_seen(self, trace: Sequence[Step], *, agent: str = MAIN, keep: bool = False) -> tuple[UsageSeen, ...]:
        """`usage_seen` for every recall of the agent in the trace, each with the steps that followed it."""
        record = self._context.records.agent(agent)
        audits = (self._context.records.audit(token) for token in tokens_in(trace))
        return tuple(
            self.usage_seen(audit.audit_token, trace, keep=keep)
            for audit in audits
            if audit is not None and record is not None and audit.agent_id == record.id
        )

    def session_trace(self, session_id: str) -> Trace:
        """The messages and tool calls of a session in this store, as steps."""
        events = self._store.read(session_id)
        return tuple(steps_of(event.payload.message for event in events if isinstance(event.payload, MessageAppended)))

    def heartbeat(
        self, wake_token: str | None = None, *, agent: str = MAIN, profile: str = "generic"
    ) -> Beat[Answered]:
        """A context manager that reports usage when it exits. Preloads need a signed wake token."""
        record = self._context.records.agent(agent)
        if wake_token is None:
            stub = boot_stub(self._context, agent, record, profile)
            recall = partial(self.recall, agent=agent, heartbeat_id=self._context.new_id("run"))
            return Beat(recall, self.submit_usage, self.submit_trace, stub=stub.body)
        caller = Caller(f"agent:{agent}", "embedded")
        started = wake(self._context, agent, record, wake_token, caller=caller, profile=profile)
        preloads = tuple(Preload(unit.name, unit.content.text) for unit in started.preloads)
        begun = Begun(started.heartbeat_id, preloads, started.audit_token)
        recall = partial(self.recall, agent=agent, heartbeat_id=started.heartbeat_id)
        return Beat(recall, self.submit_usage, self.submit_trace, stub=started.stub.body, begun=begun)

    def for_session(
        self,
        agent: str = MAIN,
        *,
        profile: str = "generic",
        manifest_uri: str | None = None,
        sha256: str | None = None,
        shadow: bool = False,
    ) -> Instructed:
        """The value for a session's `instructions` option.

        Raises InstructionError if the manifest is not the one that `manifest_uri` and `sha256` name. With `shadow`,
        all instructions are in the prompt, and what would be recalled for each message is only recorded.
        """
        record, instruction_set = self._instruction_set(agent)
        manifest = instruction_set.manifest
        if manifest_uri not in (None, manifest.fact_uri) or sha256 not in (None, manifest_sha256(manifest)):
            raise InstructionError(
                "manifest_refused",
                f"the manifest of {agent[:80]!a} is {manifest.fact_uri}, which is not the requested one",
            )
        if shadow:
            recall = partial(self.recall, agent=agent)
            return in_shadow(eager_text(record, instruction_set), recall, self.submit_usage, self.submit_trace)
        text = standing_text(record, manifest, known_profile(profile))
        tools = instruction_tools(partial(self.recall, agent=agent), self.submit_usage)
        return Instructed(text, tools, TurnTraces(self.submit_trace).hear)

    def manifest_sha256(self, agent: str = MAIN) -> str:
        return manifest_sha256(self._instruction_set(agent)[1].manifest)

    def stub(self, agent: str = MAIN, *, profile: str = "generic") -> str:
        return boot_stub(self._context, agent, self._context.records.agent(agent), profile).body

    def entries(self, agent: str = MAIN) -> tuple[Entry, ...]:
        return self._instruction_set(agent)[1].manifest.body

    def index(self, agent: str = MAIN) -> str:
        """One line per unit, for the part of the prompt that an agent always sees."""
        return index_text(self.entries(agent))

    def costs(self, agent: str = MAIN) -> tuple[EntryCost, ...]:
        return tuple(map(entry_cost, self.entries(agent)))

    def lint(self, agent: str = MAIN) -> tuple[Flaw, ...]:
        instruction_set = self._instruction_set(agent)[1]
        texts = {name: content.text for name, content in instruction_set.contents.items()}
        return lint(instruction_set.manifest.body, texts)

    def probe(self, agent: str = MAIN, *, k: int = 3) -> Probed:
        record, instruction_set = self._instruction_set(agent)
        probes = self._context.records.probes(record.id)
        return probe(instruction_set, probes, k=k, use_floor=self._context.settings.use_floor)

    def coverage(self, agent: str = MAIN) -> tuple[Measured, ...]:
        """How well recall finds each unit now, measured like the coverage gate of a publication."""
        return covered(self._instruction_set(agent)[1], self._context.settings)

    def coverage_diff(self, version: str, *, agent: str = MAIN) -> CoverageDiff:
        """How the coverage changed since an earlier version of the manifest."""
        return compare_versions(self._context, agent, version)

    def replay(self, audit_token: str) -> Replayed:
        record = self._context.records.audit(audit_token)
        agent = self._context.records.agent(record.agent_id) if record else None
        if record is None or agent is None:
            raise InstructionError("audit_not_found", "there is no such audit record")
        return replay(self._context, agent, record)

    def metrics(self, agent: str = MAIN, *, days: int = 7, k: int = 3) -> Measures:
        record, instruction_set = self._instruction_set(agent)
        audits = self._context.records.audits(record.id, since=self._context.now() - days * DAY_MS)
        return measured(audits, instruction_set.manifest.body, k=k)

    def shadow_report(self, agent: str = MAIN, *, days: int = 30) -> ShadowReport:
        """Whether lazy recall would have been enough in the shadow-mode turns recorded for the current manifest."""
        record, instruction_set = self._instruction_set(agent)
        audits = self._context.records.audits(record.id, since=self._context.now() - days * DAY_MS)
        return shadow_report(audits, instruction_set.manifest)

    def _instruction_set(self, agent: str) -> tuple[Agent, Shelf]:
        return self._context.shelf(agent, self._context.records.agent(agent))
