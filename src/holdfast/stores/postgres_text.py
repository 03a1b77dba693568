"""Escapes NUL characters, which PostgreSQL text cannot contain.

NUL and \\x01 are each written as two characters with the same relative order, so that distinct texts stay distinct and
sorted lists stay sorted. JSON text contains neither of them unescaped.
"""

_ESCAPES = str.maketrans({"\x00": "\x01\x01", "\x01": "\x01\x02"})


def escaped(cell: object) -> object:
    return cell.translate(_ESCAPES) if isinstance(cell, str) and ("\x00" in cell or "\x01" in cell) else cell


def restored(cell: object) -> object:
    if not isinstance(cell, str) or "\x01" not in cell:
        return cell
    return cell.replace("\x01\x01", "\x00").replace("\x01\x02", "\x01")
