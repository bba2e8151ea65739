"""The bridge of `docs/start.md`, exactly as printed, on a real broker; and the README's brokers."""

import re
import sys
import uuid

import pytest

from examples.demo.processes import HOST
from receiver.bridge.connectors import products
from receiver.bridge.connectors.address import BrokerAddress
from tests.bridge.conftest import CONNECTORS, LACKS
from tests.docs.markdown import blocks, commands, run, sections

START, HEADING = "docs/start.md", "A bridge, ready made"
PRODUCTS = {name: getattr(products, name.upper()) for name in ("artemis", "rabbitmq", "classic", "qpid")}
PROTOCOLS = {"amqp": "AMQP 1.0", "stomp": "STOMP"}


@pytest.mark.artemis
@pytest.mark.slow
def test_the_bridge(running_artemis, tmp_path):
    queue = f"{HOST}:{running_artemis.amqp_port}/queue/orders-{uuid.uuid4()}"
    (send,) = blocks(START, "python", HEADING)
    _, bridge = blocks(START, "sh", HEADING)
    (tmp_path / "send.py").write_text(send.replace("localhost/queue/orders", queue), encoding="utf-8")
    run([sys.executable, "send.py"], tmp_path)
    bridged, parked = [run(line, tmp_path) for line in commands(bridge.replace("localhost/queue/orders", queue))]
    assert len((tmp_path / "orders.jsonl").read_text(encoding="utf-8").splitlines()) == 1_000
    (shown,) = re.findall(r"ends with `(.*?)`", sections(START)[HEADING], re.DOTALL)
    first, last = " ".join(shown.split()).split(" … ")
    line = bridged.stderr.rstrip().splitlines()[-1]
    assert first in line
    assert line.endswith(last)
    assert parked.stdout.endswith(": 0 messages parked\n")


def test_every_product_is_named_with_what_is_tested():
    rows = re.findall(r"^\| (.*?) \d.* \| (.+) \| (.+) \|$", sections("README.md")["Versions"], re.MULTILINE)
    as_target = {True: "each message once", False: "at least once"}
    tested = {(protocol, "artemis") for protocol in CONNECTORS} | {tuple(name.split("-")[:2]) for name in LACKS}
    assert {name: (by, target) for name, by, target in rows} == {
        product.name: (
            ", ".join(shown for protocol, shown in PROTOCOLS.items() if (protocol, fixture) in tested),
            as_target[product.drops_known_ids],
        )
        for fixture, product in PRODUCTS.items()
    } | {"Kafka": ("its own protocol", f"{as_target[True]}, for readers at `read_committed`")}
    assert BrokerAddress.parse("kafka://host/orders").takes_turns
