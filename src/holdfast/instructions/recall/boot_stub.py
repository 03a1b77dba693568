"""Renders what the prompt has of an agent's instructions: the boot stub, and the manifest's index with its cost."""

import hashlib
from collections.abc import Sequence

import msgspec

from holdfast.catalog.token_count import count_cl100k_tokens
from holdfast.errors import InstructionError
from holdfast.instructions.models import Agent, BootStub, Manifest, ManifestEntry, format_time
from holdfast.instructions.recall.selection import DEFAULT_CHUNKS_MAX, DEFAULT_TOKEN_BUDGET
from holdfast.instructions.store import InstructionRecords
from holdfast.instructions.uri import parse_unit_uri
from holdfast.types.blocks import Json

INDEX_HEADING = "## Instructions that can be recalled\n\n"


class EntryCost(msgspec.Struct, frozen=True):
    """`index_tokens` are in every prompt; `entry_tokens`, the same, count towards the limit of the manifest."""

    name: str
    index_tokens: int
    entry_tokens: int


def instruction_index_line(entry: ManifestEntry) -> str:
    """Name, description and triggers on one line, with white space collapsed."""
    triggers = (*entry.load_triggers.intents, *entry.load_triggers.keywords)
    text = f"{entry.description} | when: {'; '.join(triggers)}" if triggers else entry.description
    # A line break in a description could otherwise add a line that reads as another unit.
    return " ".join(f"- {entry.name}: {text}".split())


def render_index(entries: Sequence[ManifestEntry]) -> str:
    """Equal entries give equal bytes, so that a prompt prefix with the index stays cached."""
    return "".join(f"{instruction_index_line(entry)}\n" for entry in entries)


def render_prompt_index(entries: Sequence[ManifestEntry]) -> str:
    """The index with its heading, as it is in the prompt."""
    return f"{INDEX_HEADING}{_address_line(entries)}{render_index(entries)}"


def count_manifest_tokens(entries: Sequence[ManifestEntry]) -> int:
    """The tokens that the manifest has in the prompt, which is where it always is (seed 003, 21.2.1).

    Addresses are in it once, by what they share, and do not count: a long agent id leaves as much room as a short one.
    """
    return count_cl100k_tokens(render_index(entries))


def _address_line(entries: Sequence[ManifestEntry]) -> str:
    """Where the units are: the part that all addresses share, once."""
    addresses = [entry.fact_uri for entry in entries if entry.fact_uri is not None]
    owners = {address.rsplit("/", 2)[0] for address in addresses}
    shared = owners.pop() if len(owners) == 1 else ""
    return f"Addresses: `{shared}/NAME/VERSION`\n\n" if shared.count("/") else ""


def measure_entry_cost(entry: ManifestEntry) -> EntryCost:
    tokens = count_cl100k_tokens(f"{instruction_index_line(entry)}\n")
    return EntryCost(entry.name, tokens, tokens)


# The limit of 500 cl100k tokens is on the body (seed 003); 450 warns before it is reached.
STUB_VERSION = 1
BODY_TOKENS_MAX = 500
BODY_TOKENS_WARN = 450
GENERIC_PROFILE = "generic"
PROFILES = {
    GENERIC_PROFILE: "",
    "paperclip-claude-code": (
        "\n## Heartbeat\n\nYou run in heartbeats. At each, follow the heartbeat procedure, act through the tools of "
        "Paperclip, and end by reporting which units you used.\n"
    ),
    "openai-assistants": (
        "\n## Tool\n\nTo load instructions, call the function `recall_instruction` with a JSON object "
        'such as `{"intent": "..."}`; its reply is a list of chunks to follow.\n'
    ),
}

RECALL_TOOL_INPUT: dict[str, Json] = {
    "type": "object",
    "properties": {
        "intent": {"type": "string", "description": "What you are about to do or need help with."},
        "max_chunks": {"type": "integer", "minimum": 1, "maximum": 20, "default": DEFAULT_CHUNKS_MAX},
        "token_budget": {"type": "integer", "minimum": 1, "maximum": 100000, "default": DEFAULT_TOKEN_BUDGET},
        "manifest_hint": {"type": "array", "items": {"type": "string"}, "default": []},
    },
    "required": ["intent"],
}
RECALL_TOOL_SCHEMA = {
    "name": "recall_instruction",
    "description": "Load the instruction units that fit what you are about to do.",
    "input_schema": RECALL_TOOL_INPUT,
}

_encode = msgspec.json.Encoder().encode


def normalize_profile(profile: str) -> str:
    return profile if profile in PROFILES else GENERIC_PROFILE


def stub_cache_key(agent: Agent, manifest: Manifest, profile: str) -> str:
    """A digest of everything that a stub depends on except its time."""
    inputs = (
        STUB_VERSION,
        profile,
        manifest.version,
        manifest.fact_uri,
        manifest.migration_mode,
        agent.id,
        agent.role,
        agent.heartbeat_contract,
        agent.always_rules,
        tuple((entry.name, entry.path) for entry in manifest.body),
    )
    return hashlib.sha256(_encode(inputs)).hexdigest()


def with_published_contract(records: InstructionRecords, agent: Agent) -> Agent:
    """The agent with the heartbeat contract that its stub may name: its own, or the deployment's, if it was published.

    A stub that names a procedure that nobody wrote sends the agent looking for it.
    """
    contract = agent.heartbeat_contract or f"instruction:{agent.deployment}/shared/heartbeat-contract/v1"
    if contract.startswith("instruction:"):
        try:
            address = parse_unit_uri(contract)
        except InstructionError:
            return msgspec.structs.replace(agent, heartbeat_contract=None)
        owner = agent.id if address.owner in agent.names else address.owner
        versions = records.list_unit_versions(owner, address.name)
        active = [unit for unit in versions if unit.status == "active" and unit.valid_until is None]
        contract = active[-1].uri if active else ""
    return msgspec.structs.replace(agent, heartbeat_contract=contract or None)


def render_stub(agent: Agent, manifest: Manifest, profile: str, *, at: int) -> BootStub:
    body = render_stub_body(agent, manifest, profile)
    document = f"{_frontmatter(agent, manifest, profile, at)}{body}"
    return BootStub(
        agent_id=agent.id,
        adapter_profile=profile,
        stub_version=STUB_VERSION,
        body=document,
        token_count=count_cl100k_tokens(document),
        body_token_count=count_cl100k_tokens(body),
        generated_at=at,
        manifest_version=manifest.version,
        cache_key=stub_cache_key(agent, manifest, profile),
    )


def check_stub_size(agent: Agent, manifest: Manifest | None) -> int:
    """Return the tokens of the longest body over all profiles. Raises InstructionError `boot_stub_too_large`."""
    bodies = (render_stub_body(agent, manifest, profile) for profile in PROFILES)
    tokens = max(map(count_cl100k_tokens, bodies))
    if tokens > BODY_TOKENS_MAX:
        raise InstructionError(
            "boot_stub_too_large",
            f"the boot stub would have {tokens} tokens, at most {BODY_TOKENS_MAX} are allowed: shorten always_rules",
            details={"token_count": tokens, "token_max": BODY_TOKENS_MAX},
        )
    return tokens


def render_stub_body(agent: Agent, manifest: Manifest | None, profile: str) -> str:
    role = agent.role or agent.id
    lines = [
        "# Agent Boot Stub",
        "",
        f"You are **{role}** (id: `{agent.id}`).",
    ]
    if agent.heartbeat_contract is not None:
        lines.append(f"Your heartbeat procedure is at `{agent.heartbeat_contract}`.")
    if manifest is not None and manifest.migration_mode == "file":
        lines += ["Your instructions are in files below your instruction root:"]
        lines += [f"- {entry.name}: `{entry.path}`" for entry in manifest.body]
    elif manifest is not None:
        lines += [
            f"Your instruction manifest is at `{manifest.fact_uri}`.",
            "It lists the sections there are and what should make you load them.",
        ]
    lines += [
        "Call `recall_instruction(intent)` to load relevant instruction sections before",
        "performing any non-trivial task.",
    ]
    if agent.always_rules:
        lines += ["", "## Always", "", *(f"- {rule}" for rule in agent.always_rules)]
    return "\n".join(lines) + "\n" + PROFILES[profile]


def _frontmatter(agent: Agent, manifest: Manifest, profile: str, at: int) -> str:
    fields: dict[str, object] = {
        "agent_id": agent.id,
        "agent_role": agent.role or agent.id,
        "heartbeat_contract": agent.heartbeat_contract,
        "manifest_uri": None if manifest.migration_mode == "file" else manifest.fact_uri,
        "stub_version": STUB_VERSION,
        "generated_at": format_time(at),
        "adapter_profile": profile,
        "migration_mode": manifest.migration_mode,
        "recall_tool_schema": RECALL_TOOL_SCHEMA,
    }
    # JSON on one line is valid YAML, and no value can break out of it.
    lines = (f"{name}: {_encode(value).decode()}" for name, value in fields.items())
    return "\n".join(("---", *lines, "---", "")) + "\n"
