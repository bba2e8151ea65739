"""Policies with a time window from the first delivery, as many hosted brokers have."""

from __future__ import annotations

from collections import deque

from receiver.policies.firsts import Entry, KeptIds
from receiver.policies.interface import FOR_EVER, Cause, Declaration, Limit, Misses, Parameter, Setting, Vendor

_AWS = "https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide"
_MASSTRANSIT = (
    "https://github.com/MassTransit/MassTransit/blob/develop/src/Persistence"
    "/MassTransit.EntityFrameworkCoreIntegration/Configuration/Configuration"
)
_SPARK = "https://spark.apache.org/docs/latest/api/python/reference/pyspark.sql/api"


class KeptForATime(KeptIds):
    """A policy that remembers an id from its first receipt for the sum of the policy's times."""

    def __init__(self, *times_us: int) -> None:
        super().__init__(*times_us)
        _, self._expiry_us = self.sizes
        self._ids: deque[str] = deque()  # the kept ids, oldest first

    def _headroom(self, entry: Entry) -> tuple[int | None, int | None]:
        return 0, self._expiry_us - (self.latest_us - entry[1])

    def _remember(self, id_: str) -> None:
        super()._remember(id_)
        self._ids.append(id_)

    def _forget(self) -> None:
        ids, kept = self._ids, self._kept
        while ids:
            serial, received_at_us, *_ = kept[ids[0]]
            if self.latest_us - received_at_us <= self._expiry_us:
                break
            del kept[ids.popleft()]
            self._forgotten.append(serial)


@Declaration(
    name="ttl",
    same_rule_as=None,
    kind="ttl",
    order=70,
    parameters=(Parameter("expiry", "expiry_us"),),
    vendors=(
        Vendor(
            ("SQS FIFO",),
            "expiry=300",
            aliases=("sqs",),
            setting=Setting("", f"{_AWS}/FIFO-queues-exactly-once-processing.html"),
        ),
        Vendor(
            ("Azure Service Bus",),
            "expiry=600",
            aliases=("azure", "azure-service-bus", "servicebus"),
            setting=Setting(
                "duplicateDetectionHistoryTimeWindow",
                "https://learn.microsoft.com/azure/service-bus-messaging/duplicate-detection",
                least=20_000_000,
                most=7 * 86_400_000_000,
            ),
        ),
        Vendor(
            ("NATS JetStream",),
            "expiry=120",
            aliases=("jetstream", "nats"),
            setting=Setting(
                "duplicate_window",
                "https://docs.nats.io/using-nats/developer/develop_jetstream/model_deep_dive",
                least=100_000,
                remark="The stream's max_age has to be as long at least, and so has the server's limit, if it has one.",
            ),
        ),
        Vendor(
            ("MassTransit's inbox",),
            "expiry=1800",
            is_tried=False,
            aliases=("masstransit",),
            setting=Setting("DuplicateDetectionWindow", f"{_MASSTRANSIT}/EntityFrameworkOutboxConfigurator.cs"),
        ),
        Vendor(
            ("NServiceBus' outbox",),
            "expiry=604800",
            is_tried=False,
            aliases=("nservicebus",),
            setting=Setting("KeepDeduplicationDataFor", "https://docs.particular.net/persistence/sql/outbox"),
        ),
        Vendor(
            ("Wolverine's inbox",),
            "expiry=300",
            is_tried=False,
            aliases=("wolverine",),
            setting=Setting("KeepAfterMessageHandling", "https://wolverinefx.net/guide/durability/idempotency.html"),
        ),
        Vendor(
            ("AWS Powertools",),
            "expiry=3600",
            is_tried=False,
            aliases=("powertools", "aws-powertools"),
            setting=Setting(
                "expires_after_seconds", "https://docs.powertools.aws.dev/lambda/python/latest/utilities/idempotency/"
            ),
        ),
        Vendor(
            ("RabbitMQ's deduplication plugin",),
            None,
            aliases=("rabbitmq-message-deduplication",),
            setting=Setting(
                "x-cache-ttl",
                "https://github.com/noxdafox/rabbitmq-message-deduplication",
                remark="x-cache-size has to hold all ids of that time, for a full cache drops any of them.",
            ),
        ),
        Vendor(
            ("Redis' SET NX EX",),
            None,
            aliases=("redis",),
            setting=Setting("EX", "https://redis.io/docs/latest/commands/set/"),
        ),
        Vendor(
            ("Kafka Streams' window store",),
            None,
            aliases=("kafka-streams",),
            setting=Setting(
                "retentionPeriod", "https://kafka.apache.org/40/javadoc/org/apache/kafka/streams/state/Stores.html"
            ),
        ),
        Vendor(
            ("Spark's dropDuplicatesWithinWatermark",),
            None,
            aliases=("spark",),
            setting=Setting(
                "withWatermark's delay",
                f"{_SPARK}/pyspark.sql.DataFrame.dropDuplicatesWithinWatermark.html",
                remark="Spark goes by event time, and drops what comes later than the delay, even if it is new.",
            ),
        ),
        Vendor(
            ("Flink's deduplication",),
            None,
            aliases=("flink",),
            setting=Setting(
                "table.exec.state.ttl",
                "https://nightlies.apache.org/flink/flink-docs-stable/docs/dev/table/config/",
                default=FOR_EVER,
            ),
        ),
        Vendor(
            ("Spring Integration's metadata store",),
            None,
            aliases=("spring", "spring-integration"),
            setting=Setting(
                "your own clean-up",
                "https://docs.spring.io/spring-integration/reference/meta-data-store.html",
                default=FOR_EVER,
            ),
        ),
        Vendor(
            ("Brighter's inbox",),
            None,
            aliases=("brighter",),
            setting=Setting(
                "your own clean-up",
                "https://github.com/BrighterCommand/Docs/blob/master/contents/BrighterInboxSupport.md",
                default=FOR_EVER,
            ),
        ),
    ),
    names_its_system=False,
    records_duplicates=False,
    goes_by_send_time=False,
    clock=None,
    limit=Limit.AGE,
    misses=Misses(Cause.EXPIRED),
    false_cause=None,
    compiled_policy="age",
    refusals=(),
)
class TimeToLive(KeptForATime):
    """Remembers an id for `expiry` from its first receipt. A duplicate refreshes nothing; after `expiry` the id is new again.

    Source: the deduplication interval of SQS FIFO queues (5 minutes, fixed), duplicate detection of Azure Service Bus
    (10 minutes by default, 20 seconds to 7 days), the duplicates window of NATS JetStream (2 minutes by default, 100 ms at
    least, as its server's `checkStreamCfg` has it), `dropDuplicatesWithinWatermark` of Spark: the pages in the declaration.

    Where we differ: the clock is the receipts' own, so an idle queue forgets nothing until the next receipt; vendors use the
    clock on the wall. An id exactly as old as the window is still remembered here; NATS forgets it then, the others don't say.
    Spark only promises to catch repeats in less than the delay, by the times in its rows. It may keep an id longer, and it drops
    rows that are older than the newest by more than the delay, duplicates or not. A partitioned queue of Azure compares MessageId
    and PartitionKey together, SQS may compare within a message group; here ids are compared in a domain.
    """

    def __init__(self, expiry_us: int) -> None:
        super().__init__(expiry_us)
