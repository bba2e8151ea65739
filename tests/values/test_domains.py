"""Names of domains: all written forms of a destination give one name, and no two channels share one by accident."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from receiver import domains
from receiver.domains import Channel, destination_name, domain_key
from receiver.errors import SettingsError

# Few letters, with those that have a meaning in a name, so that different parts are often nearly alike.
parts = st.lists(st.sampled_from([":", "\\", "a", "queue://", "topic://", "Queue<", ">"]), max_size=5).map("".join)
channels = st.builds(Channel, parts, parts, parts)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("orders", "queue://orders"),
        ("queue://orders", "queue://orders"),
        ("Queue<orders>", "queue://orders"),
        ("topic://orders", "topic://orders"),
        ("Topic<orders>", "topic://orders"),
        ("Topic<a\n>>", "topic://a\n>"),
        (" orders", "queue:// orders"),
        ("QUEUE://orders", "queue://QUEUE://orders"),
        ("", ""),
    ],
)
def test_the_written_forms_of_a_destination(written, name):
    assert destination_name(written) == name


@pytest.mark.parametrize(
    ("key", "channel", "name"),
    [
        ("default", Channel("bridge-1", "orders", "r"), "bridge-1:queue://orders"),
        ("default", Channel("bridge-1", "Topic<prices>", "r"), "bridge-1:r"),
        ("default", Channel("bridge-1", "Topic<prices>", ""), "bridge-1:topic://prices"),
        ("default", Channel("bridge-1", "Topic<prices>", "queue://orders"), "bridge-1:\\queue://orders"),
        ("default", Channel("a:b\\c", "", ""), "a\\:b\\\\c:"),
        ("destination", Channel("bridge-1", "Queue<orders>", "r"), "queue://orders"),
        ("connection", Channel("a:b\\c", "orders", "r"), "a:b\\c"),
        ("receiver", Channel("bridge-1", "orders", "r"), "bridge-1:r"),
        ("name:a: b", Channel("bridge-1", "orders", "r"), "a: b"),
    ],
)
def test_the_name_by_each_key(key, channel, name):
    assert domain_key(key).name(channel) == name


def is_topic(channel):
    return destination_name(channel.destination).startswith("topic://")


@given(channels, channels)
@example(Channel("a", "topic://x", "queue://y"), Channel("a", "queue://y", ""))
@example(Channel("a", "topic://x", "\\queue://y"), Channel("a", "topic://x", "queue://y"))
@example(Channel("a", "topic://t", ""), Channel("a", "topic://x", "topic://t"))
@example(Channel("a:", "b", ""), Channel("a", ":b", ""))
def test_only_the_same_channels_share_a_default_domain(one, other):
    def meant(channel):
        destination = destination_name(channel.destination)
        receiver = channel.receiver_id if is_topic(channel) else ""
        return channel.connection_id, ("receiver", receiver) if receiver else ("destination", destination)

    name = domain_key("default").name
    assert (name(one) == name(other)) == (meant(one) == meant(other))


@given(channels, channels)
def test_only_the_same_receivers_share_a_domain(one, other):
    name = domain_key("receiver").name
    same = (one.connection_id, one.receiver_id) == (other.connection_id, other.receiver_id)
    assert (name(one) == name(other)) == same


@pytest.mark.parametrize("text", ["", "Default", "name", "name:", "queue"])
def test_an_unknown_key_is_refused(text):
    with pytest.raises(SettingsError, match="domain key"):
        domain_key(text)


WHOLE = Channel("bridge-1", "orders", "r")
LACKING = [
    ("default", {"connection_id": ""}, "connection_id"),
    ("default", {"destination": ""}, "destination"),
    ("default", {"destination": "queue://"}, "destination"),
    ("default", {"destination": "Topic<>"}, "destination"),
    ("destination", {"destination": ""}, "destination"),
    ("connection", {"connection_id": ""}, "connection_id"),
    ("receiver", {"connection_id": ""}, "connection_id"),
    ("receiver", {"receiver_id": ""}, "receiver_id"),
]
ENOUGH = [
    ("default", {"receiver_id": ""}),
    ("default", {"destination": "topic://prices", "receiver_id": ""}),
    ("destination", {"connection_id": "", "receiver_id": ""}),
    ("connection", {"destination": "", "receiver_id": ""}),
    ("receiver", {"destination": ""}),
    ("name:payments", {"connection_id": "", "destination": "", "receiver_id": ""}),
]


@pytest.mark.parametrize(("key", "parts", "lacks"), LACKING)
def test_a_part_that_the_key_needs_is_never_empty(key, parts, lacks):
    with pytest.raises(SettingsError, match=f"'{key}' needs a {lacks}") as caught:
        domain_key(key).check(WHOLE._replace(**parts))
    assert "name:TEXT" in caught.value.hint


@pytest.mark.parametrize(("key", "parts"), ENOUGH)
def test_a_part_that_the_key_does_not_need_may_be(key, parts):
    domain_key(key).check(WHOLE._replace(**parts))


def test_the_store_has_room_for_the_name_of_every_key():
    """SQLite would take a longer one. PostgreSQL would refuse it at the first batch."""
    assert max(map(len, domains.DOMAIN_KEYS)) <= domains.LONGEST_KEY
