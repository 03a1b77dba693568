"""How a request is written at once, for every provider alike."""

from holdfast.canonical.prompt import Parameters, Plan, Prompt
from holdfast.canonical.scroll import Scroll
from holdfast.errors import UserError
from holdfast.providers.adapter import Adapter


def write_request(adapter: Adapter, prompt: Prompt, plan: Plan, parameters: Parameters) -> bytes:
    scroll = Scroll(adapter, count=len)
    for segment in prompt.segments:
        scroll.extend(adapter.spell(segment))
    marked = [mark.piece for mark in plan.marks]
    if len(set(marked)) < len(marked):
        raise UserError("two cache marks on one piece; keep one of them")
    for piece in marked:
        if not 0 <= piece < len(scroll.pieces):
            raise UserError(f"a cache mark on piece {piece}, but the prompt has {len(scroll.pieces)} pieces")
    return scroll.render(adapter.opening(parameters), plan.marks)
