"""The rules of `receiver.policies` once more, compiled: each judges a whole domain, and tests compare it with the readable rule.

The receipt that each duplicate repeats, which is the newest earlier one of its id, is known beforehand (`DomainRows.earlier`). A
rule that goes by an id's first remembered receipt passes that receipt on along these links, so it needs no table of ids. Nor
does it forget anything: whether a receipt is too old is decided when its id comes again.

The rules that depend on the text of ids parse all ids of a log at once, into columns of numbers. If an id has another form, the
readable rule's own parser gives the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver.errors import IdFormatError
from receiver.logs.columns import bytes_of
from receiver.policies.interface import Policy
from receiver.policies.names import POLICIES
from receiver.policies.sequence import MOST_DIGITS, parse_sequence
from receiver.policies.solace import RGMID_FORM, ReplicationGroupMessageId
from receiver.simulate.compiled import Flags, Int32s, Int64s, compiled
from receiver.simulate.kernel import WindowAsked, replay_windows
from receiver.simulate.numbering import TextNumbers

if TYPE_CHECKING:
    import numpy.typing as npt

    from receiver.simulate.ingest import Receipts
    from receiver.simulate.whole import Domain

_NOTHING = -1
_RGMID_BYTES = 41
_HEX_DIGITS = np.array([at for at in range(len("rmid1:"), _RGMID_BYTES) if at not in {11, 23, 32}])
"""The positions of the digits in a replication group message id."""


class Judged(NamedTuple):
    """A policy's verdicts on one domain, and the most ids that it remembered."""

    is_duplicate: Flags
    """A flag for each row of the domain."""
    peak_ids: int


CompiledPolicy = Callable[["Domain"], Judged]
"""A policy's rule over the columns of a domain. It begins without memory in each domain."""


def compiled_policy_of(policy: Policy, receipts: Receipts) -> CompiledPolicy:
    """A policy's compiled rule, for domains of these receipts; `IdFormatError` if it can't judge all of their ids."""
    if policy.declaration.compiled_policy is None:
        raise TypeError(f"{policy} has no compiled policy")
    return _MAKERS[policy.declaration.compiled_policy](policy, receipts)


def _all(domain: Domain) -> Judged:
    came_before = domain.rows.earlier != _NOTHING
    return Judged(came_before, len(came_before) - domain.rows.duplicates)


def _two_tier(window: int, expiry_us: int, domain: Domain) -> Judged:
    (counts,) = replay_windows(domain.rows, [WindowAsked(window, [expiry_us], with_needs=True)], threads=1)
    is_duplicate = domain.rows.earlier != _NOTHING
    is_duplicate[is_duplicate] = counts.needs_us <= expiry_us
    return Judged(is_duplicate, int(counts.peak_ids[0]))


@compiled()
def _judge_by_age(times: Int64s, earlier: Int32s, expiry_us: int) -> tuple[Flags, int]:
    """Judge rows by the age of the first remembered receipt of their id."""
    is_duplicate = np.zeros(len(times), np.bool_)
    first = np.empty(len(times), np.int32)  # the remembered receipt of each row's id
    oldest = 0  # no row before it is remembered
    remembered = 0
    peak_ids = 0
    for row in range(len(times)):
        while times[row] - times[oldest] > expiry_us:
            remembered -= not is_duplicate[oldest]
            oldest += 1
        first[row] = row
        if earlier[row] != _NOTHING and first[earlier[row]] >= oldest:
            first[row] = first[earlier[row]]
            is_duplicate[row] = True
        else:
            remembered += 1
            peak_ids = max(peak_ids, remembered)
    return is_duplicate, peak_ids


def _age(expiry_us: int, domain: Domain) -> Judged:
    return Judged(*_judge_by_age(domain.rows.received_at_us, domain.rows.earlier, expiry_us))


@compiled()
def _judge_by_slot(earlier: Int32s, size: int) -> tuple[Flags, int]:
    """Judge rows by a ring of `size` slots. Plain sends never hold an id twice."""
    is_duplicate = np.zeros(len(earlier), np.bool_)
    slot = np.empty(len(earlier), np.int32)  # the slot of each row's id
    slots = 0
    for row in range(len(earlier)):
        if earlier[row] != _NOTHING and slots - slot[earlier[row]] < size:
            slot[row] = slot[earlier[row]]
            is_duplicate[row] = True
        else:
            slots += 1
            slot[row] = slots
    return is_duplicate, min(size, slots)


@compiled()
def _judge_by_use(earlier: Int32s, size: int) -> tuple[Flags, int]:
    """Judge rows by an LRU memory of ids. It holds the rows that no later row repeats, from the oldest held on."""
    is_duplicate = np.zeros(len(earlier), np.bool_)
    repeated = np.zeros(len(earlier), np.bool_)
    oldest, held, peak_ids = 0, 0, 0
    for row in range(len(earlier)):
        if earlier[row] != _NOTHING:
            repeated[earlier[row]] = True
            is_duplicate[row] = earlier[row] >= oldest
        held += not is_duplicate[row]
        if held > size:
            while repeated[oldest]:
                oldest += 1
            oldest += 1
            held -= 1
        peak_ids = max(peak_ids, held)
    return is_duplicate, peak_ids


def _sized(judge: Callable[[Int32s, int], tuple[Flags, int]], size: int, domain: Domain) -> Judged:
    return Judged(*judge(domain.rows.earlier, size))


@compiled()
def _judge_by_highest(numbers: Int64s, producers: Int32s, highest: Int64s) -> tuple[Flags, int]:
    """Judge rows by the highest number of their producer. `highest` has a value for each producer; it must be all -1, and is left
    so."""
    is_duplicate = np.zeros(len(numbers), np.bool_)
    seen = 0  # the number of producers seen
    for row in range(len(numbers)):
        if numbers[row] <= highest[producers[row]]:
            is_duplicate[row] = True
        else:
            seen += highest[producers[row]] == _NOTHING
            highest[producers[row]] = numbers[row]
    for producer in producers:
        highest[producer] = _NOTHING
    return is_duplicate, seen


class Sequences(NamedTuple):
    """Ids `seqNo:messageSourceId`."""

    numbers: npt.NDArray[np.int64]
    """Numbers in the order of the ids' sequence numbers; equal for equal ones."""
    producers: npt.NDArray[np.int32]
    producer_count: int


def sequences_of(receipts: Receipts) -> Sequences:
    """All ids of a log as sequence numbers; `IdFormatError` for the first id of another form."""
    numbers: npt.NDArray[Any] = np.zeros(receipts.ids.count, np.int64)
    producers, names = np.zeros(receipts.ids.count, np.int32), TextNumbers()
    for ids, texts in _texts(receipts.ids):
        fit = pc.match_substring_regex(texts, "^[0-9]+:")
        digits, sources = (pc.list_element(pc.split_pattern(texts.filter(fit), ":", max_splits=1), i) for i in (0, 1))
        if len(digits) < len(texts) or pc.max(pc.binary_length(digits)).as_py() > MOST_DIGITS:
            raise _refusal(parse_sequence, receipts, ids, texts)
        try:
            numbers[ids] = digits.cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:  # more digits than fit 64 bits
            numbers = numbers.astype(object)
            numbers[ids] = [int(text) for text in digits.to_pylist()]
        producers[ids] = names.number(sources)
    if numbers.dtype == object:
        numbers = np.unique(numbers, return_inverse=True)[1]
    return Sequences(numbers, producers, names.count)


def _highest(receipts: Receipts) -> CompiledPolicy:
    sequences = sequences_of(receipts)
    highest = np.full(sequences.producer_count, _NOTHING, np.int64)

    def judge(domain: Domain) -> Judged:
        ids = receipts.id_number[domain.log_rows]
        return Judged(*_judge_by_highest(sequences.numbers[ids], sequences.producers[ids], highest))

    return judge


@compiled()
def _judge_by_last(origins: npt.NDArray[np.uint64], numbers: npt.NDArray[np.uint64]) -> tuple[Flags, int]:
    """Judge rows by the last row that was new."""
    is_duplicate = np.zeros(len(numbers), np.bool_)
    last = 0
    for row in range(1, len(numbers)):
        if origins[row] == origins[last] and numbers[row] <= numbers[last]:
            is_duplicate[row] = True
        else:
            last = row
    return is_duplicate, min(1, len(numbers))


def rgmids_of(receipts: Receipts) -> npt.NDArray[np.uint64]:
    """The origins, and the numbers, of all ids of a log; `IdFormatError` for the first that is no replication group message id."""
    rgmids = np.zeros((receipts.ids.count, 2), np.uint64)
    for ids, texts in _texts(receipts.ids):
        if not pc.all(pc.match_substring_regex(texts, rf"\A{RGMID_FORM}\z")).as_py():
            raise _refusal(ReplicationGroupMessageId.parse, receipts, ids, texts)
        letters = bytes_of(texts).reshape(-1, _RGMID_BYTES)[:, _HEX_DIGITS]
        digits = (letters & 15) + np.uint8(9) * (letters > ord("9"))  # "A" and "a" have 1 in their lower half
        rgmids[ids] = np.ascontiguousarray(digits[:, ::2] << 4 | digits[:, 1::2]).view(">u8")
    return np.ascontiguousarray(rgmids.T)


def _last(receipts: Receipts) -> CompiledPolicy:
    origins, numbers = rgmids_of(receipts)

    def judge(domain: Domain) -> Judged:
        ids = receipts.id_number[domain.log_rows]
        return Judged(*_judge_by_last(origins[ids], numbers[ids]))

    return judge


def _texts(ids: TextNumbers) -> Iterator[tuple[slice, pa.Array]]:
    """All ids but the missing one, whose number is 0: slices of numbers, with their texts."""
    numbers = np.arange(1, ids.count, dtype=np.int32)
    for rows in ids.slices(numbers):
        yield slice(rows.start + 1, rows.stop + 1), ids.texts(numbers[rows])


def _refusal(parse: Callable[[str], object], receipts: Receipts, ids: slice, texts: pa.Array) -> IdFormatError:
    for number, text in enumerate(texts.to_pylist(), ids.start):
        try:
            parse(text)
        except IdFormatError as error:
            row = int(np.argmax(receipts.id_number == number))
            return IdFormatError(f"in row {row}, {error.message}", hint=error.hint)
    raise AssertionError(f"{parse} takes ids that whole columns of them don't")


_MAKERS: dict[str, Callable[[Policy, Receipts], CompiledPolicy]] = {
    "all": lambda _policy, _receipts: _all,
    "two-tier": lambda policy, _receipts: partial(_two_tier, *policy.sizes),
    "age": lambda policy, _receipts: partial(_age, policy.sizes[1]),
    "ring": lambda policy, _receipts: partial(_sized, _judge_by_slot, policy.sizes[0]),
    "used": lambda policy, _receipts: partial(_sized, _judge_by_use, policy.sizes[0]),
    "highest": lambda _policy, receipts: _highest(receipts),
    "last": lambda _policy, receipts: _last(receipts),
}
"""The compiled rules, by their names in declarations."""
for _kind in POLICIES:
    if _kind.declaration.compiled_policy is not None and _kind.declaration.compiled_policy not in _MAKERS:
        raise TypeError(
            f"policy {_kind.name} declares the compiled policy {_kind.declaration.compiled_policy!r}, which {__name__} lacks"
        )
