"""The MCP tools: their schemas, how they run, and their results. The caller is already authenticated.

Tool descriptions and results are read by models: changing a word changes what a model sees.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar

import msgspec

from holdfast.errors import InstructionError
from holdfast.instructions.access import InstructionCaller, check_instruction_access, check_recall_access
from holdfast.instructions.context import InstructionContext
from holdfast.instructions.models import Agent, format_optional_time
from holdfast.instructions.recall.answer import (
    RecallAnswer,
    answer_recall,
    close_audit_record,
    render_recall,
    render_standing_instructions,
)
from holdfast.instructions.recall.boot_stub import (
    GENERIC_PROFILE,
    RECALL_TOOL_SCHEMA,
    instruction_index_line,
    render_index,
    with_published_contract,
)
from holdfast.instructions.recall.selection import DEFAULT_CHUNKS_MAX, DEFAULT_TOKEN_BUDGET, InstructionSet, RecallQuery
from holdfast.instructions.recall.snapshot import unit_key
from holdfast.instructions.uri import URI_CHARACTERS_MAX, is_shared_owner, normalize_unit_uri, parse_unit_uri
from holdfast.sources.skills.store import SEARCH_LIMIT, SkillStore

INTENT_CHARACTERS_MAX = 8_000
NAMES_MAX = 200
READ_TOKENS_MAX = 100_000
SEARCH_LIMIT_MAX = 50
Request = TypeVar("Request", bound=msgspec.Struct)
Text = Annotated[str, msgspec.Meta(max_length=INTENT_CHARACTERS_MAX)]
Names = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=400)], ...], msgspec.Meta(max_length=NAMES_MAX)]


class McpToolResult(msgspec.Struct, frozen=True):
    """`text` is for the model, `structured` is for programs."""

    text: str
    structured: dict[str, object]


class McpTool(msgspec.Struct, frozen=True):
    name: str
    description: str
    input_schema: Mapping[str, object]
    run: Callable[[InstructionCaller, Mapping[str, object]], McpToolResult]


class _Recall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    intent: Annotated[str, msgspec.Meta(max_length=INTENT_CHARACTERS_MAX, description="What you are about to do.")]
    max_chunks: Annotated[int, msgspec.Meta(ge=1, le=20)] = DEFAULT_CHUNKS_MAX
    token_budget: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = DEFAULT_TOKEN_BUDGET
    manifest_hint: Names = ()


class _List(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Text | None = None


class _Read(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    uri: Annotated[str, msgspec.Meta(max_length=URI_CHARACTERS_MAX, description="Address or name of a unit.")]


class _Usage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    audit_token: Text
    used_chunks: Names = ()
    missed_chunks: Names = ()


class _Search(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    query: Text
    limit: Annotated[int, msgspec.Meta(ge=1, le=SEARCH_LIMIT_MAX)] = SEARCH_LIMIT


class _Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Text


STUB_ELSEWHERE = "Before a task, call recall_instruction; the start of the session lists what can be recalled."


class McpToolbox:
    """The tools over one library; `agent` is used when the caller's key names no agent.

    Without `has_stub` a hook gives the client boot stub and index, and `initialize` does not repeat them.
    `read_skills` is called by the tools for skills only: a client waits while the server starts.
    """

    def __init__(
        self,
        library: InstructionContext,
        read_skills: Callable[[], SkillStore],
        *,
        agent: str,
        has_stub: bool = True,
    ) -> None:
        self._library = library
        self._read_skills = read_skills
        self._agent = agent
        self._has_stub = has_stub
        tools = (
            _make_tool("recall_instruction", str(RECALL_TOOL_SCHEMA["description"]), _Recall, self._recall),
            _make_tool(
                "list_instructions",
                "List the instruction units there are and when each is needed; with a name, that one alone.",
                _List,
                self._list,
            ),
            _make_tool(
                "read_instruction",
                "Return the whole text at an address that your instructions name, such as instruction:...; "
                "a unit's name works too.",
                _Read,
                self._read,
            ),
            _make_tool(
                "submit_usage",
                "Say which units of a recall you applied, and which you needed but did not get.",
                _Usage,
                self._close,
            ),
            _make_tool(
                "skill_search", "Filter the skills there are by their names and descriptions.", _Search, self._search
            ),
            _make_tool("skill_load", "Return the whole text of a named skill.", _Load, self._load),
        )
        self.tools = {tool.name: tool for tool in tools}

    def _recall(self, caller: InstructionCaller, request: _Recall) -> McpToolResult:
        if not request.intent.strip():
            raise InstructionError("intent_required", "say in `intent` what you are about to do")
        agent, instruction_set = self._require_instruction_set(caller)
        question = RecallQuery(
            intent=request.intent,
            max_chunks=request.max_chunks,
            token_budget=request.token_budget,
            manifest_hint=request.manifest_hint,
            use_floor=self._library.settings.use_floor,
        )
        result = answer_recall(self._library, agent, instruction_set, question, caller=caller, heartbeat_id=None)
        return McpToolResult(render_recall(result), _recall_json(result))

    def _list(self, caller: InstructionCaller, request: _List) -> McpToolResult:
        manifest = self._require_instruction_set(caller)[1].manifest
        entries = manifest.body
        if request.name is not None:
            entries = tuple(entry for entry in entries if entry.name == request.name)
            if not entries:
                near = _near(request.name, [entry.name for entry in manifest.body])
                raise InstructionError("unit_not_found", f"there is no unit {request.name[:80]!a}{near}")
        document = {"manifest_version": manifest.version, "entries": msgspec.to_builtins(entries)}
        return McpToolResult(
            render_index(entries) if request.name is None else instruction_index_line(entries[0]), document
        )

    def _read(self, caller: InstructionCaller, request: _Read) -> McpToolResult:
        """A listed unit is read by a recall, so that it is recorded; others are the manifest and shared units."""
        agent, instruction_set = self._require_instruction_set(caller)
        manifest, wanted = instruction_set.manifest, normalize_unit_uri(request.uri.strip())
        if wanted == manifest.fact_uri:
            return McpToolResult(render_index(manifest.body), {"entries": msgspec.to_builtins(manifest.body)})
        address = parse_unit_uri(wanted) if wanted.startswith("instruction:") else None
        owner, name = ("", wanted) if address is None else (address.owner, address.name)
        key = (agent.id if owner in agent.names else owner, name)
        entries = (entry for entry in manifest.body if entry.name == name or unit_key(entry, agent) == key)
        entry = next(entries, None)
        if (
            entry is not None
            and entry.name in instruction_set.contents
            and (not owner or key == unit_key(entry, agent))
        ):
            question = RecallQuery(
                intent=f"read {entry.name}", max_chunks=1, token_budget=READ_TOKENS_MAX, manifest_hint=(entry.name,)
            )
            answer = answer_recall(self._library, agent, instruction_set, question, caller=caller, heartbeat_id=None)
            return McpToolResult(render_recall(answer), _recall_json(answer))
        if address is not None and is_shared_owner(address.owner):
            versions = self._library.records.list_unit_versions(address.owner, address.name)
            active = [unit for unit in versions if unit.status == "active" and unit.valid_until is None]
            if active:
                return McpToolResult(active[-1].content, {"fact_uri": active[-1].uri, "content": active[-1].content})
        near = _near(name, [entry.name for entry in manifest.body])
        raise InstructionError("unit_not_found", f"there is nothing to read at {request.uri[:200]!a}{near}")

    def describe_instructions(self, caller: InstructionCaller) -> str | None:
        """Stub and index for `initialize.instructions`; None if the caller has none."""
        try:
            agent, instruction_set = self._require_instruction_set(caller)
        except InstructionError:
            return None
        if not self._has_stub:
            return STUB_ELSEWHERE
        named = with_published_contract(self._library.records, agent)
        return render_standing_instructions(named, instruction_set.manifest, GENERIC_PROFILE)

    def _require_instruction_set(self, caller: InstructionCaller) -> tuple[Agent, InstructionSet]:
        agent_id = caller.agent_name or self._agent
        agent = self._library.records.agent(agent_id)
        check_recall_access(caller, agent_id, agent)
        return self._library.require_instruction_set(agent_id, agent)

    def _close(self, caller: InstructionCaller, request: _Usage) -> McpToolResult:
        check_instruction_access(caller)
        close_audit_record(
            self._library, request.audit_token, caller, used=request.used_chunks, missed=request.missed_chunks
        )
        return McpToolResult("on record", {"closed": True})

    def _search(self, caller: InstructionCaller, request: _Search) -> McpToolResult:
        skills = self._read_skills().search(request.query, limit=request.limit)
        lines = "".join(f"- {skill.name}: {' '.join(skill.description.split())}\n" for skill in skills)
        document: dict[str, object] = {
            "skills": [{"name": skill.name, "description": skill.description} for skill in skills]
        }
        return McpToolResult(lines or "no skill matches", document)

    def _load(self, caller: InstructionCaller, request: _Load) -> McpToolResult:
        store = self._read_skills()
        skill = store.get(request.name)
        if skill is None:
            near = _near(request.name, [name for name, _ in store.discovery_index()])
            raise InstructionError("skill_not_found", f"there is no skill {request.name[:80]!a}{near}")
        text = f"# Skill: {skill.name} (source: {skill.source})\n\n{skill.body}"
        return McpToolResult(text, {"name": skill.name, "body": skill.body})


def _make_tool(
    name: str, description: str, request: type[Request], run: Callable[[InstructionCaller, Request], McpToolResult]
) -> McpTool:
    """A tool that validates its arguments against `request` before it runs; invalid ones give a one-line error."""

    def convert_and_run(caller: InstructionCaller, arguments: Mapping[str, object]) -> McpToolResult:
        try:
            converted = msgspec.convert(arguments, request)
        except msgspec.ValidationError as error:
            raise InstructionError("invalid_arguments", f"the arguments of {name} do not fit: {error}") from error
        return run(caller, converted)

    _, components = msgspec.json.schema_components((request,))
    # The title would be the name of a private struct.
    schema = {field: value for field, value in components[request.__name__].items() if field != "title"}
    return McpTool(name, description, schema, convert_and_run)


def _recall_json(result: RecallAnswer) -> dict[str, object]:
    recalled = result.result
    return {
        "chunks": [
            {
                "name": chunk.name,
                "fact_uri": chunk.content.fact_uri,
                "content": chunk.content.text,
                "tokens": chunk.content.tokens,
                "valid_until": format_optional_time(chunk.content.valid_until),
                "version": chunk.content.version,
                "score": chunk.score,
                "source": chunk.content.source,
            }
            for chunk in recalled.chunks
        ],
        "total_tokens": recalled.total_tokens,
        "truncated": recalled.truncated,
        "missed_hints": recalled.missed_hints,
        "audit_token": result.audit_token,
    }


def _near(name: str, names: list[str]) -> str:
    near = difflib.get_close_matches(name, names, n=3)
    return f"; near matches: {', '.join(near)}" if near else ""
