# SPDX-License-Identifier: Apache-2.0
"""Drives unmodified RocketMQ clients against a broker and prints a table."""

import argparse
import os
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import clients as known
import harness
from harness import CACHE, ROOT, Process, Trouble, say, tail

CLIENT_SECONDS = 260  # hard limit of one call of a client's program
RESULT = re.compile(r"RESULT (\S+) (PASS|FAIL|SKIP)(?: (.*))?$")


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.count = {"PASS": 0, "FAIL": 0, "SKIP": 0}
        self.cells = {}
        self.details = []

    def add(self, target, client, scenario, verdict, detail, log):
        with self.lock:
            self.count[verdict] += 1
            self.cells[target, client, scenario] = verdict
            if verdict == "FAIL":
                say("FAIL %s, %s, %s: %s\n  log: %s\n%s" % (target, client, scenario, detail, log, tail(log)))
            elif verdict == "SKIP" or scenario == "latency_probe":
                self.details.append("%s %s %s: %s %s" % (target, client, scenario, verdict, detail))

    def table(self, target):
        scenarios, rows = [], []
        for t, client, scenario in self.cells:
            if t == target and client not in rows:
                rows.append(client)
            if t == target and scenario not in scenarios:
                scenarios.append(scenario)
        order = known.COMMON + [s for c in known.CLIENTS for s in c.extra] + known.HALVES
        scenarios.sort(key=lambda s: order.index(s) if s in order else 99)
        rows.sort(key=lambda r: next((i for i, c in enumerate(known.CLIENTS) if c.name == r), 99))
        words = [s.split("_", 1) if "_" in s else ["", s] for s in scenarios]
        widths = [max(len(w) for w in pair) + 1 for pair in words]
        lines = []
        for part in (0, 1):
            head = "" if part else target
            lines.append("%-14s" % head + "".join(" %-*s" % (w, pair[part]) for w, pair in zip(widths, words)))
        shown = {"PASS": "ok", "FAIL": "FAIL", "SKIP": "skip", None: "-"}
        for row in rows:
            lines.append("%-14s" % row + "".join(
                " %-*s" % (w, shown[self.cells.get((target, row, s))]) for w, s in zip(widths, scenarios)))
        return "\n".join(line.rstrip() for line in lines)


def call(client, target, address, run, scenario, expected, tally, logs, env=None):
    """Runs a client's program once and books what it says."""
    home = CACHE / "home" / client.name
    home.mkdir(parents=True, exist_ok=True)
    log = logs / ("%s-%s.log" % (client.name, scenario))
    log.unlink(missing_ok=True)
    argv = [*client.argv(home), "--namesrv", address, "--run", run, "--scenario", scenario]
    process = Process(client.name, argv, log, cwd=home, env={**os.environ, **client.env(home), **(env or {})})
    code = process.wait(CLIENT_SECONDS)
    if code is None:
        process.kill()
    results = {}
    for line in log.read_text(errors="replace").splitlines():
        match = RESULT.search(line)
        if match:
            results[match[1]] = (match[2], match[3] or "")
    if code is None:
        results["program"] = ("FAIL", "did not end within %d s" % CLIENT_SECONDS)
    elif code != 0 and not any(v == "FAIL" for v, _ in results.values()):
        results["program"] = ("FAIL", "ended with code %d though no scenario failed" % code)
    elif code == 0 and any(v == "FAIL" for v, _ in results.values()):
        results["program"] = ("FAIL", "ended with code 0 though a scenario failed")
    for name in expected:
        results.setdefault(name, ("FAIL", "printed no result"))
    for name, (verdict, detail) in results.items():
        tally.add(target, client.name, name, verdict, detail, log)
    return results


def round_of(target_name, broker, clients, tally, jobs):
    logs = CACHE / "logs" / target_name
    logs.mkdir(parents=True, exist_ok=True)
    stamp = "%x" % (time.time_ns() // 1_000_000 % (1 << 32))
    run = {c.name: "%s%s" % (c.name, stamp) for c in clients}

    def before(client):
        call(client, target_name, broker.address, run[client.name], "all", known.COMMON + client.extra, tally, logs)
        call(client, target_name, broker.address, run[client.name], "before_restart", ["before_restart"], tally, logs)

    def after(client):
        call(client, target_name, broker.address, run[client.name], "after_restart", ["after_restart"], tally, logs)

    broker.start()
    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(before, clients):
            pass
    broker.restart()
    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(after, clients):
            pass
    broker.stop()


def self_check(broker, clients, tally):
    """Every client must notice a message that is lost, comes twice or is changed."""
    logs = CACHE / "logs" / "self-check"
    broker.start()
    for client in clients:
        for fault in ("lose", "twice", "body"):
            hidden = Tally()
            hidden.add = lambda *args: None
            run = "%s%s%x" % (client.name, fault, time.time_ns() // 1_000_000 % (1 << 32))
            results = call(client, "", broker.address, run, "send_sync", ["send_sync"], hidden, logs / fault,
                           {"RINGMQ_COMPAT_FAULT": fault, "RINGMQ_COMPAT_WAIT_SECS": "8"})
            noticed = results["send_sync"][0] == "FAIL" and "program" not in results
            tally.add("self-check", client.name, "notices_" + fault, "PASS" if noticed else "FAIL",
                      str(results), logs / fault / (client.name + "-send_sync.log"))
    broker.stop()


def main():
    parser = argparse.ArgumentParser(prog="tests/compat/run.sh", description=__doc__)
    parser.add_argument("--broker-bin", default=os.environ.get("RINGMQ_BIN") or ROOT / "target" / "release" / "ringmq",
                        help="binary of ringmq (default: target/release/ringmq)")
    parser.add_argument("--target", choices=["ringmq", "apache"], default="ringmq", help="broker to test")
    parser.add_argument("--shards", default="1,2", help="shard counts to test ringmq with (default: 1,2)")
    parser.add_argument("--clients", default="", help="names, with commas (default: all)")
    parser.add_argument("--jobs", type=int, default=4, help="clients that run at the same time (default: 4)")
    parser.add_argument("--no-install", action="store_true", help="use what the cache holds")
    parser.add_argument("--install-only", action="store_true", help="build and install, run nothing")
    parser.add_argument("--self-check", action="store_true", help="show that each client notices broken deliveries")
    args = parser.parse_args()

    CACHE.mkdir(parents=True, exist_ok=True)
    install = not args.no_install
    clients = known.named([n for n in args.clients.split(",") if n])
    for client in clients:
        client.prepare(install)
    classpath = harness.apache_classpath(install) if args.target == "apache" else None
    if args.install_only:
        return 0

    tally = Tally()
    targets = []
    began = time.monotonic()
    for shards in [int(s) for s in args.shards.split(",")] if args.target == "ringmq" else [1]:
        folder = harness.Folder()
        name = "apache" if args.target == "apache" else "ringmq-%d" % shards
        targets.append(name)
        log = CACHE / "logs" / name
        for old in CACHE.glob("logs/%s-*.log" % name):
            old.unlink()
        if args.target == "apache":
            broker = harness.Apache(classpath, folder.path, log)
        else:
            broker = harness.Ringmq(Path(args.broker_bin).resolve(), folder.path, log, shards)
        say("== %s: %s" % (name, ", ".join(c.name for c in clients)))
        try:
            if args.self_check:
                targets[-1] = "self-check"
                self_check(broker, clients, tally)
                break
            round_of(name, broker, clients, tally, args.jobs)
        except Trouble as e:
            harness.stop_all()
            say(str(e))
            tally.add(name, "broker", "program", "FAIL", str(e).splitlines()[0], "")
    for name in targets:
        say("\n" + tally.table(name))
    say("")
    for line in tally.details:
        say(line)
    say("\ntook %d s\n" % (time.monotonic() - began))
    say("%d passed, %d failed, %d skipped" % (tally.count["PASS"], tally.count["FAIL"], tally.count["SKIP"]))
    return 0 if tally.count["FAIL"] == 0 and tally.count["PASS"] > 0 else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Trouble as trouble:
        say(str(trouble))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
