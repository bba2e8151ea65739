"""A policy that keeps the highest sequence number of each producer."""

from __future__ import annotations

from receiver.errors import IdFormatError
from receiver.policies.firsts import Entry, FirstReceipts
from receiver.policies.interface import Cause, Declaration, Limit, Setting, Vendor

MOST_DIGITS = 1_000
"""The most digits of a number: Python refuses to read much longer ones, and no producer counts that far."""


def parse_sequence(text: str) -> tuple[int, str]:
    """The number and the source of an id `seqNo:messageSourceId`, split at the first colon; `IdFormatError` for other ids."""
    number, colon, source = text.partition(":")
    if not (colon and number.isascii() and number.isdecimal() and len(number) <= MOST_DIGITS):
        raise IdFormatError(
            f"{text!r:.80} is not of the form seqNo:messageSourceId", hint="such as 17:gateway-1; seqNo is in digits"
        )
    return int(number), source


@Declaration(
    name="sequence",
    same_rule_as=None,
    kind="sequence",
    order=80,
    parameters=(),
    vendors=(
        Vendor(("Pulsar", "RabbitMQ streams"), aliases=("pulsar", "rabbitmq")),
        Vendor(
            ("Pulsar",),
            is_tried=False,
            setting=Setting(
                "brokerDeduplicationMaxNumberOfProducers",
                "https://pulsar.apache.org/docs/cookbooks-deduplication/",
                default=10_000,
                remark="Pulsar also forgets a producer that has gone for 6 hours, unless it is set otherwise.",
            ),
        ),
    ),
    names_its_system=False,
    records_duplicates=False,
    goes_by_send_time=False,
    clock=None,
    limit=Limit.SOURCES,
    misses=None,
    false_cause=Cause.SEQUENCE_GAP,
    compiled_policy="highest",
    refusals=(),
)
class HighestSequence(FirstReceipts):
    """One number per source: an id whose number isn't above the highest seen from its source is a duplicate.

    Source: message deduplication of Apache Pulsar
    (https://pulsar.apache.org/docs/cookbooks-deduplication/) and of RabbitMQ's streams
    (https://blog.rabbitmq.com/posts/2021/07/rabbitmq-streams-message-deduplication), where producers number their messages;
    the ids are the default ones of Apama's senders, which name the source. A message that comes behind one with a higher number
    is called a duplicate though it never came before. So are all messages of a producer that counts anew from the start.
    Where we differ: all are kept. Pulsar keeps 10,000 producers, and none that has gone for six hours, unless set otherwise.
    """

    def __init__(self) -> None:
        super().__init__()
        self._highest: dict[str, tuple[int, Entry]] = {}  # source -> its highest number, and the receipt with it

    @property
    def remembered_ids(self) -> int:
        return len(self._highest)

    def _check_form(self, id_: str) -> None:
        parse_sequence(id_)

    def _entry_of(self, id_: str) -> Entry | None:
        number, source = parse_sequence(id_)
        highest = self._highest.get(source)
        return highest[1] if highest is not None and number <= highest[0] else None

    def _remember(self, id_: str) -> None:
        number, source = parse_sequence(id_)
        replaced = self._highest.get(source)
        if replaced is not None:
            self._forgotten.append(replaced[1][0])
        self._highest[source] = number, (self.serial, self.latest_us)

    def entries(self) -> list[int]:
        return sorted(entry[0] for _, entry in self._highest.values())
