"""Rules of Apama and other systems on what counts as a duplicate, behind one interface.

| file | what is in it |
|---|---|
| `interface.py` | `Policy`: the methods of every policy; `Declaration`: the facts about a policy besides its rule |
| `names.py` | `policy(text)`: from `artemis:id_cache_size=20000` to the policy; the list of all policies |
| `firsts.py` | base classes of policies for which a duplicate changes nothing |
| `apama.py`, `artemis.py`, `cmq.py`, `lru.py`, `sequence.py`, `ttl.py` | one kind of rule each |
| `solace.py` | Solace's comparison with the last, and its replication group message ids |
| `perfect.py` | keeps every id for ever: the yardstick, and Solace's look-up in a database |
"""

from receiver.errors import IdFormatError, NotComparableError
from receiver.policies.artemis import ArtemisIdCache
from receiver.policies.interface import Policy
from receiver.policies.names import POLICIES, policy
from receiver.policies.solace import ReplicationGroupMessageId

__all__ = [
    "POLICIES",
    "ArtemisIdCache",
    "IdFormatError",
    "NotComparableError",
    "Policy",
    "ReplicationGroupMessageId",
    "policy",
]
