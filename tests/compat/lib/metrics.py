# SPDX-License-Identifier: Apache-2.0
"""Metrics of a broker with two shards and known traffic: promtool checks them, a real Prometheus scrapes them."""

import argparse
import json
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path

import harness
import wire
from harness import ROOT, Process, Ringmq, Trouble, free_port, say, wait_for

MESSAGES = 25
SEND, PULL, HEART_BEAT = 310, 11, 34

SCRAPE = """global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: ringmq
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


HEART = {
    "clientID": "c@1",
    "producerDataSet": [{"groupName": "PG"}],
    "consumerDataSet": [{
        "groupName": "G", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "subscriptionDataSet": [{"topic": "T", "subString": "*", "subVersion": 1}],
    }],
}


def fetch(port, path, seconds=10):
    with urllib.request.urlopen("http://127.0.0.1:%d%s" % (port, path), timeout=seconds) as answer:
        return answer.read().decode()


def accepted(address, code, fields, body=b""):
    answer, remark, _, _ = wire.call(address, code, fields, body=body)
    if answer != 0:
        raise Trouble("request %d: code %d, %s" % (code, answer, remark))


def traffic(broker):
    """Messages on both shards, read once by a group. Returns the connections of its members."""
    members = []
    for shard in range(broker.shards):
        address = ("127.0.0.1", broker.port + 10 * shard)
        for n in range(MESSAGES):
            fields = dict(a="PG", b="T", c="TBW102", d="4", e="0", f="0", g="1700000000000", h="0", i="TAGS\x01A\x02")
            accepted(address, SEND, fields, b"message %d" % n)
        pull = dict(consumerGroup="G", topic="T", queueId="0", queueOffset="0", maxMsgNums="32", sysFlag="4",
                    commitOffset="0", suspendTimeoutMillis="0", subscription="*", subVersion="0")
        accepted(address, PULL, pull)
        member = socket.create_connection(address, timeout=10)
        # The answer, or the notification that the group has changed: both say that it is a member.
        wire.exchange(member, HEART_BEAT, {}, json.dumps(HEART).encode())
        members.append(member)
    return members


def check_text(port):
    """promtool finds nothing to say. Returns how many series there are."""
    text = fetch(port, "/metrics")
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    if checked.returncode != 0 or checked.stderr:
        raise Trouble("promtool check metrics: %s%s" % (checked.stdout, checked.stderr))
    return sum(1 for line in text.splitlines() if not line.startswith("#"))


def query(port, expression):
    """Value of an expression that has one series at most."""
    answer = json.loads(fetch(port, "/api/v1/query?" + urllib.parse.urlencode({"query": expression})))
    result = answer["data"]["result"]
    return float(result[0]["value"][1]) if result else None


def scrape(port, folder, log):
    """What a real Prometheus has stored after a scrape."""
    folder.mkdir()
    config = folder / "prometheus.yml"
    config.write_text(SCRAPE.format(port=port))
    own = free_port()
    process = Process("Prometheus", [
        "prometheus", "--config.file=%s" % config, "--storage.tsdb.path=%s" % (folder / "data"),
        "--web.listen-address=127.0.0.1:%d" % own,
    ], log, cwd=folder)

    def is_up():
        try:
            return query(own, "up") == 1
        except OSError:
            return False

    wait_for("Prometheus to scrape the broker", is_up, 60, process)
    expected = {
        "sum(rocketmq_messages_in_total)": 2 * MESSAGES,
        'sum(rocketmq_messages_out_total{consumer_group="G"})': 2 * MESSAGES,
        'sum(rocketmq_rpc_latency_count{request_code="send_message_v2",response_code="success"})': 2 * MESSAGES,
        'sum(rocketmq_consumer_connections{consumer_group="G",language="python"})': 2,
        'sum(rocketmq_consumer_ready_messages{consumer_group="G"})': 0,
        "sum(ringmq_pulls_found_total)": 2,
        "sum(ringmq_shard_up)": 2,
        "count(ringmq_turn_seconds_count)": 2,
    }
    found = {expression: query(own, expression) for expression in expected}
    process.stop()
    wrong = ["%s is %s, expected %s" % (e, found[e], expected[e]) for e in expected if found[e] != expected[e]]
    if wrong:
        raise Trouble("Prometheus has stored:\n" + "\n".join(wrong))
    return len(expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker-bin", default=ROOT / "target" / "release" / "ringmq", type=Path)
    options = parser.parse_args()
    harness.need("promtool", "prometheus")
    folder = harness.Folder().path
    port = free_port()
    broker = Ringmq(options.broker_bin.resolve(), folder / "broker", folder / "log", shards=2, metricsPort=port)
    try:
        broker.start()
        members = traffic(broker)
        say("promtool: %d series, nothing to say" % check_text(port))
        values = scrape(port, folder / "prometheus", folder / "prometheus.log")
        say("Prometheus: scraped, %d values are as the traffic was" % values)
        for member in members:
            member.close()
        broker.stop()
    finally:
        harness.stop_all()
    print("2 passed, 0 failed")


if __name__ == "__main__":
    try:
        main()
    except Trouble as trouble:
        print(trouble)
        print("0 passed, 1 failed")
        sys.exit(1)
