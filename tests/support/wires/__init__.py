"""Which parameters, replies and TTLs each provider can encode: one module per provider, named like its adapter."""

import importlib

import msgspec
from hypothesis import strategies as st

from holdfast.providers.adapter import Adapter
from holdfast.types.prompt import Parameters, Ttl
from holdfast.types.reply import Reply


class WireValues(msgspec.Struct, frozen=True):
    """`parameters` and `replies` survive encoding and decoding; `ttls` is empty without breakpoints."""

    parameters: st.SearchStrategy[Parameters]
    replies: st.SearchStrategy[Reply]
    ttls: tuple[Ttl, ...] = ()


def wire_of(adapter: Adapter) -> WireValues:
    values = importlib.import_module(f"tests.support.wires.{adapter.name.replace('-', '_')}").VALUES
    assert isinstance(values, WireValues)
    return values
