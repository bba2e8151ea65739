"""Sends orders of two shops to a queue: `python send.py amqp://localhost/queue/orders 1 2000` sends 1 to 2,000 of each.

The connection of one shop breaks after every 500 orders, before the broker has answered for the last 40. So it sends
those again.
"""

import sys

from receiver.bridge import Message, sink_of


def orders(shop: str, numbers: range) -> list[Message]:
    return [
        Message(body=b"10 EUR", is_text=True, properties={"uniqueMessageId": f"{n}:{shop}", "messageSourceId": shop})
        for n in numbers
    ]


address, first, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with sink_of(address) as queue:
    for n in range(first, last, 500):
        queue.send(orders("web", range(n, n + 500)) + orders("phone", range(n, n + 500)))
        queue.send(orders("phone", range(n + 460, n + 500)))
