"""Days of a domain, each in less than a second: `python year_of_restarts.py URL FOLDER FIRST_DAY DAYS`.

Any version of the package can run it. Each day 150 senders start anew, each under a new name, and first resend what was
sent last before. Each month the windows change. It prints the process's peak memory, and how many receipts were
duplicates.
"""

import resource
import sys

from receiver import Receiver, ReceiverSettings, Recording

SENDERS, MESSAGES = 150, 3
DAY_US = 86_400_000_000
BEGIN_US = 1_700_000_000_000_000


def live(url: str, folder: str, first_day: int, days: int) -> int:
    duplicates = 0
    for day in range(first_day, first_day + days):
        settings = ReceiverSettings(
            dup_detection_per_source_expiry_window_size=20 + day // 30 % 2, dup_detection_expiry_time_secs=60
        )
        record = Recording(folder, rotate_bytes=1_000_000, keep_files=3)
        with Receiver.open(url, connection_id="b", destination="orders", settings=settings, record=record) as orders:
            for sent_on in (day - 1, day):  # yesterday's messages come again, then the new ones
                receipts = [
                    (f"{sent_on}:{sender}:{n}", f"sender-{sender}.{sent_on}", BEGIN_US + day * DAY_US + sender)
                    for sender in range(SENDERS)
                    for n in range(MESSAGES)
                ]
                with orders.batch() as batch:
                    duplicates += sum(not decision.deliver for decision in batch.receive_many(receipts))
    return duplicates


if __name__ == "__main__":
    found = live(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, found)
