# SPDX-License-Identifier: Apache-2.0
"""ringmq in one cluster with a stock Apache broker: under a stock name server, then under ringmq's own."""

import argparse
import os
import re
import sys
import time
from pathlib import Path

import harness
import peers
import wire
from harness import CACHE, ROOT, Trouble, say
from peers import Checks, mqadmin


def check(target, classpath, folder, namesrv, brokers, addresses, checks):
    run = re.sub("[^a-z]", "", target)
    topic = "compat_java_%s_cluster" % run
    created = mqadmin(classpath, folder, namesrv, "updateTopic", "-c", "DefaultCluster", "-t", topic, "-r", "4", "-w", "4")
    checks.add(target, "mqadmin updateTopic -c", created.count("success") >= len(brokers), created)
    listed = mqadmin(classpath, folder, namesrv, "clusterList")
    ok = all(re.search(r"\b%s\s+0\s+%s\s" % (name, address), listed) for name, address in zip(brokers, addresses))
    checks.add(target, "mqadmin clusterList", ok and "Exception" not in listed, listed)
    route = mqadmin(classpath, folder, namesrv, "topicRoute", "-t", topic)
    ok = all('"%s"' % name in route and address in route for name, address in zip(brokers, addresses))
    checks.add(target, "mqadmin topicRoute", ok and "Exception" not in route, route)
    checks.add(target, "Java 5.3.3 on all brokers", *peers.client(namesrv, run, "cluster", RINGMQ_COMPAT_BROKERS=",".join(brokers)))
    status = mqadmin(classpath, folder, namesrv, "topicStatus", "-t", topic)
    rows = [line.split() for line in status.splitlines() if line.split()[:1] and line.split()[0] in brokers]
    held = {row[0] for row in rows if int(row[3]) > 0}
    checks.add(target, "mqadmin topicStatus", held == set(brokers) and "Exception" not in status, status)
    progress = mqadmin(classpath, folder, namesrv, "consumerProgress", "-g", "GID_" + topic)
    diff = re.search(r"Diff Total: (-?\d+)", progress)
    # The group left before the markers of the second one came, one for each of the 12 queues.
    checks.add(target, "mqadmin consumerProgress", bool(diff) and int(diff[1]) == 12 and "Exception" not in progress, progress)


def leaves(target, namesrv_port, topic_broker, stop, checks):
    """A broker that stops in order is gone from the routes at once."""
    stop()
    left = harness.wait_for("the broker to leave the route", lambda: topic_broker not in wire.route(
        ("127.0.0.1", namesrv_port), "TBW102"), 20)
    checks.add(target, "a stopped broker leaves the route", bool(left))


def main():
    parser = argparse.ArgumentParser(prog="tests/compat/cluster.sh", description=__doc__)
    parser.add_argument("--broker-bin", default=os.environ.get("RINGMQ_BIN") or ROOT / "target" / "release" / "ringmq",
                        help="binary of ringmq (default: target/release/ringmq)")
    parser.add_argument("--no-install", action="store_true", help="use what the cache holds")
    args = parser.parse_args()

    CACHE.mkdir(parents=True, exist_ok=True)
    binary = Path(args.broker_bin).resolve()
    classpath = harness.apache_classpath(not args.no_install)
    peers.prepare(not args.no_install)
    for old in CACHE.glob("logs/cluster-*.log"):
        old.unlink()
    checks, began = Checks(), time.monotonic()
    folder = harness.Folder().path
    log = CACHE / "logs" / "cluster"

    target = "stock name server"
    say("== " + target)
    namesrv = harness.ApacheNamesrv(classpath, folder / "namesrv", "%s-namesrv.log" % log)
    namesrv.start()
    apache = harness.ApacheBroker(classpath, folder / "apache", "%s-apache.log" % log, namesrv.port, name="stock")
    apache.start()
    ours = harness.Ringmq(binary, folder / "ours", log, 2, "127.0.0.1:%d" % namesrv.port, name="ours")
    ours.start()
    brokers = ["ours-0", "ours-1", "stock"]
    addresses = ["127.0.0.1:%d" % p for p in (ours.port, ours.port + 10, apache.port)]
    check(target, classpath, folder, "127.0.0.1:%d" % namesrv.port, brokers, addresses, checks)
    leaves(target, namesrv.port, "ours-0", ours.stop, checks)
    apache.stop()
    namesrv.stop()

    target = "ringmq's name server"
    say("== " + target)
    ours = harness.Ringmq(binary, folder / "ours2", log, 2, name="ours")
    ours.start()
    apache = harness.ApacheBroker(classpath, folder / "apache2", "%s-apache2.log" % log, ours.namesrv_port, name="stock")
    apache.start()
    addresses = ["127.0.0.1:%d" % p for p in (ours.port, ours.port + 10, apache.port)]
    check(target, classpath, folder, ours.address, brokers, addresses, checks)
    leaves(target, ours.namesrv_port, "stock", apache.stop, checks)
    ours.stop()

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
