"""Any value of a declared type, and any event, as hypothesis strategies."""

from functools import cache
from typing import get_args

from hypothesis import strategies as st
from msgspec import inspect

from holdfast.events.log import Actor, Event
from holdfast.events.payloads.union import AnyPayload

Values = st.SearchStrategy[object]

_LEAVES: dict[type[inspect.Type], Values] = {
    inspect.NoneType: st.none(),
    inspect.BoolType: st.booleans(),
    inspect.IntType: st.integers(-(2**63), 2**63 - 1),
    inspect.FloatType: st.floats(allow_nan=False, allow_infinity=False),
    inspect.StrType: st.text(max_size=20),
    inspect.BytesType: st.binary(max_size=20),
    inspect.DecimalType: st.decimals(allow_nan=False, allow_infinity=False),
}
_LEAVES[inspect.AnyType] = st.recursive(
    st.one_of(*(_LEAVES[kind] for kind in (inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.StrType))),
    lambda members: st.lists(members, max_size=2) | st.dictionaries(st.text(max_size=4), members, max_size=2),
    max_leaves=4,
)


def values_of(declared: object) -> Values:
    """Every value that the type allows, up to a small size; a type we cannot read is an error, never left out."""
    return _values_of(inspect.type_info(declared))


def _values_of(kind: inspect.Type) -> Values:
    match kind:
        case inspect.StructType():
            return st.builds(kind.cls, **{field.name: _values_of(field.type) for field in kind.fields})
        case inspect.UnionType():
            return st.one_of([_values_of(member) for member in kind.types])
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.EnumType():
            return st.sampled_from(list(kind.cls))
        case inspect.DictType():
            return st.dictionaries(_values_of(kind.key_type), _values_of(kind.value_type), max_size=3)
        case inspect.VarTupleType():
            return st.lists(_values_of(kind.item_type), max_size=3).map(tuple)
        case inspect.TupleType():
            return st.tuples(*map(_values_of, kind.item_types))
        case _:
            return _LEAVES[type(kind)]


@cache
def events_with(payload: object = AnyPayload) -> st.SearchStrategy[Event]:
    """Events whose payload is of the given type."""
    return st.builds(
        Event,
        id=st.text(max_size=8),
        at=st.floats(allow_nan=False, allow_infinity=False),
        session_id=st.text(max_size=4),
        actor=st.sampled_from(get_args(Actor)),
        payload=values_of(payload),
        turn_id=st.none() | st.text(max_size=8),
        parent_event_id=st.none() | st.uuids().map(str),
        version=st.integers(1, 2**31 - 1),
    )
