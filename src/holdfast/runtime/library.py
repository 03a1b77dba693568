"""The instructions of agents without a server: one file, the same code, the same rules."""

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
from holdfast.instructions import library as kept
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
    """None is words and links alone. `failing`: the agents whose manifests do not pass with the configured one.

    `switched`: another was in use before this library was opened.
    """

    configured: str | None
    in_use: str | None
    switched: bool
    failing: tuple[str, ...]


DAY_MS = 86_400_000
MAIN = "main"


class Library:
    """Open it for as long as it is used; what is written is signed by a key beside the file.

    `entity` is the URI of the person on whose behalf all is done. Agents are called by id or shortname.
    `accept_encoder`: what the settings name is used even where manifests fail with it; `certify_again`: even where
    they failed before, they are measured with it once more.
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
                raise UserError("instructions are kept in a SQLite file or in PostgreSQL: name one")
            beside = Path("instructions") if "://" in os.fspath(path) else Path(path)
            if settings is None:
                root = beside.parent / f"{beside.stem}-files"
                settings = InstructionSettings(root=root, encoder=default_encoder())
            self._kept = kept.Library(
                self._store.instructions,
                settings,
                key=deployment_key(key_path or beside.with_suffix(".key")),
                clock=clock,
                new_id=new_id,
                warn=warn,
            )
            before = self._kept.records.encoder()
            self._failing = choose_encoder(self._kept, accept=accept_encoder, again=certify_again)
            self._switched = before is not None and before != self._kept.records.encoder()
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
        """Loaded, so that it can be used. Raises UserError."""
        kept = self._kept
        kept.shelves.load_encoder()
        return EncoderInUse(kept.settings.encoder, kept.shelves.encoder, self._switched, self._failing)

    def migrate(
        self, *paths: str | os.PathLike[str], agent: str = MAIN, version: str = "v1", root: Path | None = None
    ) -> Proposal:
        """What files of instructions would be as units; nothing is published."""
        settings = self._kept.settings
        read = read_files([Path(path) for path in paths], root=root)
        encoder = settings.encoder
        proposal = propose(
            read.files,
            Wanted(agent_id=agent, deployment=settings.deployment, version=version),
            meaning=lambda: meaning_stage(encoder) if encoder else None,
        )
        return msgspec.structs.replace(proposal, warnings=(*read.warnings, *proposal.warnings))

    def write(self, proposal: Proposal) -> dict[str, Change]:
        """The units of a proposal, for nobody to recall before a manifest lists them."""
        return write_units(self._kept, proposal, self._admin)

    def check(self, folder: str | os.PathLike[str]) -> Checked:
        return check_folder(self._kept, read_folder(Path(folder)), self._admin)

    def publish(self, folder: str | os.PathLike[str], *, skip_coverage_gate: bool = False) -> Deployed:
        """Raises InstructionError where a check fails; then nothing was changed."""
        given = read_folder(Path(folder))
        return publish_folder(self._kept, given, self._admin, skip_coverage_gate=skip_coverage_gate)

    def promote(self, agent: str = MAIN, *, force: bool = False) -> Published:
        return promote(self._kept, agent, self._admin, force=force)

    def rollback(self, version: str, *, agent: str = MAIN) -> Deployed:
        return roll_back(self._kept, agent, version, self._admin)

    def approve(self, unit: str, *, agent: str = MAIN, reason: str = "") -> Approved:
        """Let the newest version of a unit that is loaded unasked take its place. Raises InstructionError."""
        return approve(self._kept, agent, unit, self._admin, reason=reason)

    def archive(self, *files: str | os.PathLike[str], root: str | os.PathLike[str], agent: str = MAIN) -> Archived:
        return archive(self._kept, agent, [Path(file) for file in files], root=Path(root))

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
        """What fits the intent, and the token by which is said what was used. Raises InstructionError.

        With `shadow` it is on record as a turn for which all instructions were in force; `shadow_report` judges them.
        """
        if not intent.strip():
            raise InstructionError("intent_required", "say in `intent` what you are about to do")
        known, shelf = self._shelf(agent)
        question = Question(intent=intent, manifest_hint=tuple(manifest_hint), use_floor=self._kept.settings.use_floor)
        if max_chunks is not None:
            question = msgspec.structs.replace(question, max_chunks=max_chunks)
        if token_budget is not None:
            question = msgspec.structs.replace(question, token_budget=token_budget)
        caller = Caller(f"agent:{known.id}", "embedded")
        return ask(self._kept, known, shelf, question, caller=caller, heartbeat_id=heartbeat_id, shadow=shadow)

    def submit_usage(self, audit_token: str, *, used: Sequence[str] = (), missed: Sequence[str] = ()) -> None:
        close(self._kept, audit_token, self._admin, used=tuple(used), missed=tuple(missed))

    def submit_trace(self, audit_token: str, trace: Sequence[Step]) -> None:
        """What the agent did after the recall, by which is seen what it used; once. It closes no record."""
        keep_trace(self._kept, audit_token, self._admin, trace)

    def usage_seen(self, audit_token: str, trace: Sequence[Step], *, keep: bool = False) -> UsageSeen:
        """What was loaded, what the agent says of it, and what a trace shows of it."""
        return look_at(self._kept, audit_token, shortened(from_token(trace, audit_token)), keep=keep)

    def usages_seen(self, trace: Sequence[Step], *, agent: str = MAIN, keep: bool = False) -> tuple[UsageSeen, ...]:
        """The same of every recall of the agent whose answer stands in the trace, each by what came after it."""
        known = self._kept.records.agent(agent)
        records = (self._kept.records.audit(token) for token in tokens_in(trace))
        return tuple(
            self.usage_seen(one.audit_token, trace, keep=keep)
            for one in records
            if one is not None and known is not None and one.agent_id == known.id
        )

    def session_trace(self, session_id: str) -> Trace:
        """What was said and done in a session of this store."""
        events = self._store.read(session_id)
        return tuple(steps_of(one.payload.message for one in events if isinstance(one.payload, MessageAppended)))

    def heartbeat(
        self, wake_token: str | None = None, *, agent: str = MAIN, profile: str = "generic"
    ) -> Beat[Answered]:
        """A context that ends by saying what was used; preloads need the signed token of the trigger."""
        known = self._kept.records.agent(agent)
        if wake_token is None:
            stub = boot_stub(self._kept, agent, known, profile)
            recall = partial(self.recall, agent=agent, heartbeat_id=self._kept.new_id("run"))
            return Beat(recall, self.submit_usage, self.submit_trace, stub=stub.body)
        caller = Caller(f"agent:{agent}", "embedded")
        woken = wake(self._kept, agent, known, wake_token, caller=caller, profile=profile)
        preloads = tuple(Preload(one.name, one.content.text) for one in woken.preloads)
        begun = Begun(woken.heartbeat_id, preloads, woken.audit_token)
        recall = partial(self.recall, agent=agent, heartbeat_id=woken.heartbeat_id)
        return Beat(recall, self.submit_usage, self.submit_trace, stub=woken.stub.body, begun=begun)

    def for_session(
        self,
        agent: str = MAIN,
        *,
        profile: str = "generic",
        manifest_uri: str | None = None,
        sha256: str | None = None,
        shadow: bool = False,
    ) -> Instructed:
        """What a session is given as its `instructions`. A manifest other than the one that was named is refused.

        With `shadow` all instructions stand in the prompt; what would be recalled for each message goes on record.
        """
        known, shelf = self._shelf(agent)
        manifest = shelf.manifest
        if manifest_uri not in (None, manifest.fact_uri) or sha256 not in (None, manifest_sha256(manifest)):
            raise InstructionError(
                "manifest_refused",
                f"the manifest of {agent[:80]!a} is {manifest.fact_uri}, and not the one that is accepted",
            )
        if shadow:
            recall = partial(self.recall, agent=agent)
            return in_shadow(eager_text(known, shelf), recall, self.submit_usage, self.submit_trace)
        text = standing_text(known, manifest, known_profile(profile))
        tools = instruction_tools(partial(self.recall, agent=agent), self.submit_usage)
        return Instructed(text, tools, TurnTraces(self.submit_trace).hear)

    def manifest_sha256(self, agent: str = MAIN) -> str:
        return manifest_sha256(self._shelf(agent)[1].manifest)

    def stub(self, agent: str = MAIN, *, profile: str = "generic") -> str:
        return boot_stub(self._kept, agent, self._kept.records.agent(agent), profile).body

    def entries(self, agent: str = MAIN) -> tuple[Entry, ...]:
        return self._shelf(agent)[1].manifest.body

    def index(self, agent: str = MAIN) -> str:
        """A line for each unit, to be had before an agent all the time."""
        return index_text(self.entries(agent))

    def costs(self, agent: str = MAIN) -> tuple[EntryCost, ...]:
        return tuple(map(entry_cost, self.entries(agent)))

    def lint(self, agent: str = MAIN) -> tuple[Flaw, ...]:
        shelf = self._shelf(agent)[1]
        return lint(shelf.manifest.body, {name: content.text for name, content in shelf.contents.items()})

    def probe(self, agent: str = MAIN, *, k: int = 3) -> Probed:
        known, shelf = self._shelf(agent)
        return probe(shelf, self._kept.records.probes(known.id), k=k, use_floor=self._kept.settings.use_floor)

    def coverage(self, agent: str = MAIN) -> tuple[Measured, ...]:
        """How well the units are found now, as the gate of a publication measures it."""
        return covered(self._shelf(agent)[1], self._kept.settings)

    def coverage_diff(self, version: str, *, agent: str = MAIN) -> CoverageDiff:
        """What is different from the manifest of a version."""
        return compare_versions(self._kept, agent, version)

    def replay(self, audit_token: str) -> Replayed:
        record = self._kept.records.audit(audit_token)
        agent = self._kept.records.agent(record.agent_id) if record else None
        if record is None or agent is None:
            raise InstructionError("audit_not_found", "there is no such audit record")
        return replay(self._kept, agent, record)

    def metrics(self, agent: str = MAIN, *, days: int = 7, k: int = 3) -> Measures:
        known, shelf = self._shelf(agent)
        records = self._kept.records.audits(known.id, since=self._kept.now() - days * DAY_MS)
        return measured(records, shelf.manifest.body, k=k)

    def shadow_report(self, agent: str = MAIN, *, days: int = 30) -> ShadowReport:
        """Whether lazy recall would have done in the turns in shadow that the current manifest has seen."""
        known, shelf = self._shelf(agent)
        records = self._kept.records.audits(known.id, since=self._kept.now() - days * DAY_MS)
        return shadow_report(records, shelf.manifest)

    def _shelf(self, agent: str) -> tuple[Agent, Shelf]:
        return self._kept.shelf(agent, self._kept.records.agent(agent))
