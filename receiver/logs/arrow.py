"""Small operations on Arrow text that Arrow itself lacks."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["bytes_of", "invalid_utf8", "text_of", "without_nulls"]


_CAST = (pa.types.is_large_string, pa.types.is_string_view, pa.types.is_integer, pa.types.is_null)


def bytes_of(text: pa.Array) -> npt.NDArray[np.uint8]:
    """All bytes of a `string` or `binary` column, one value after the other, without a copy."""
    _validity, offsets, data = text.buffers()
    if data is None or len(text) == 0:
        return np.empty(0, dtype=np.uint8)
    ends = np.frombuffer(offsets, dtype=np.int32)
    return np.frombuffer(data, dtype=np.uint8)[ends[text.offset] : ends[text.offset + len(text)]]


def text_of(values: pa.Array) -> pa.Array | None:
    """Text, bytes and whole numbers as `string` or `dictionary<int32, string>`, not yet checked; None for other types."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        if values.dictionary.null_count:
            return text_of(values.dictionary_decode())
        words = text_of(values.dictionary)
        return None if words is None else pa.DictionaryArray.from_arrays(values.indices.cast(pa.int32()), words)
    if pa.types.is_string(kind):
        return values
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return values.cast(pa.binary()).view(pa.string())
    if any(is_kind(kind) for is_kind in _CAST):
        return values.cast(pa.string())
    return None


def without_nulls(text: pa.Array) -> pa.Array:
    """Missing as empty text; a dictionary gets no second entry for it."""
    if not text.null_count:
        return text
    if not pa.types.is_dictionary(text.type):
        return text.fill_null("")
    words = text.dictionary
    empty = pc.index(words, "").as_py()
    if empty < 0:
        empty, words = len(words), pa.concat_arrays([words, pa.array([""])])
    return pa.DictionaryArray.from_arrays(text.indices.fill_null(empty), words)


def invalid_utf8(text: pa.Array) -> npt.NDArray[np.bool_] | None:
    """The rows whose bytes aren't UTF-8, or None where all are."""
    if pa.types.is_dictionary(text.type):
        words = invalid_utf8(text.dictionary)
        return None if words is None else words[text.indices.to_numpy()]
    letters = bytes_of(text)
    if len(letters) == 0 or letters.max() < 128:  # noqa: PLR2004 - ASCII
        return None
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return np.array([not _decodes(value) for value in text.view(pa.binary()).to_pylist()])
    return None


def _decodes(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
