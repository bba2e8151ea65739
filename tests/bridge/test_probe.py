"""`receiver probe` against real brokers: it sees what they did, and leaves the queue empty."""

import io
import json
import random
import subprocess
import sys
import time
import uuid

import pytest
from rich.console import Console

from receiver import TwoTierDetector, Verdict
from receiver.bridge import probing
from receiver.bridge.connectors import DUPLICATE_ID, Message, sink_of, source_of
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.probing import LEAST_MESSAGES, Ending, ProbeReceipt, Selectors, _needs, _out_of_order, probe
from receiver.errors import SettingsError
from receiver.report.probing import print_probe
from tests.bridge.conftest import address_of, product_of
from tests.bridge.test_connectors import SOON_SECS
from tests.brokers.memory import MemoryBroker

SECS_US = 1_000_000


@pytest.fixture(params=["stomp", "amqp"])
def queue(request, running_artemis):
    return address_of(running_artemis, request.param, f"queue/probe-{uuid.uuid4().hex}")


def printed(seen):
    console = Console(file=io.StringIO(), width=80)
    print_probe(seen, console)
    return " ".join(console.file.getvalue().split())


def is_empty(address):
    with source_of(address) as source:
        return source.take(1, wait_secs=0.5) == []


def frozen_for_two_seconds(monkeypatch, steps):
    """Only the messages of a frozen consumer must come within two seconds. For all others the broker may take its
    time."""
    collect, patience_secs = probing._Run._collect, iter([2])

    def collecting(run, expected):
        run._patience_secs = next(patience_secs, SOON_SECS) if Ending.FROZEN in steps[-1][0] else SOON_SECS
        return collect(run, expected)

    monkeypatch.setattr(probing._Run, "_collect", collecting)


@pytest.mark.artemis
@pytest.mark.thinned(2)
def test_what_consumers_held_comes_again_and_nothing_else(queue, monkeypatch):
    monkeypatch.setattr(probing, "_QUIET_SECS", 0.3)
    steps = []
    frozen_for_two_seconds(monkeypatch, steps)
    seen = probe(queue, messages=400, say=lambda *step: steps.append(step))
    closed, killed, acknowledging, frozen = seen.redeliveries
    for each in seen.redeliveries:
        assert (each.missing, each.acknowledged_again) == (0, 0)
        assert 0 <= each.flagged <= each.again <= each.held
    assert closed.held == closed.again == killed.held == killed.again == 50
    assert acknowledging.held == 5 * 10
    # A broker needs longer than two seconds to notice. So the messages came again only when the consumer was killed.
    assert frozen.patience_ran_out
    assert frozen.again == frozen.held
    assert frozen.first_us > 2 * SECS_US
    assert seen.expiry_secs * SECS_US >= 2 * frozen.expiry_need_us > 4 * SECS_US
    assert seen.window >= 2 * 50
    assert (seen.selectors, seen.drops_known_ids) == (Selectors.WORK, True)
    assert is_empty(queue)
    assert [done for _, done, _ in steps] == [0, 1, 2, 3, 4]
    text = printed(seen)
    assert text.startswith(f"Set W = {seen.window} and E = {seen.expiry_secs} s, or more.")
    for words in ("fell silent", "more --patience", "Selectors work.", "it gets each message once", "kept their order"):
        assert words in text


PRODUCTS = {
    "amqp-rabbitmq": (Selectors.REFUSED, "RabbitMQ has no selectors by AMQP (bind a queue of its own"),
    "amqp-rabbitmq-quorum": (Selectors.REFUSED, "RabbitMQ has no selectors by AMQP (bind a queue of its own"),
    "stomp-rabbitmq": (Selectors.REFUSED, "RabbitMQ has no selectors by STOMP, and would deliver all messages"),
    "amqp-classic": (Selectors.WORK, ""),
    "stomp-classic": (Selectors.WORK, ""),
    "amqp-qpid": (Selectors.WORK, ""),
}


@pytest.mark.broker
@pytest.mark.slow
@pytest.mark.parametrize("name", PRODUCTS)
def test_other_products_are_probed_too_and_what_they_lack_is_said(request, monkeypatch, name):
    monkeypatch.setattr(probing, "_QUIET_SECS", 0.3)
    queue = product_of(request, name).address(f"probe-{uuid.uuid4().hex}")
    seen = probe(queue, messages=LEAST_MESSAGES, endings=[Ending.KILLED], patience_secs=SOON_SECS)
    (killed,) = seen.redeliveries
    assert (killed.held, killed.again, killed.missing) == (50, 50, 0)
    answers = not name.startswith("amqp-rabbitmq")
    assert (seen.answers_acknowledgements, seen.drops_known_ids) == (answers, False)
    selectors, why = PRODUCTS[name]
    assert seen.selectors is selectors
    assert seen.selectors_why.startswith(why)
    assert ("confirms no acknowledgement" in printed(seen)) is not answers
    assert is_empty(queue)


@pytest.mark.parametrize("drops", [True, False])
def test_a_slow_broker_drops_known_ids_or_not_as_a_fast_one(monkeypatch, drops):
    """Its first messages come only after a while."""
    monkeypatch.setattr(probing, "_QUIET_SECS", 0.01)
    broker, looks = MemoryBroker(), []

    def slow_source(address):
        source = broker.source(address.name)
        take = source.take

        def taking(at_most, *, wait_secs):
            looks.append(wait_secs)
            return take(at_most, wait_secs=0) if len(looks) > 5 else time.sleep(0.02) or []

        source.take = taking
        return source

    monkeypatch.setattr(probing, "source_of", slow_source)
    monkeypatch.setattr(probing, "DUPLICATE_ID", DUPLICATE_ID if drops else "another")
    monkeypatch.setattr(probing, "sink_of", lambda address: broker.sink(address.name))
    address = BrokerAddress.parse("amqp://localhost/queue/probed")
    assert probing._Run(address, 10, 60).drops_known_ids() is drops
    assert len(looks) > 5


@pytest.mark.artemis
@pytest.mark.slow
@pytest.mark.parametrize("queue", ["stomp"], indirect=True)
def test_the_command(queue):
    command = [sys.executable, "-m", "receiver", "probe", str(queue), "--messages", "100", "--patience", "3", "--json"]
    printed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert [each["ending"] for each in printed["redeliveries"]] == [*Ending]
    assert printed["redeliveries"][-1]["first_secs"] > 3
    assert printed["asks_for"]["expiry_secs"] >= 6


@pytest.mark.artemis
@pytest.mark.slow
@pytest.mark.parametrize("queue", ["stomp"], indirect=True)
def test_a_queue_in_use_is_left_alone(queue, monkeypatch):
    monkeypatch.setattr(probing, "_QUIET_SECS", float(SOON_SECS))
    with sink_of(queue) as sink:
        sink.send([Message(body=b"an order", is_text=True)])
    with pytest.raises(SettingsError, match="isn't empty"):
        probe(queue)
    with source_of(queue) as source:
        (delivery,) = source.take(2, wait_secs=SOON_SECS)
        assert delivery.message.body == b"an order"


@pytest.mark.artemis
@pytest.mark.parametrize("queue", ["amqp"], indirect=True)
def test_a_consumer_that_dies_is_an_error_of_ours(queue, tmp_path):
    """For example, the consumer's process imports a script anew, and the script probes once more."""
    script = tmp_path / "probing.py"
    script.write_text(f"""
from receiver.bridge.connectors.address import BrokerAddress
from receiver.bridge.probing import probe

probe(BrokerAddress.parse({str(queue)!r}), messages={LEAST_MESSAGES})
""")
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "BrokerError: the consumer's process ended with the exit code 1" in ended.stderr
    assert "EOFError" not in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["stomp://localhost/topic/prices?subscription=a"], "isn't a plain queue"),
        (["stomp://localhost/queue/a?selector=b%3D1"], "isn't a plain queue"),
        (["stomp://localhost/queue/a", "--messages", str(LEAST_MESSAGES - 1)], "too few"),
        (["stomp://127.0.0.1:1/queue/a"], "can't be reached"),
        (["file:a"], "isn't a broker's address"),
        (["kafka://127.0.0.1:1/orders?group=g"], "go on from a position"),
    ],
)
def test_what_can_not_be_probed_is_refused(arguments, why):
    ran = subprocess.run(
        [sys.executable, "-m", "receiver", "probe", *arguments], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert why in ran.stderr
    assert "hint: " in ran.stderr


def test_the_needs_are_the_least_that_catch_what_came_again(seed):
    draw = random.Random(seed)
    for _ in range(100):
        numbers = [draw.randrange(12) for _ in range(40)]
        receipts = [ProbeReceipt(number, at_us, redelivered=False) for at_us, number in enumerate(numbers)]
        window, expiry_us = _needs(receipts)
        assert missed(numbers, window=window) == 0
        assert missed(numbers, window=window - 1) > 0
        ages = [
            at_us - max(before) for at_us, number in enumerate(numbers) if (before := earlier(numbers, number, at_us))
        ]
        assert expiry_us == max(ages, default=0)


def earlier(numbers, number, index):
    return [before for before in range(index) if numbers[before] == number]


def missed(numbers, *, window):
    detector = TwoTierDetector(window=window, expiry_secs=0)
    duplicates = sum(
        detector.receive(str(number), "probe", received_at_us=at_us).verdict is Verdict.DUPLICATE
        for at_us, number in enumerate(numbers)
    )
    return len(numbers) - len(set(numbers)) - duplicates


def test_messages_behind_a_later_one_are_counted():
    def count(*numbers):
        return _out_of_order([ProbeReceipt(number, 0, redelivered=False) for number in numbers])

    assert (count(), count(1, 2, 2, 5), count(1, 3, 2, 4), count(9, 1, 2)) == (0, 0, 1, 2)
