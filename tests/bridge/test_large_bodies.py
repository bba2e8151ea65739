"""Bodies of many megabytes, and bodies that are too large, through a real broker."""

import uuid

import pytest

from receiver.bridge.connectors import Message
from receiver.errors import MessageRefusedError
from receiver.settings import BridgeSettings
from tests.bridge.conftest import CONNECTORS, address_of
from tests.bridge.test_connectors import bodies, take, texts

pytestmark = [pytest.mark.artemis, pytest.mark.slow]
MIB = 1 << 20
BYTES = {"quick": 20 * MIB, "small": 20 * MIB, "long": BridgeSettings().max_body_bytes}


@pytest.fixture
def body(request):
    return bytes(range(256)) * (BYTES[request.config.getoption("--campaign")] // 256)


@pytest.fixture
def queue():
    return f"queue/orders-{uuid.uuid4().hex}"


@pytest.mark.parametrize("sender", CONNECTORS)
def test_a_large_body_stays_as_it_is(running_artemis, sender, protocol, queue, body):
    make_source, make_sink = CONNECTORS[protocol][0], CONNECTORS[sender][1]
    with (
        make_sink(address_of(running_artemis, sender, queue)) as sink,
        make_source(address_of(running_artemis, protocol, queue)) as source,
    ):
        sink.send([Message(body=body), *texts("behind")])
        (taken,) = take(source, 1)
        source.acknowledge([taken])  # STOMP sends no more until then
        assert taken.message.body == body
        assert bodies(take(source, 1)) == ["behind"]


@pytest.mark.parametrize("is_text", [False, True])
@pytest.mark.parametrize("most_bytes", [1_000, 3 * MIB])
def test_a_body_that_is_too_large_stays_with_the_broker(running_artemis, protocol, queue, most_bytes, is_text):
    """Messages before it can still be taken and acknowledged."""
    make_source, make_sink = CONNECTORS[protocol]
    address = address_of(running_artemis, protocol, queue)
    largest, too_large = (Message(body=b"a" * size, is_text=is_text) for size in (most_bytes, most_bytes * 3 + 1))
    with make_sink(address) as sink:
        sink.send([*texts("first"), largest, too_large, *texts("last")])
    with make_source(address, max_body_bytes=most_bytes) as source:
        before = take(source, 2)
        assert before[1].message.body == largest.body
        with pytest.raises(MessageRefusedError, match=f"{most_bytes:,}") as caught:
            take(source, 1)
        source.acknowledge(before)
        with pytest.raises(MessageRefusedError):
            source.take(1, wait_secs=0)
    assert "--max-body-bytes" in caught.value.hint
    with make_source(address, max_body_bytes=len(too_large.body)) as source:
        (taken,) = take(source, 1)
        source.acknowledge([taken])
        assert taken.message.body == too_large.body
        assert bodies(take(source, 1)) == ["last"]
