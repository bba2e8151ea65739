"""What a test sends to a broker's address by STOMP, and which messages reach the address's queue."""

import queue
import socket
import uuid
from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple

import stomp

from examples.demo.artemis import Broker
from examples.demo.processes import HOST

ANSWERS_SECS = 30
DUPLICATE_ID = "_AMQ_DUPL_ID"
SENT = {"destination-type": "ANYCAST", "persistent": "true"}
REFUSED = "AMQ339013"


class Kind(Enum):
    SEND = "sends"
    COMMIT = "transactions"
    ABORT = "transactions taken back"
    OPEN = "transactions left open"


class Step(NamedTuple):
    """One step at an address: it sends messages with these ids, just one if `kind` is SEND."""

    number: int
    kind: Kind
    ids: Sequence[str]

    @property
    def bodies(self) -> list[str]:
        """The step's message bodies. Steps with different numbers share none."""
        return [f"{self.number}.{index}" for index in range(len(self.ids))]


class Session(stomp.ConnectionListener):
    """One connection for one address.

    It speaks STOMP 1.1: then a broker that refuses a transaction keeps the connection open. In 1.2 it closes the
    connection.
    """

    def __init__(self, broker: Broker, address: str) -> None:
        self._address = address
        self._frames: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._connection = stomp.Connection11([(HOST, broker.stomp_port)], heartbeats=(0, 0), reconnect_attempts_max=1)
        self._connection.set_listener("", self)
        self._connection.connect(wait=True)
        # Frames are small, and each commit's answer is waited for. Without this option it would come 40 ms later.
        self._connection.transport.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def on_message(self, frame: Any) -> None:
        self._frames.put(("message", frame))

    def on_receipt(self, frame: Any) -> None:
        self._frames.put(("receipt", frame))

    def on_error(self, frame: Any) -> None:
        self._frames.put(("error", frame))

    def take(self, step: Step) -> bool:
        """Do the step. Returns whether the broker refuses it openly, as it does with transactions at their commit.

        Waits for the answer to a commit: a transaction's ids count once it is safe on disk.
        """
        transaction = None if step.kind is Kind.SEND else f"transaction-{step.number}"
        headers = SENT
        if transaction:
            self._connection.begin(transaction)
            headers = headers | {"transaction": transaction}
        for id_, body in zip(step.ids, step.bodies, strict=True):
            self._connection.send(self._address, body, headers=headers | {DUPLICATE_ID: id_})
        if step.kind is Kind.ABORT:
            self._connection.abort(transaction)
        if step.kind is not Kind.COMMIT:
            return False
        self._connection.commit(transaction, receipt=transaction)
        answer, frame = self._frames.get(timeout=ANSWERS_SECS)
        assert frame.headers.get("receipt-id") == transaction, frame
        assert answer == "receipt" or REFUSED in frame.headers["message"], frame
        return answer == "error"

    def arrived(self) -> list[str]:
        """The bodies of all messages in the queue. Afterwards the queue is empty."""
        last = f"last {uuid.uuid4()}"
        self._connection.send(self._address, last, headers=SENT)
        self._connection.subscribe(self._address, id="all", headers={"subscription-type": "ANYCAST"})
        bodies: list[str] = []
        while True:
            answer, frame = self._frames.get(timeout=ANSWERS_SECS)
            assert answer == "message", frame
            if frame.body == last:
                return bodies + self._unsubscribed(last)
            bodies.append(frame.body)

    def _unsubscribed(self, receipt: str) -> list[str]:
        """End the subscription and wait for its end, so that the next answer belongs to the next request. Returns
        the messages that still came."""
        self._connection.unsubscribe("all", headers={"receipt": receipt})
        bodies: list[str] = []
        while True:
            answer, frame = self._frames.get(timeout=ANSWERS_SECS)
            if answer == "receipt":
                assert frame.headers["receipt-id"] == receipt, frame.headers
                return bodies
            assert answer == "message", (answer, frame.headers, frame.body)
            bodies.append(frame.body)

    def let_through(self, steps: Sequence[Step]) -> list[bool]:
        """Do the steps. Returns for each whether its messages have reached the queue: all of them and just once, or
        none.

        Other messages in the queue don't count, such as those that were delivered before a kill and come again.
        """
        refused = [self.take(step) for step in steps]
        arrived = Counter(self.arrived())
        through = []
        for step, is_refused in zip(steps, refused, strict=True):
            times = {arrived[body] for body in step.bodies}
            assert times in ({0}, {1}), f"of {step} came {[arrived[body] for body in step.bodies]}"
            through.append(times == {1})
            assert step.kind is not Kind.COMMIT or is_refused != through[-1], step
        return through

    def close(self) -> None:
        self._connection.disconnect()
