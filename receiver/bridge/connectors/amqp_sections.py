"""Cuts an AMQP 1.0 message into its sections, byte for byte, and reads and writes their values."""

from __future__ import annotations

from typing import Any

from receiver.bridge.connectors.amqp_link import proton

HEADER, _, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA, SEQUENCE, VALUE, FOOTER = range(0x70, 0x79)
WRONG = (proton.ProtonException, TypeError, ValueError, AssertionError, LookupError, OverflowError, RecursionError)
"""Errors for values that can't be encoded and bytes that aren't AMQP; `AssertionError`: a number doesn't fit its type."""

_SMALL, _LARGE = 0x53, 0x80
"""Format codes of the number that names a section."""
_FIXED_BYTES = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
"""The size of a value, by the upper half of its format code."""
_COUNT_BYTES = {0xA: 1, 0xB: 4, 0xC: 1, 0xD: 4, 0xE: 1, 0xF: 4}
"""The size of the length, for values whose size isn't fixed."""

_LISTS, _MAPS, _SHORT = (0xC0, 0xD0), (0xC1, 0xD1), (0xC0, 0xC1)
_TEXT, _NOTHING, _TIME = 0xA1, 0x40, 0x83


def sections_of(data: bytes) -> list[tuple[int, bytes]]:
    """The sections in order, each as its code and the bytes of its value. Raises an error of `WRONG` for other bytes."""
    at, sections = 0, []
    while at < len(data):
        if data[at]:
            raise ValueError(f"no section begins with {data[at]:#04x}")
        if data[at + 1] == _SMALL:
            code, start = data[at + 2], at + 3
        elif data[at + 1] == _LARGE:
            code, start = int.from_bytes(data[at + 2 : at + 10], "big"), at + 10
        else:
            raise ValueError("a section isn't named by a number")
        if not HEADER <= code <= FOOTER:
            raise ValueError(f"there is no section {code:#x}")
        at = _end(data, start)
        sections.append((code, data[start:at]))
    return sections


def _end(data: bytes, at: int) -> int:
    """The end of the value that begins at `at`."""
    missing = 1
    while missing:
        code = data[at]
        at += 1
        if not code:  # a described value: its descriptor and the value follow
            missing += 1
            continue
        if (count_bytes := _COUNT_BYTES.get(code >> 4)) is None:
            at += _FIXED_BYTES[code >> 4]
        else:
            at += count_bytes + int.from_bytes(data[at : at + count_bytes], "big")
        missing -= 1
    if at > len(data):
        raise ValueError("it ends in the middle of a value")
    return at


def value_of(encoded: bytes) -> Any:
    """The value with its AMQP type, as Proton gives it. Raises an error of `WRONG` if there is none."""
    items = _usual_items(encoded)
    if items is not None:
        return items if encoded[0] in _LISTS else dict(zip(items[::2], items[1::2], strict=True))
    data = proton.Data()
    if data.decode(encoded) != len(encoded):
        raise ValueError("a value is longer than it says")
    data.rewind()
    data.next()
    return _owned(data.get_object())


def _owned(value: Any) -> Any:
    """The value with copied bytes: Proton's are views that end with `data`."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, list):
        return [_owned(item) for item in value]
    if isinstance(value, dict):
        return {_owned(key): _owned(item) for key, item in value.items()}
    if isinstance(value, proton.Described):
        return proton.Described(_owned(value.descriptor), _owned(value.value))
    if isinstance(value, proton.Array):
        return proton.Array(value.descriptor, value.type, *map(_owned, value.elements))
    return value


def canonical(body: bytes) -> bytes:
    """The values of a body in a canonical encoding, with maps in a fixed order. Raises an error of `WRONG` if it has none.

    A broker may encode a body differently when it sends it again, as ActiveMQ Classic does.
    """
    return b"".join([section_of(code, _in_order(value_of(encoded))) for code, encoded in sections_of(body)])


def _in_order(value: Any) -> Any:
    if isinstance(value, list):
        return [_in_order(item) for item in value]
    if isinstance(value, dict):
        return {key: _in_order(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, proton.Described):
        return proton.Described(value.descriptor, _in_order(value.value))
    return value


def _usual_items(encoded: bytes) -> list[Any] | None:
    """The items of a list or a map of short texts, times and nulls, in half the time that Proton takes. None for other items.

    Malformed ones are left to Proton too.
    """
    code = encoded[0]
    start = 3 if code in _SHORT else 9
    if (code not in _LISTS and code not in _MAPS) or len(encoded) < start:
        return None
    items: list[Any] = []
    at, end = start, len(encoded)
    while at < end:
        code = encoded[at]
        if code == _TEXT:
            stop = at + 2 + encoded[at + 1]
            items.append(encoded[at + 2 : stop].decode())
            at = stop
        elif code == _NOTHING:
            items.append(None)
            at += 1
        elif code == _TIME:
            items.append(proton.timestamp(int.from_bytes(encoded[at + 1 : at + 9], "big", signed=True)))
            at += 9
        else:
            return None
    is_whole = at == end and len(items) == int.from_bytes(encoded[start // 2 + 1 : start], "big")
    return items if is_whole and (encoded[0] in _LISTS or not len(items) % 2) else None


def section_of(code: int, value: Any) -> bytes:
    """A section with this value. Raises an error of `WRONG` if AMQP can't express it."""
    data = proton.Data()
    data.put_object(proton.Described(proton.ulong(code), value))
    encoded: bytes = data.encode()
    return encoded


def section(code: int, encoded: bytes) -> bytes:
    """A section with an encoded value."""
    return bytes((0, _SMALL, code)) + encoded
