"""SQS. What isn't deleted comes again after the queue's visibility timeout, for as long as the queue retains it: 4 days unless set.

A queue with a redrive policy moves it to the dead-letter queue after `maxReceiveCount` deliveries. Tested on ElasticMQ, not at AWS.
"""

import boto3
from rows import keep, open_orders

sqs = boto3.client("sqs")
url = sqs.get_queue_url(QueueName="orders")["QueueUrl"]
with open_orders("sqs") as orders:
    while True:
        answer = sqs.receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, MessageAttributeNames=["uniqueMessageId"]
        )
        messages = answer.get("Messages", [])
        if messages:
            ids = [message["MessageAttributes"]["uniqueMessageId"]["StringValue"] for message in messages]
            keep(orders, [(id_, message["Body"]) for id_, message in zip(ids, messages, strict=True)])
            entries = [{"Id": str(n), "ReceiptHandle": m["ReceiptHandle"]} for n, m in enumerate(messages)]
            sqs.delete_message_batch(QueueUrl=url, Entries=entries)  # what isn't deleted comes again
