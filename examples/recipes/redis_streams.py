"""Redis Streams. Make the group first: `XGROUP CREATE orders receivers 0 MKSTREAM`.

Each consumer has a name of its own, and the same one when it starts again. `XAUTOCLAIM` takes over the messages of one that
doesn't. Without `appendonly yes` and `appendfsync always`, Redis may lose what it has confirmed.
"""

import redis
from rows import keep, open_orders

client = redis.Redis(decode_responses=True)
after = "0"  # first what this consumer was given before, and has not acknowledged
with open_orders("redis") as orders:
    while True:
        answer = client.xreadgroup("receivers", "consumer-1", {"orders": after}, count=500, block=1_000)
        entries = answer[0][1] if answer else []
        if entries:
            keep(orders, [(fields["uniqueMessageId"], fields["body"]) for _, fields in entries])
            client.xack("orders", "receivers", *(entry_id for entry_id, _ in entries))
        elif after == "0":
            after = ">"  # then what is new
