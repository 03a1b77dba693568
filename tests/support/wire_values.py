"""Any prompt, reply and way to cut bytes into chunks, as hypothesis strategies that fit every provider."""

from collections.abc import Sequence
from itertools import groupby, pairwise

from hypothesis import strategies as st

from holdfast.providers.adapter import Adapter
from holdfast.types.blocks import (
    Base64Source,
    Block,
    FileSource,
    Image,
    Opaque,
    RedactedThinking,
    Role,
    Text,
    Thinking,
    ToolResult,
    ToolUse,
    UrlSource,
)
from holdfast.types.json_encoding import canonical_json, encode_json
from holdfast.types.prompt import Breakpoint, HistoryEntry, Parameters, Plan, Prompt, Segment, Stability, Ttl
from holdfast.types.reply import CacheDiagnosis, Reply, StopReason, make_miss_diagnosis
from holdfast.types.request_buffer import EncodedBlock
from holdfast.types.tool_spec import ToolSpec
from holdfast.types.usage import Usage

texts = st.text(max_size=12)
names = st.text("abcdefgh_", min_size=1, max_size=8)
ids = st.text("abc123", min_size=1, max_size=6)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
json_objects = st.dictionaries(texts, json_values, max_size=3)

images = st.builds(
    Image,
    st.builds(Base64Source, st.sampled_from(["image/png", "image/webp"]), texts)
    | st.builds(UrlSource, texts)
    | st.builds(FileSource, ids),
)
tool_uses = st.builds(ToolUse, ids, names, json_objects.map(lambda value: encode_json(value).decode()))


def _opaque(kind: str, members: dict[str, object], spaced: bool) -> Opaque:
    raw = encode_json({"type": kind, **{f"x_{name}": value for name, value in members.items()}})
    return Opaque(kind, raw.replace(b'"type":', b'"type" : ', 1) if spaced else raw)


opaques = st.builds(
    _opaque,
    st.sampled_from(["document", "search_result", "server_tool_use", "text", "tool_use", "not_yet_invented"]),
    st.dictionaries(names, json_values, min_size=1, max_size=2),
    st.booleans(),
)
tool_results = st.builds(
    ToolResult,
    ids,
    st.lists(st.builds(Text, texts) | images | opaques, max_size=2).map(tuple),
    st.booleans(),
)
thinkings = st.builds(Thinking, texts, st.none() | st.text("sig=", min_size=1, max_size=6))
user_blocks = st.builds(Text, texts) | images | tool_results | opaques
assistant_blocks = st.builds(Text, texts) | tool_uses | thinkings | st.builds(RedactedThinking, texts) | opaques


def _entries_of(role: Role, content: st.SearchStrategy[Block]) -> st.SearchStrategy[HistoryEntry]:
    injected = st.builds(
        HistoryEntry,
        st.just(role),
        st.lists(content, min_size=1, max_size=3).map(tuple),
        st.just("memory"),
        st.just(Stability.VOLATILE),
        st.booleans(),
    )
    return st.builds(HistoryEntry, st.just(role), st.lists(content, min_size=1, max_size=3).map(tuple)) | injected


history_entries = (
    _entries_of("user", user_blocks)
    | _entries_of("assistant", assistant_blocks)
    | _entries_of("system", st.builds(Text, texts))
)
tools = st.builds(ToolSpec, names, texts, json_objects.map(lambda value: canonical_json(value).decode())) | names.map(
    lambda name: ToolSpec(name, "", "{}", f'{{"type":"web_search_1","name":"{name}"}}')
)


def _prompt(tools: list[ToolSpec], system: list[str], history_entries: list[HistoryEntry]) -> Prompt:
    return Prompt(
        (
            Segment("tools", Stability.FROZEN, "tools", tools=tuple(tools)),
            Segment("role", Stability.EPOCH, "system", system=tuple(map(Text, system[:1]))),
            Segment("project", Stability.EPOCH, "system", system=tuple(map(Text, system[1:]))),
            Segment("history", Stability.GROWING, "messages", entries=tuple(history_entries)),
        )
    )


prompts = st.builds(
    _prompt,
    st.lists(tools, max_size=3),
    st.lists(texts, max_size=3),
    st.lists(history_entries, max_size=4),
)

parameters = st.builds(
    Parameters,
    model=names,
    output_tokens_max=st.integers(0, 100_000),
    stream=st.booleans(),
    stop_sequences=st.lists(texts, max_size=2).map(tuple),
    temperature=st.none() | st.floats(0, 1),
    tool_choice_json=st.none() | st.just('{"type":"any"}'),
    thinking_json=st.none() | st.just('{"type": "enabled", "budget_tokens": 1024}'),
    betas=st.lists(names, max_size=2).map(tuple),
    extra=st.dictionaries(names.map("x_".__add__), json_values, max_size=2).map(
        lambda extra: tuple((name, encode_json(value).decode()) for name, value in extra.items())
    ),
)

counts = st.integers(0, 2_000_000)
usages = st.builds(Usage, input=counts, cache_read=counts, cache_write_5m=counts, cache_write_1h=counts, output=counts)
stop_reasons: st.SearchStrategy[StopReason] = st.sampled_from(
    ["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
)
diagnoses = st.sampled_from(
    [CacheDiagnosis("hit"), CacheDiagnosis("pending"), CacheDiagnosis("not_found"), CacheDiagnosis("unavailable")]
) | st.builds(make_miss_diagnosis, st.sampled_from(["model_changed", "tools_changed", "a_word_of_tomorrow"]), counts)
replies = st.builds(
    Reply,
    content=st.lists(assistant_blocks, max_size=4).map(tuple),
    stop_reason=stop_reasons,
    usage=usages,
    model=names,
    id=ids,
    stop_sequence=st.none() | texts,
    diagnosis=st.none() | diagnoses,
)


@st.composite
def plans(draw: st.DrawFn, cacheable: Sequence[int], ttls: Sequence[Ttl]) -> Plan:
    """Up to four breakpoints on different blocks."""
    if not cacheable or not ttls:
        return Plan()
    chosen = draw(st.sets(st.sampled_from(cacheable), max_size=4))
    return Plan(tuple(Breakpoint(block, draw(st.sampled_from(ttls))) for block in sorted(chosen)))


@st.composite
def chunks(draw: st.DrawFn, whole: bytes) -> list[bytes]:
    """The same bytes, cut anywhere."""
    cuts = draw(st.lists(st.integers(0, len(whole)), max_size=8))
    edges = [0, *sorted(cuts), len(whole)]
    return [whole[start:end] for start, end in pairwise(edges)]


def encode_blocks(adapter: Adapter, prompt: Prompt) -> tuple[EncodedBlock, ...]:
    return tuple(block for segment in prompt.segments for block in adapter.encode_segment(segment))


def system_of(prompt: Prompt) -> tuple[Text, ...]:
    return tuple(text for segment in prompt.segments for text in segment.system)


def messages_of(prompt: Prompt) -> list[tuple[Role, tuple[Block, ...]]]:
    """Messages on the wire: neighbouring entries of one role are one message."""
    groups = groupby(prompt.entries, key=lambda entry: entry.role)
    return [(role, tuple(block for entry in group for block in entry.content)) for role, group in groups]
