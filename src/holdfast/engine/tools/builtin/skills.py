"""The tools with which a model finds a skill and loads its body."""

import asyncio
import difflib

from msgspec.structs import replace

from holdfast.engine.tools.definition import Tool, ToolContext, ToolError, tool
from holdfast.layers.padding import SKILL_FOLDER_NOTE
from holdfast.sources.files import format_path
from holdfast.sources.skills.index import neutralize
from holdfast.sources.skills.skill import NAME_CHARS_MAX, Skill
from holdfast.sources.skills.store import SEARCH_LIMIT, SkillStore
from holdfast.types.blocks import Json, Text

SKILL_TOOL_NAMES = ("skill_load", "skill_search")
SEARCH_LIMIT_MAX = 50
# Larger than any skill file may be: a body is never cut, because the rest could not be loaded afterwards.
BODY_CHARACTERS_MAX = 4_000_000

_PRELOADED = """\
This skill's body is already loaded in the system prompt (pre-activated
at session start). Re-read the system prompt section "# Skill: {name}"
for its operating instructions."""

_LOADED = """\
This skill's body is already loaded in the message history (activated
earlier in this session). Re-read the result of skill_load that starts
with "# Skill: {name}" for its operating instructions."""


def skill_tools(store: SkillStore | None = None) -> tuple[Tool, ...]:
    """`skill_load` and `skill_search`. Both only read, so they run without confirmation.

    The maximum length of a name is that of the longest skill, because a lenient parser accepts longer names.
    """
    longest = max((len(skill.name) for skill in (store.list_skills() if store else ())), default=0)
    name: Json = {"type": "string", "minLength": 1, "maxLength": max(longest, NAME_CHARS_MAX)}
    limit: Json = {"type": "integer", "minimum": 1, "maximum": SEARCH_LIMIT_MAX, "default": SEARCH_LIMIT}
    load = tool(
        skill_load,
        description="Return the full SKILL.md body for a named skill: instructions to follow where the skill fits the "
        "task.",
        input_schema=_schema("name", {"name": name}),
        side_effects="read",
    )
    search = tool(
        skill_search,
        description="Filter the skills there are by substring on name + description.",
        input_schema=_schema("query", {"query": {"type": "string"}, "limit": limit}),
        side_effects="read",
    )
    return (
        replace(load, needs_confirmation=False, output_characters_max=BODY_CHARACTERS_MAX),
        replace(search, needs_confirmation=False),
    )


async def skill_search(query: str, context: ToolContext, limit: int = SEARCH_LIMIT) -> str:
    store = _store(context)
    if store.ranking == "semantic":
        # The first search encodes all skills: in a thread, so that it does not block the event loop.
        matches = await asyncio.to_thread(store.search, query, limit=limit)
    else:
        matches = store.search(query, limit=limit)
    names: list[Json] = [skill.name for skill in matches]
    context.metadata |= {"query": query, "result_count": len(matches), "result_names": names}
    if not matches:
        return f"No skills matched {query!r}."
    lines = (f"- {neutralize(skill.name)} [{skill.source}] — {neutralize(skill.description)}" for skill in matches)
    return "\n".join((f"Skills matching {query!r} ({len(matches)}):", *lines))


# Not a plain function: that would run in a thread, and two concurrent loads could both take the last free slot.
async def skill_load(name: str, context: ToolContext) -> list[Text]:
    store = _store(context)
    skill = store.get(name)
    if skill is None:
        raise ToolError(f"no skill registered with name {name!r}{_similar_names(name, store)}")
    context.metadata |= {
        "skill_id": skill.name,
        "skill_version": skill.version,
        "source": skill.source,
        "load_size_tokens": skill.estimated_body_tokens,
    }
    registry = context.skill_activations
    if skill.name in registry.active.preloaded:
        context.metadata["already_preloaded"] = True
        return [_with_heading(skill, _PRELOADED.format(name=skill.name))]
    if skill.name in registry.active.names:
        context.metadata["already_loaded"] = True
        return [_with_heading(skill, _LOADED.format(name=skill.name))]
    if reason := registry.refusal_reason(skill):
        raise ToolError(reason)
    context.record_event(registry.activate(skill, context.tool_use_id))
    return [_with_heading(skill, skill.body), Text(f"{SKILL_FOLDER_NOTE}{format_path(skill.skill_dir)}")]


def _with_heading(skill: Skill, text: str) -> Text:
    return Text(f"# Skill: {skill.name} (source: {skill.source})\n\n{text}")


def _store(context: ToolContext) -> SkillStore:
    if context.skills is None:
        raise ToolError("skills are not configured for this session")
    return context.skills


def _similar_names(name: str, store: SkillStore) -> str:
    similar = difflib.get_close_matches(name, [skill.name for skill in store.list_skills()], n=3)
    return f"; near matches: {', '.join(similar)}" if similar else ""


def _schema(required: str, properties: dict[str, Json]) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": [required], "additionalProperties": False}
