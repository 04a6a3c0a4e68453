# SPDX-License-Identifier: Apache-2.0
"""Scenarios of the C++ clients, through their C interface.

Both Python packages are a thin layer over a C++ library that they bundle: `rocketmq` 0.4.4 over version 1.0.1,
`rocketmq-python-cvs` 2.1.0.3 over version 2.x. Every scenario prints one line `RESULT <scenario> PASS|FAIL|SKIP
<detail>`; the exit code is 0 only when nothing failed.
"""

import argparse
import ctypes
import json
import os
import random
import subprocess
import sys
import threading
import time
import traceback

from rocketmq import client as mq
from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, SendStatus
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import _CMessageQueue, _CPullStatus, _CStatus, dll

WAIT_SECONDS = int(os.environ.get("RINGMQ_COMPAT_WAIT_SECS") or 60)
DEADLINE_SECONDS = 240
FAULT = os.environ.get("RINGMQ_COMPAT_FAULT", "")  # breaks what arrives: lose, twice or body

if hasattr(dll, "SetPushConsumerMessageTrace"):  # only in 2.x, and unknown to the Python layer
    dll.SetPushConsumerMessageTrace.argtypes = [ctypes.c_void_p, ctypes.c_int]
    dll.SetPushConsumerMessageTrace.restype = _CStatus


class Skip(Exception):
    pass


# ---- messages -----------------------------------------------------------------


class Sample:
    """The content of one message, a pure function of its number.

    Bodies have no zero byte: the C interface hands them out as C strings.
    """

    def __init__(self, number, tag):
        self.id = "m%05d" % number
        self.tag = tag
        self.properties = {"id": self.id, "number": str(number), "sentence": 'two words, 100% {"json":true}; ünïcode 汉字'}
        kind = number % 5
        if kind == 0:
            self.body = b"plain " + self.id.encode()
        elif kind == 1:
            self.body = ("ünïcode 汉字 🚀 " + self.id).encode()
        elif kind == 2:  # every byte value but zero
            self.body = bytes(range(1, 256)) + self.id.encode()
        elif kind == 3:  # large enough for the client to compress it
            self.body = ("compress me %s " % self.id).encode() * 1000
        else:  # large, and compression does not help
            noise = random.Random(number)
            self.body = bytes(noise.randrange(1, 256) for _ in range(20000))

    def message(self, topic):
        m = Message(topic)
        m.set_tags(self.tag)
        m.set_keys(self.id + " second-" + self.id)
        ffi_check(dll.SetByteMessageBody(m, self.body, len(self.body)))
        for key, value in self.properties.items():
            m.set_property(key, value)
        return m


def samples(start, end, tag="TagA"):
    return [Sample(i, tag) for i in range(start, end)]


def mixed(start, end):
    return [Sample(i, ("TagA", "TagB", "TagC", "")[i % 4]) for i in range(start, end)]


def text(value):
    return None if value is None else value.decode("utf-8", "replace")


class Got:
    """A received message, copied while the library still owns it."""

    def __init__(self, m):
        self.id = m.id
        self.tag, self.keys, self.body = text(m.tags), text(m.keys), m.body
        self.properties = {k: text(m[k]) for k in ("id", "number", "sentence")}
        self.fence, self.place = text(m["fence"]), text(m["place"])
        self.born, self.stored, self.again = m.born_timestamp, m.store_timestamp, m.reconsume_times
        self.offset = m.queue_offset

    def to_line(self):
        return json.dumps({**self.__dict__, "body": self.body.decode("latin-1")})

    @classmethod
    def from_line(cls, line):
        got = cls.__new__(cls)
        got.__dict__ = json.loads(line)
        got.body = got.body.encode("latin-1")
        return got

    def difference(self, s):
        if self.body != s.body:
            return "body has %d bytes instead of the %d sent, or differs" % (len(self.body), len(s.body))
        if (self.tag or "") != s.tag:
            return "tag %r instead of %r" % (self.tag, s.tag)
        if self.keys != s.id + " second-" + s.id:
            return "keys %r" % self.keys
        if self.properties != s.properties:
            return "properties %r" % self.properties
        if not self.born or not self.stored or not self.id:
            return "no born time, store time or message id"
        return "reconsumed %d times" % self.again if self.again else None


class Collector:
    def __init__(self):
        self.lock = threading.Lock()
        self.got, self.fences, self.seen = {}, {}, 0

    def add(self, m):
        self.take(Got(m))

    def take(self, got):
        with self.lock:
            if got.fence:
                self.fences.setdefault(got.fence, set()).add(got.place)
                return
            self.seen += 1
            if self.seen == 7:
                if FAULT == "lose":
                    return
                if FAULT == "body":
                    got.body += b"!"
            self.got.setdefault(got.properties["id"], []).append(got)
            if self.seen == 7 and FAULT == "twice":
                self.got[got.properties["id"]].append(got)

    def missing(self, wanted):
        with self.lock:
            return [s.id for s in wanted if s.id not in self.got]

    def count(self, wanted):
        return len(wanted) - len(self.missing(wanted))

    def wait_all(self, wanted):
        try:
            wait_for("messages", lambda: not self.missing(wanted))
        except AssertionError as e:
            missing = self.missing(wanted)
            raise AssertionError("%s: %d of %d did not arrive: %s" % (e, len(missing), len(wanted), some(missing)))

    def exactly(self, wanted, others=()):
        """The wanted arrived once each over all collectors, unchanged, and nothing else did."""
        together = {}
        for c in (self, *others):
            with c.lock:
                for id, arrived in c.got.items():
                    together.setdefault(id, []).extend(arrived)
        problems = []
        for s in wanted:
            arrived = together.pop(s.id, [])
            if len(arrived) != 1:
                problems.append("%s arrived %d times" % (s.id, len(arrived)))
            problems += ["%s: %s" % (s.id, g.difference(s)) for g in arrived if g.difference(s)]
        problems += ["%s was not expected, %d times" % (id, len(arrived)) for id, arrived in together.items()]
        check(not problems, "%d problems: %s" % (len(problems), some(problems)))

    def forget(self, known):
        with self.lock:
            for s in known:
                self.got.pop(s.id, None)


def check(holds, what):
    if not holds:
        raise AssertionError(what)


def wait_for(what, condition, seconds=WAIT_SECONDS):
    end = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < end, "waited %d s for %s" % (seconds, what))
        time.sleep(0.01)


def some(names):
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


# ---- clients --------------------------------------------------------------------


class Kit:
    def __init__(self, scenario, namesrv, run):
        # Both halves of the broker restart share one topic and one group.
        name = "broker_restart" if scenario in ("before_restart", "after_restart") else scenario
        self.namesrv = namesrv
        self.topic = "compat_cpp_%s_%s" % (run, name)
        self.group = "GID_compat_cpp_%s_%s" % (run, name)
        self.instance = "%s-%s-%d" % (run, name, os.getpid())
        self.sequence = 0
        self.open = []

    def next_instance(self):
        self.sequence += 1
        return "%s-%d" % (self.instance, self.sequence)

    def close(self):
        while self.open:
            self.stop(self.open[-1])

    def stop(self, client):
        self.open.remove(client)
        client.shutdown()

    def producer(self):
        p = Producer("P" + self.group)
        p.set_namesrv_addr(self.namesrv)
        p.set_timeout(10000)
        ffi_check(dll.SetProducerInstanceName(p._handle, self.next_instance().encode()))
        p.start()
        self.open.append(p)
        return p

    def push(self, expression="*"):
        """A started push consumer and what it gets; one thread, so that it hands out in order."""
        sink = Collector()
        return self.push_into(sink, expression), sink

    def push_into(self, sink, expression="*"):
        c = PushConsumer(self.group)
        c.set_namesrv_addr(self.namesrv)
        c.set_instance_name(self.next_instance())
        c.set_thread_count(1)
        if hasattr(dll, "SetPushConsumerMessageTrace"):
            # 2.x ends with a segmentation fault at the shutdown of a push consumer that does not trace (0 is on).
            ffi_check(dll.SetPushConsumerMessageTrace(c._handle, 0))
        c.subscribe(self.topic, sink.add, expression)
        c.start()
        self.open.append(c)
        return c

    def wait_route(self):
        """Waits until the name server knows the topic: a consumer that is too early asks again after 30 s only."""
        consumer = PullConsumer(self.group + "_route")
        consumer.set_namesrv_addr(self.namesrv)
        consumer.start()
        self.open.append(consumer)

        def known():
            queues, size = ctypes.POINTER(_CMessageQueue)(), ctypes.c_int()
            try:
                ffi_check(dll.FetchSubscriptionMessageQueues(
                    consumer._handle, self.topic.encode(), ctypes.pointer(queues), ctypes.pointer(size)))
            except Exception:
                return False
            ffi_check(dll.ReleaseSubscriptionMessageQueue(queues))
            return size.value > 0

        wait_for("the route of " + self.topic, known)
        self.stop(consumer)

    def send_all(self, producer, wanted):
        return [self.sent(producer.send_sync(s.message(self.topic)), s.id) for s in wanted]

    @staticmethod
    def sent(result, what):
        check(result.status == SendStatus.OK, "%s: %s" % (what, result.status))
        check(result.msg_id and result.offset >= 0, "%s: %r" % (what, result))
        return result

    def round(self, producer, tag="fence"):
        """Sends one marker to each queue; returns their token and number."""
        token, size, i = self.next_instance(), 1, 0
        while i < size:
            m = Message(self.topic)
            m.set_tags(tag)
            m.set_body("fence")
            m.set_property("fence", token)
            m.set_property("place", str(i))
            seen = []

            def select(count, msg, arg, i=i):
                seen.append(count)
                return i % count

            self.sent(producer.send_orderly(m, i, queue_selector=select), "fence to queue %d" % i)
            size = seen[-1]
            i += 1
        return token, size

    def fence(self, producer, sink, tag="fence"):
        """Waits for a marker on each queue.

        A queue is delivered in order, so whatever was to come before the markers has come by then: this is the
        proof that something does not arrive.
        """
        token, size = self.round(producer, tag)
        wait_for("the fences of all %d queues" % size, lambda: len(sink.fences.get(token, ())) == size)


class Member:
    """A push consumer in a process of its own, as two members of a group usually are.

    It has to be: at its shutdown 2.x keeps the connection, and so its membership, until the process ends.
    """

    def __init__(self, kit):
        self.sink = Collector()
        self.process = subprocess.Popen(
            [sys.executable, "-u", __file__, "--namesrv", kit.namesrv, "--run", kit.topic + "," + kit.group, "--scenario", "member"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.sink.take(Got.from_line(line))

    def shutdown(self):
        """A clean end: when this returns, all that the member got is in its sink."""
        self.process.stdin.close()
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError("the leaving member did not end")
        self.reader.join(10)
        check(code == 0, "the leaving member ended with code %d" % code)


def member(namesrv, names):
    kit = Kit("rebalance", namesrv, "member")
    kit.topic, kit.group = names.split(",")
    lock = threading.Lock()

    class Printer:
        @staticmethod
        def add(m):
            line = Got(m).to_line()
            with lock:
                print(line, flush=True)

    consumer = kit.push_into(Printer)
    sys.stdin.read()
    kit.stop(consumer)
    sys.stdout.flush()
    os._exit(0)


# ---- scenarios --------------------------------------------------------------------


def consume_once(kit, producer, wanted, results=()):
    _, sink = kit.push()
    sink.wait_all(wanted)
    kit.fence(producer, sink)
    sink.exactly(wanted)
    for s, r in zip(wanted, results):
        got = sink.got[s.id][0]
        check(got.offset == r.offset, "%s arrived at offset %d, the send said %r" % (s.id, got.offset, r))
    return "%d messages, once each" % len(wanted)


def send_sync(kit):
    producer, wanted = kit.producer(), samples(0, 100)
    return consume_once(kit, producer, wanted, kit.send_all(producer, wanted))


def send_async(kit):
    producer, wanted = kit.producer(), samples(0, 100)
    results, errors = [], []
    for s in wanted:
        producer.send_async(s.message(kit.topic), results.append, errors.append)
    wait_for("all sends to be answered", lambda: len(results) + len(errors) == len(wanted))
    check(not errors, "%d sends failed: %s" % (len(errors), errors[:1]))
    for r in results:
        kit.sent(r, "async")
    return consume_once(kit, producer, wanted)


def send_oneway(kit):
    producer, wanted = kit.producer(), samples(0, 100)
    for s in wanted:
        producer.send_oneway(s.message(kit.topic))
    kit.wait_route()
    return consume_once(kit, producer, wanted)


def send_batch(kit):
    raise Skip("the library marks a batch with the text 1, which a stock broker does not take for true: it stores one message")


def push_filtered(expression, *tags):
    def scenario(kit):
        """Half of the messages wait for the consumer, half are sent while it is there."""
        producer, first, second = kit.producer(), mixed(0, 60), mixed(60, 120)
        wanted = [s for s in first + second if expression == "*" or s.tag in tags]
        kit.send_all(producer, first)
        _, sink = kit.push(expression)
        sink.wait_all([s for s in first if s in wanted])
        kit.send_all(producer, second)
        sink.wait_all(wanted)
        kit.fence(producer, sink, tags[-1] if tags else "fence")
        sink.exactly(wanted)
        return "%d of %d messages" % (len(wanted), len(first + second))

    return scenario


def rebalance(kit):
    producer, before = kit.producer(), samples(0, 40)
    kit.send_all(producer, before)
    leaving = Member(kit)
    kit.open.append(leaving)
    two = leaving.sink
    two.wait_all(before)
    kit.fence(producer, two)
    # The member that stays is the newer one: 2.x never pulls a queue again that it once gave away.
    _, one = kit.push()

    # The library does not tell what it has assigned: markers show it.
    def shares():
        token, size = kit.round(producer)
        arrived = lambda: len(one.fences.get(token, ())) + len(two.fences.get(token, ()))
        wait_for("a marker of each queue", lambda: arrived() >= size)
        return len(one.fences.get(token, ())), len(two.fences.get(token, ())), size

    def until(what, condition):
        end = time.monotonic() + WAIT_SECONDS
        while True:
            found = shares()
            if condition(*found):
                return found
            check(time.monotonic() < end, "waited %d s for %s: %d and %d of %d queues" % (WAIT_SECONDS, what, *found))
            time.sleep(0.2)

    shared = until("both members to have a share", lambda a, b, size: a > 0 and b > 0 and a + b == size)
    middle = samples(40, 140)
    kit.send_all(producer, middle)
    wait_for("the members to get all together", lambda: not set(one.missing(middle)) & set(two.missing(middle)))
    check(one.count(middle) and two.count(middle), "shares of %d and %d messages" % (one.count(middle), two.count(middle)))
    kit.stop(leaving)
    after = samples(140, 240)
    kit.send_all(producer, after)
    one.wait_all(after)
    kit.fence(producer, one)
    # What came before the newer member may come again to it, when it took over before the first one's commit.
    for sink in (one, two):
        sink.forget(before)
    one.exactly(middle + after, [two])
    return "%d + %d of %d queues, then all" % shared


def restart_consumer(kit):
    producer, first, second = kit.producer(), samples(0, 100), samples(100, 150)
    kit.send_all(producer, first)
    consumer, sink = kit.push()
    sink.wait_all(first)
    kit.fence(producer, sink)
    kit.stop(consumer)
    sink.exactly(first)
    kit.send_all(producer, second)
    _, again = kit.push()
    again.wait_all(second)
    kit.fence(producer, again)
    again.exactly(second)
    return "%d before, %d after, nothing again" % (len(first), len(second))


def before_restart(kit):
    producer, consumed = kit.producer(), samples(0, 60)
    kit.send_all(producer, consumed)
    consumer, sink = kit.push()
    sink.wait_all(consumed)
    kit.fence(producer, sink)
    kit.stop(consumer)
    sink.exactly(consumed)
    kit.send_all(producer, samples(60, 100))
    return "sent 100, consumed %d" % len(sink.got)


def after_restart(kit):
    producer, left = kit.producer(), samples(60, 100)
    _, sink = kit.push()
    sink.wait_all(left)
    kit.fence(producer, sink)
    sink.exactly(left)
    return "consumed the other %d, nothing again" % len(left)


def pull_once(consumer, queue, expression, at):
    """1.x gives up at once (status 4) when a thread of its own is just connecting to the same broker, as its first
    heartbeat does: "GetTransport ... get timed_mutex timeout" in its log. Nothing was sent then."""
    for _ in range(20):
        r = dll.Pull(consumer._handle, ctypes.pointer(queue), expression.encode(), at, 7)
        if r.pullStatus != _CPullStatus.BROKER_TIMEOUT:
            return r
        dll.ReleasePullResult(r)
        time.sleep(0.05)
    return dll.Pull(consumer._handle, ctypes.pointer(queue), expression.encode(), at, 7)


def pull(kit):
    producer, wanted = kit.producer(), mixed(0, 100)
    kit.send_all(producer, wanted)
    consumer = PullConsumer(kit.group)
    consumer.set_namesrv_addr(kit.namesrv)
    consumer.start()
    kit.open.append(consumer)
    queues, size = ctypes.POINTER(_CMessageQueue)(), ctypes.c_int()
    ffi_check(dll.FetchSubscriptionMessageQueues(
        consumer._handle, kit.topic.encode(), ctypes.pointer(queues), ctypes.pointer(size)))
    check(size.value > 0, "no queues")
    sink, tagged = Collector(), Collector()
    for i in range(size.value):
        for expression, into in (("*", sink), ("TagB", tagged)):
            at = 0
            while True:
                r = pull_once(consumer, queues[i], expression, at)
                check(r.pullStatus in (_CPullStatus.FOUND, _CPullStatus.NO_NEW_MSG, _CPullStatus.NO_MATCHED_MSG),
                      "queue %d at %d: status %d" % (i, at, r.pullStatus))
                check(r.size <= 7, "asked for 7, got %d" % r.size)
                for j in range(r.size):
                    into.add(mq.RecvMessage(r.msgFoundList[j]))
                status, following = r.pullStatus, r.nextBeginOffset
                dll.ReleasePullResult(r)
                if status == _CPullStatus.NO_NEW_MSG:
                    break
                check(following > at, "queue %d: the offset stays at %d" % (i, at))
                at = following
    count = size.value
    ffi_check(dll.ReleaseSubscriptionMessageQueue(queues))
    sink.exactly(wanted)
    tagged.exactly([s for s in wanted if s.tag == "TagB"])
    return "%d messages of %d queues, and a tag" % (len(wanted), count)


def latency_probe(kit):
    producer, warm = kit.producer(), samples(0, 40)
    kit.send_all(producer, warm)
    _, sink = kit.push()
    sink.wait_all(warm)
    kit.fence(producer, sink)
    millis = []
    for i in range(20):
        time.sleep(0.1)  # leaves the consumer time to be parked again
        s = Sample(1000 + 5 * i, "TagA")
        begin = time.perf_counter()
        producer.send_sync(s.message(kit.topic))
        while sink.missing([s]):
            check(time.perf_counter() < begin + 4, "message %d had not arrived after 4 s" % i)
            time.sleep(0.0002)
        millis.append((time.perf_counter() - begin) * 1e3)
    millis.sort()
    return "send to receipt: median %.2f ms, 90 %% %.2f ms, worst %.2f ms" % (millis[10], millis[18], millis[19])


SCENARIOS = {
    "send_sync": send_sync,
    "send_async": send_async,
    "send_oneway": send_oneway,
    "send_batch": send_batch,
    "push_all": push_filtered("*"),
    "push_tag": push_filtered("TagA", "TagA"),
    "push_tags": push_filtered("TagA || TagB", "TagA", "TagB"),
    "rebalance": rebalance,
    "restart_consumer": restart_consumer,
    "pull": pull,
    "latency_probe": latency_probe,
    "before_restart": before_restart,
    "after_restart": after_restart,
}


def one(name, namesrv, run):
    begin = time.monotonic()
    kit = Kit(name, namesrv, run)
    try:
        try:
            line = "PASS " + SCENARIOS[name](kit)
        finally:
            kit.close()
    except Skip as e:
        line = "SKIP %s" % e
    except Exception as e:
        traceback.print_exc()
        line = "FAIL " + (str(e) or repr(e)).replace("\n", " ")
    print("RESULT %s %s (%.1f s)" % (name, line, time.monotonic() - begin), flush=True)
    return not line.startswith("FAIL")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--scenario", default="all", choices=["all", "member", *SCENARIOS])
    args = parser.parse_args()
    if args.scenario == "member":
        member(args.namesrv, args.run)
    names = [args.scenario]
    if args.scenario == "all":
        names = [n for n in SCENARIOS if n not in ("before_restart", "after_restart")]
    current = names[:1]

    def overdue():
        print("RESULT %s FAIL the program ran into its deadline of %d s" % (current[0], DEADLINE_SECONDS), flush=True)
        os._exit(1)

    guard = threading.Timer(DEADLINE_SECONDS, overdue)
    guard.daemon = True
    guard.start()
    ok = True
    for name in names:
        current[0] = name
        ok &= one(name, args.namesrv, args.run)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if ok else 1)  # the library's threads do not all end by themselves


main()
