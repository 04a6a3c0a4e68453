# SPDX-License-Identifier: Apache-2.0
"""Sends three orders and consumes those with one tag. Needs: pip install rocketmq-python-cvs==2.1.0.3"""

import threading

from rocketmq.client import Message, Producer, PushConsumer

NAME_SERVER = "127.0.0.1:9876"
done = threading.Event()


def on_message(message):
    print("got", message.body.decode(), "with tag", message.tags.decode())
    if message.body == b"order 2":
        done.set()


consumer = PushConsumer("GID_example_python")
consumer.set_namesrv_addr(NAME_SERVER)
consumer.subscribe("ExamplePython", on_message, "paid")
consumer.start()

producer = Producer("PID_example_python")
producer.set_namesrv_addr(NAME_SERVER)
producer.start()
for number, tag in enumerate(["paid", "open", "paid"]):
    message = Message("ExamplePython")
    message.set_tags(tag)
    message.set_body("order %d" % number)
    result = producer.send_sync(message)
    print("sent", result.msg_id, "at offset", result.offset)
producer.shutdown()

if not done.wait(60):
    raise SystemExit("the last order did not arrive")
consumer.shutdown()
