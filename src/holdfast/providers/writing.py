"""Encodes a whole request at once, for any provider."""

from holdfast.canonical.prompt import Parameters, Plan, Prompt
from holdfast.canonical.scroll import Scroll
from holdfast.errors import UserError
from holdfast.providers.adapter import Adapter


def write_request(adapter: Adapter, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes:
    buffer = Scroll(adapter, count=len)
    for segment in prompt.segments:
        buffer.extend(adapter.spell(segment))
    indexes = [point.piece for point in plan.marks]
    if len(set(indexes)) < len(indexes):
        raise UserError("two cache breakpoints on one block; keep one of them")
    for index in indexes:
        if not 0 <= index < len(buffer.pieces):
            raise UserError(f"a cache breakpoint on block {index}, but the prompt has {len(buffer.pieces)} blocks")
    return buffer.render(adapter.opening(parameters), plan.marks)
