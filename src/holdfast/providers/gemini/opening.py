"""Encodes the parameters of a request to Gemini, and builds its URL path."""

import re

import msgspec

from holdfast.canonical.encoding import plain_json
from holdfast.canonical.prompt import Parameters
from holdfast.errors import UserError
from holdfast.providers.adapter import Endpoint
from holdfast.providers.members import quoted, spliced

# google-genai 3.x calls /v1; older SDKs called /v1beta.
API_VERSION = "v1"
JSON_HEADERS = (("content-type", "application/json"),)
MODEL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")

CONFIG = "generationConfig."
"""Prefix of the name of an extra field that belongs into `generationConfig`."""

CONFIG_NAMES = frozenset({"maxOutputTokens", "temperature", "stopSequences", "thinkingConfig"})
PROMPT_NAMES = frozenset({"generationConfig", "tools", "systemInstruction", "contents"})
CACHE = "cachedContent"
TOOL_CONFIG = "toolConfig"

MODES = {"auto": "AUTO", "any": "ANY", "none": "NONE", "tool": "ANY"}


class _ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Gemini has no field for `disable_parallel_tool_use`: the model decides whether calls come one at a time."""

    type: str
    name: str = ""
    disable_parallel_tool_use: bool = False


def opening(parameters: Parameters) -> bytes:
    settings = [b'"maxOutputTokens":%d' % parameters.output_tokens_max]
    if parameters.temperature is not None:
        settings.append(b'"temperature":' + plain_json(parameters.temperature))
    if parameters.stop_sequences:
        settings.append(b'"stopSequences":[' + b",".join(map(quoted, parameters.stop_sequences)) + b"]")
    if parameters.thinking_json is not None:
        settings.append(b'"thinkingConfig":' + spliced(parameters.thinking_json))
    members: list[bytes] = []
    if parameters.tool_choice_json is not None:
        members.append(b'"toolConfig":' + spell_tool_choice(parameters.tool_choice_json))
    _check_extra(parameters)
    for name, value in parameters.extra:
        target = settings if name.startswith(CONFIG) else members
        target.append(quoted(name.removeprefix(CONFIG)) + b":" + spliced(value))
    return b'{"generationConfig":{' + b",".join(settings) + b"}" + b"".join(b"," + member for member in members)


def _check_extra(parameters: Parameters) -> None:
    names = {name for name, _ in parameters.extra}
    reserved = PROMPT_NAMES | {CONFIG + name for name in CONFIG_NAMES}
    if parameters.tool_choice_json is not None:
        reserved |= {TOOL_CONFIG}
    for name in sorted(names & reserved):
        raise UserError(f"extra field {name!r} has a place of its own in the request; set it there")
    if CACHE in names and (TOOL_CONFIG in names or parameters.tool_choice_json is not None):
        raise UserError("a tool choice cannot be combined with a cache, which has its own; leave it out")


def spell_tool_choice(tool_choice_json: str) -> bytes:
    try:
        choice = msgspec.json.decode(tool_choice_json, type=_ToolChoice)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        choice = _ToolChoice("")
    if choice.type not in MODES or (choice.type == "tool") != bool(choice.name):
        raise UserError(
            'the tool choice cannot be encoded for Gemini; use {"type":"auto"}, "any", "none", or "tool" with a "name"'
        )
    allowed = b',"allowedFunctionNames":[%b]' % quoted(choice.name) if choice.name else b""
    return b'{"functionCallingConfig":{"mode":"%b"%b}}' % (MODES[choice.type].encode(), allowed)


def model_name(model: str) -> str:
    """The name without `models/`, checked to be valid in a path."""
    bare = model.removeprefix("models/")
    if not MODEL_NAME.fullmatch(bare):
        raise UserError(f"model {model[:80]!r} is not valid in a path; use a name like 'gemini-3.8-flash'")
    return bare


def endpoint(parameters: Parameters) -> Endpoint:
    if parameters.betas:
        raise UserError(f"Gemini has no betas, but the request names {parameters.betas[0]!r}; leave them out")
    action = "streamGenerateContent?alt=sse" if parameters.stream else "generateContent"
    return Endpoint(f"/{API_VERSION}/models/{model_name(parameters.model)}:{action}", JSON_HEADERS)
