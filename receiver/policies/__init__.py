"""Rules of other systems on what counts as a duplicate, and Apama's among them, behind one interface.

| file | what is in it |
|---|---|
| `interface.py` | `Policy`: what each of them can do; `Declaration`: all that is known of one beside its rule |
| `names.py` | `policy(text)`: from `artemis:id_cache_size=20000` to the policy; all that there are |
| `firsts.py` | what those have in common for which a duplicate changes nothing |
| `apama.py`, `artemis.py`, `cmq.py`, `lru.py`, `sequence.py`, `ttl.py` | one system's rules each |
| `solace.py` | Solace's comparison with the last, and its replication group message ids |
| `perfect.py` | every id for ever: the yardstick, and Solace's look-up in a database |
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
