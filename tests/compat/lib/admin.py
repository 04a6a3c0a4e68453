# SPDX-License-Identifier: Apache-2.0
"""Commands of Apache's mqadmin, one by one, against ringmq."""

import argparse
import json
import os
import re
import socket
import struct
import threading
import time
from pathlib import Path

import harness
from harness import CACHE, ROOT, Trouble, say
from peers import Checks, mqadmin

TOPIC, GROUP, PRODUCERS, CLIENT = "AdminTopic", "GID_admin", "PID_admin", "127.0.0.1@admin"
RUNNING_INFO = ('{"mqTable":{},"properties":{"PROP_CLIENT_VERSION":"V5_3_3","PROP_CONSUME_TYPE":"CONSUME_PASSIVELY",'
                '"PROP_CONSUMEORDERLY":"false","PROP_CONSUMER_START_TIMESTAMP":"1700000000000",'
                '"PROP_NAMESERVER_ADDR":"127.0.0.1:1","PROP_THREADPOOL_CORE_SIZE":"20"},"statusTable":{},'
                '"subscriptionSet":[],"mqPopTable":{},"userConsumerInfo":{}}')


class Member:
    """A consumer and producer that does nothing but answer what the broker asks it."""

    def __init__(self, port):
        self.conn = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.asked = []
        heartbeat = {
            "clientID": CLIENT, "producerDataSet": [{"groupName": PRODUCERS}],
            "consumerDataSet": [{"groupName": GROUP, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                                 "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": [
                                     {"topic": TOPIC, "subString": "*", "subVersion": 1, "expressionType": "TAG"},
                                     {"topic": "%RETRY%" + GROUP, "subString": "*", "subVersion": 1, "expressionType": "TAG"}]}]}
        self.send({"code": 34, "opaque": 1, "flag": 0}, json.dumps(heartbeat).encode())
        self.conn.settimeout(None)
        threading.Thread(target=self.serve, daemon=True).start()

    def send(self, header, body=b""):
        head = json.dumps({"language": "JAVA", "version": 479, "serializeTypeCurrentRPC": "JSON", **header}).encode()
        self.conn.sendall(struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body)

    def exactly(self, count):
        data = b""
        while len(data) < count:
            more = self.conn.recv(count - len(data))
            if not more:
                raise OSError("closed")
            data += more
        return data

    def serve(self):
        try:
            while True:
                total, head_len = struct.unpack(">II", self.exactly(8))
                header = json.loads(self.exactly(head_len))
                self.exactly(total - 4 - head_len)
                if header.get("flag", 0) & 3:
                    continue
                self.asked.append(header["code"])
                answers = {307: RUNNING_INFO, 309: '{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"remark":"","spentTimeMills":3}'}
                body = answers.get(header["code"], "").encode()
                self.send({"code": 0, "opaque": header["opaque"], "flag": 1}, body)
        except OSError:
            return


def commands(version, broker, port, message_id):
    """Command, arguments, what its output must match."""
    address = "127.0.0.1:%d" % port
    return [
        ("updateTopic", ["-b", address, "-t", TOPIC, "-r", "4", "-w", "4"], r"create topic to .* success"),
        ("topicList", [], TOPIC),
        ("topicRoute", ["-t", TOPIC], re.escape(address)),
        ("topicClusterList", ["-t", TOPIC], "DefaultCluster"),
        ("clusterList", [], r"%s\s+0\s+%s" % (broker, re.escape(address))),
        ("topicStatus", ["-t", TOPIC], r"%s\s+3\s+0" % broker),
        ("updateSubGroup", ["-b", address, "-g", GROUP], r"create subscription group to .* success"),
        ("consumerConnection", ["-g", GROUP], r"%s[\s\S]*AdminTopic" % re.escape(CLIENT)),
        ("producerConnection", ["-g", PRODUCERS, "-t", TOPIC], re.escape(CLIENT)),
        ("consumerStatus", ["-g", GROUP], r"%s\s+V5_3_3" % re.escape(CLIENT)),
        ("consumerProgress", ["-g", GROUP], r"Diff Total: \d+"),
        # To queue 1: without a queue the tool takes a random one, and what queryCq prints of queue 0 varies with it.
        ("sendMessage", ["-t", TOPIC, "-p", "hello", "-k", "K1", "-c", "TagA", "-b", broker, "-i", "1"], r"SEND_OK"),
        ("queryMsgById", ["-i", message_id] + (["-t", TOPIC] if version >= "5" else []), r"Topic:\s+%s" % TOPIC),
        ("queryMsgByOffset", ["-t", TOPIC, "-b", broker, "-i", "0", "-o", "0"], r"Topic:\s+%s" % TOPIC),
        ("queryMsgByKey", ["-t", TOPIC, "-k", "K1"], r"[0-9A-F]{32}\s+1\s+0"),
        ("printMsg", ["-t", TOPIC, "-d", "true"], r"MSGID"),
        ("consumeMessage", ["-t", TOPIC], r"MSGID"),
        ("resetOffsetByTime", ["-g", GROUP, "-t", TOPIC, "-s", "-1"], r"%s\s+0\s+\d+" % broker),
        ("updateSubGroup", ["-b", address, "-g", "GID_clone"], r"create subscription group to .* success"),
        ("cloneGroupOffset", ["-s", GROUP, "-d", "GID_clone", "-t", TOPIC], r"clone group offset|success|$"),
        ("brokerConsumeStats", ["-b", address], r"%s\s+%s" % (TOPIC, GROUP)),
        ("queryCq", ["-t", TOPIC, "-q", "0", "-i", "0", "-c", "2"], r"max: 1, min: 0[\s\S]*physicSize=\d+"),
        ("brokerStatus", ["-b", address], r"putTps"),
        ("getBrokerConfig", ["-b", address], r"longPollingEnable\s+=\s+true"),
        ("updateBrokerConfig", ["-b", address, "-k", "longPollingEnable", "-v", "true"], r"update broker config success"),
        ("wipeWritePerm", ["-b", broker], r"wipe write perm of broker.*OK"),
        ("addWritePerm", ["-b", broker], r"add write perm of broker.*OK"),
        ("statsAll", [], TOPIC),
        ("deleteSubGroup", ["-b", address, "-g", GROUP], r"delete subscription group .* success"),
        ("deleteTopic", ["-c", "DefaultCluster", "-t", TOPIC], r"delete topic .* success"),
    ]


def send_one(port):
    """A message's id, and its place at offset 0 of queue 0."""
    properties = "KEYS\x01K0\x02UNIQ_KEY\x017F000001000218B4AAC2000000000000\x02TAGS\x01TagA\x02"
    fields = {"a": PRODUCERS, "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0",
              "g": str(int(time.time() * 1000)), "h": "0", "i": properties}
    head = json.dumps({"code": 310, "language": "JAVA", "version": 479, "opaque": 1, "flag": 0, "extFields": fields}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as conn:
        conn.sendall(struct.pack(">II", 4 + len(head) + 5, len(head)) + head + b"hello")
        conn.settimeout(10)
        data = b""
        while len(data) < 8 or len(data) < 4 + struct.unpack(">I", data[:4])[0]:
            data += conn.recv(65536)
    answer = json.loads(data[8:8 + struct.unpack(">I", data[4:8])[0]])
    if answer["code"] != 0:
        raise Trouble("the send was refused: %s" % answer)
    return answer["extFields"]["msgId"]


def run(version, binary, install, checks, only):
    classpath = harness.maven(harness.HERE / "tools", version, CACHE / ("tools-" + version), install)
    folder = harness.Folder().path
    ours = harness.Ringmq(binary, folder / "ours", CACHE / "logs" / "admin")
    ours.start()
    namesrv = "127.0.0.1:%d" % ours.namesrv_port
    member = Member(ours.port)
    message_id = send_one(ours.port)
    for name, arguments, expected in commands(version, ours.name, ours.port, message_id):
        if only and name not in only and name != "updateTopic":
            continue
        printed = mqadmin(classpath, folder, namesrv, name, *arguments)
        ok = re.search(expected, printed) and "Exception" not in printed
        checks.add("mqadmin " + version, name, bool(ok), "" if ok else printed)
    if not only:
        checks.add("mqadmin " + version, "the consumer was asked (307)", 307 in member.asked)
    ours.stop()


def main():
    parser = argparse.ArgumentParser(prog="tests/compat/admin.sh", description=__doc__)
    parser.add_argument("--broker-bin", default=os.environ.get("RINGMQ_BIN") or ROOT / "target" / "release" / "ringmq",
                        help="binary of ringmq (default: target/release/ringmq)")
    parser.add_argument("--versions", default="5.3.3,4.9.8", help="of mqadmin (default: 5.3.3,4.9.8)")
    parser.add_argument("--commands", default="", help="only these, with commas")
    parser.add_argument("--no-install", action="store_true", help="use what the cache holds")
    args = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    checks, began = Checks(), time.monotonic()
    for version in args.versions.split(","):
        only = [c for c in args.commands.split(",") if c]
        run(version, Path(args.broker_bin).resolve(), not args.no_install, checks, only)
    say("\n" + "\n".join(checks.rows))
    say("\ntook %d s" % (time.monotonic() - began))
    return 1 if checks.failed else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except Trouble as trouble:
        say(str(trouble))
        raise SystemExit(1)
