# SPDX-License-Identifier: Apache-2.0
"""Stores change hands: what Apache wrote serves in ringmq, what ringmq wrote serves in Apache."""

import argparse
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import harness
import peers
from harness import CACHE, ROOT, Trouble, say
from peers import Checks, mqadmin

VERSIONS = ["5.3.3"]
# The same in both, so that files have the same sizes.
QUEUE_FILE = 20 * 5000


def topic_of(run):
    return "compat_java_%s_broker_restart" % run


def offsets(tool, folder, address, topic):
    """Minimum and maximum of every queue, by mqadmin."""
    text = mqadmin(tool, folder, address, "topicStatus", "-t", topic)
    rows = [line.split() for line in text.splitlines()]
    found = {int(r[1]): (int(r[2]), int(r[3])) for r in rows if len(r) >= 4 and r[0] == "broker-a"}
    if not found:
        raise Trouble("topicStatus of %s:\n%s" % (topic, text))
    return found


def committed(store, topic, group):
    """Offsets that are in the file, by queue. Apache's JSON has numbers for keys."""
    text = (store / "config" / "consumerOffset.json").read_text()
    table = json.loads(re.sub(r"([{,])\s*(\d+)\s*:", r'\1"\2":', text))["offsetTable"]
    return table.get("%s@%s" % (topic, group), {})


def fill(target, broker, prefix, checks):
    """The first half, and what else a store can hold: batches, tags, sizes. Returns the name of the run."""
    trouble = None
    # A client commits one-way when it stops, and not every commit arrives before the end of its connection.
    for attempt in range(3):
        run = "%s%d%x" % (prefix, attempt, time.time_ns() // 1_000_000 % (1 << 32))
        for scenario in ("before_restart", "send_batch", "push_tags"):
            ok, detail = peers.client(broker.address, run, scenario)
            if not ok:
                checks.add(target, scenario, ok, detail)
                raise Trouble("there is nothing to go on with")
        topic = topic_of(run)
        try:
            harness.wait_for("the committed offsets to be in the file", lambda: sum(
                int(v) for v in committed(broker.store, topic, "GID_" + topic).values()) == 60, 12)
            return run
        except Trouble as late:
            trouble = late
    raise trouble


def read(target, broker, run, expected, tool, folder, checks):
    topic = topic_of(run)
    found = offsets(tool, folder, broker.address, topic)
    checks.add(target, "offsets of all queues", found == expected, "%s instead of %s" % (found, expected) if found != expected else "")
    checks.add(target, "the rest for the old group", *peers.client(broker.address, run, "after_restart"))
    checks.add(target, "all of it for a new group",
               *peers.client(broker.address, run, "read_again", RINGMQ_COMPAT_GROUP="again"))


def apache(classpath, folder, log):
    return harness.Apache(classpath, folder, log, mappedFileSizeConsumeQueue=QUEUE_FILE)


def ringmq(binary, folder, log, **settings):
    return harness.Ringmq(binary, folder, log, 1, mappedFileSizeConsumeQueue=QUEUE_FILE, **settings)


def from_apache(version, killed, binary, classpath, tool, checks):
    target = "%s %s to ringmq" % (version, "killed" if killed else "closed")
    say("== " + target)
    folder, log = harness.Folder().path, CACHE / "logs" / "store-from"
    theirs = apache(classpath, folder / "apache", log)
    theirs.start()
    run = fill(target, theirs, "killed" if killed else "closed", checks)
    expected = offsets(tool, folder, theirs.address, topic_of(run))
    theirs.kill() if killed else theirs.stop()
    ours = ringmq(binary, folder / "ours", log)
    ours.folder.mkdir()
    shutil.copytree(theirs.store, ours.store)
    ours.start()
    read(target, ours, run, expected, tool, folder, checks)
    ours.stop()


def to_apache(version, binary, classpath, tool, checks):
    target = "ringmq to %s" % version
    say("== " + target)
    folder, log = harness.Folder().path, CACHE / "logs" / "store-to"
    ours = ringmq(binary, folder / "ours", log)
    ours.start()
    mqadmin(tool, folder, ours.address, "updateTopic", "-c", "DefaultCluster", "-t", "Kept", "-r", "3", "-w", "5", "-p", "4")
    mqadmin(tool, folder, ours.address, "updateSubGroup", "-c", "DefaultCluster", "-g", "GID_kept", "-r", "7")
    run = fill(target, ours, "ours", checks)
    expected = offsets(tool, folder, ours.address, topic_of(run))
    ours.stop()
    theirs = apache(classpath, folder / "apache", log)
    (folder / "apache" / "broker").mkdir(parents=True)
    shutil.copytree(ours.store, theirs.store)
    theirs.start()
    read(target, theirs, run, expected, tool, folder, checks)
    theirs.stop()
    config = theirs.store / "config"
    topic = json.loads((config / "topics.json").read_text())["topicConfigTable"].get("Kept", {})
    group = json.loads((config / "subscriptionGroup.json").read_text())["subscriptionGroupTable"].get("GID_kept", {})
    kept = (topic.get("readQueueNums"), topic.get("writeQueueNums"), topic.get("perm"), group.get("retryMaxTimes"))
    checks.add(target, "topic and group as configured", kept == (3, 5, 4, 7), "" if kept == (3, 5, 4, 7) else str((topic, group)))


def main():
    parser = argparse.ArgumentParser(prog="tests/compat/store.sh", description=__doc__)
    parser.add_argument("--broker-bin", default=os.environ.get("RINGMQ_BIN") or ROOT / "target" / "release" / "ringmq",
                        help="binary of ringmq (default: target/release/ringmq)")
    parser.add_argument("--versions", default=",".join(VERSIONS), help="of Apache (default: %s)" % ",".join(VERSIONS))
    parser.add_argument("--no-install", action="store_true", help="use what the cache holds")
    args = parser.parse_args()

    CACHE.mkdir(parents=True, exist_ok=True)
    binary = Path(args.broker_bin).resolve()
    peers.prepare(not args.no_install)
    tool = harness.apache_classpath(not args.no_install)
    checks, began = Checks(), time.monotonic()
    for old in CACHE.glob("logs/store-*.log"):
        old.unlink()
    for version in args.versions.split(","):
        classpath = harness.apache_classpath(not args.no_install, version)
        try:
            for killed in (False, True):
                from_apache(version, killed, binary, classpath, tool, checks)
            to_apache(version, binary, classpath, tool, checks)
        except Trouble as trouble:
            harness.stop_all()
            checks.add(version, "program", False, str(trouble))
    say("\n" + "\n".join(row.rstrip() for row in checks.rows))
    say("\ntook %d s" % (time.monotonic() - began))
    return 1 if checks.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Trouble as trouble:
        say(str(trouble))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
