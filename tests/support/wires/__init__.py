"""Which parameters, replies and lifetimes each provider can spell: one module a provider, named like its adapter."""

import importlib

import msgspec
from hypothesis import strategies as st

from holdfast.providers.adapter import Adapter
from holdfast.types.prompt import Parameters, Ttl
from holdfast.types.reply import Reply


class WireValues(msgspec.Struct, frozen=True):
    """`parameters` and `replies` are what survives the way to the wire and back; `ttls` is empty without marks."""

    parameters: st.SearchStrategy[Parameters]
    replies: st.SearchStrategy[Reply]
    ttls: tuple[Ttl, ...] = ()


def wire_of(adapter: Adapter) -> WireValues:
    found = importlib.import_module(f"tests.support.wires.{adapter.name.replace('-', '_')}").VALUES
    assert isinstance(found, WireValues)
    return found
