"""How text with a NUL, which PostgreSQL cannot hold, is kept all the same.

NUL and the character behind it are written as two characters that stand in the same order, so that no two
texts become one and a sorted list stays sorted. JSON never holds either of them as it is.
"""

_ESCAPES = str.maketrans({"\x00": "\x01\x01", "\x01": "\x01\x02"})


def escaped(cell: object) -> object:
    return cell.translate(_ESCAPES) if isinstance(cell, str) and ("\x00" in cell or "\x01" in cell) else cell


def restored(cell: object) -> object:
    if not isinstance(cell, str) or "\x01" not in cell:
        return cell
    return cell.replace("\x01\x01", "\x00").replace("\x01\x02", "\x01")
