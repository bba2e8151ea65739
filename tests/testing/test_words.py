"""Journals in plain words."""

from receiver.testing.words import steps_of
from receiver.testing.world import Acknowledged, Came, Message


def test_new_and_repeated_messages_of_one_batch_stay_one_batch():
    """Message 3 is new, and comes in one batch with messages that come again."""
    labels = {f"{number}:A": (number, "A") for number in range(1, 5)}
    one, two, three, four = (Message(id_, "A-1", b"") for id_ in labels)
    mixed = (three, one, two)
    journal = [Came((one, two, four)), Came(mixed), Acknowledged(mixed), Came((four,)), Acknowledged((four,))]
    assert steps_of(journal, labels) == [
        "Messages 1 to 2 and 4 of sender A came.",
        "Message 3 of sender A came.",
        "Messages 1 to 2 of sender A came again.",
        "The program acknowledged messages 1 to 3 of sender A.",
        "Message 4 of sender A came again.",
        "The program acknowledged message 4 of sender A.",
    ]
