# SPDX-License-Identifier: Apache-2.0
"""The clients of the suite: how each is built, and how its program is called."""

import os
import sys

from harness import CACHE, HERE, Trouble, built, fingerprint, maven, need, once, run_tool, say

# What every program prints a line for under `--scenario all`; a client that lacks a feature says SKIP and why.
COMMON = ["send_sync", "send_async", "send_oneway", "send_batch", "push_all", "push_tag", "push_tags",
          "rebalance", "restart_consumer", "pull"]
HALVES = ["before_restart", "after_restart"]


class Client:
    name = ""
    about = ""
    extra = []  # scenarios beyond COMMON
    source = None  # folder under tests/compat

    def available(self):
        return (HERE / self.source).is_dir()

    def prepare(self, install):
        raise NotImplementedError

    def argv(self, home):
        """The program and its first arguments."""
        raise NotImplementedError

    def env(self, home):
        return {"HOME": str(home)}


class Java(Client):
    source = "java"
    extra = ["pull_lite", "latency_probe", "sql92", "request_reply", "retry_dlq", "delay", "orderly", "broadcast",
             "transaction"]

    def __init__(self, name, version, *flags):
        self.name, self.version, self.flags = name, version, list(flags)
        self.about = "Java rocketmq-client " + version + ("".join(" " + f for f in flags))

    def prepare(self, install):
        self.classpath = maven(HERE / "java", self.version, CACHE / ("java-" + self.version), install)

    def argv(self, home):
        return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Duser.home=%s" % home,
                "-Drocketmq.client.logRoot=%s" % (home / "logs"), *self.flags, "-cp", self.classpath, "ringmq.compat.Main"]


class Cpp(Client):
    source = "cpp"

    def __init__(self, name, requirements, about):
        self.name, self.requirements, self.about = name, HERE / "cpp" / requirements, about
        self.venv = CACHE / name

    def prepare(self, install):
        if install:
            need("python3")

            def build():
                say("installing " + self.about)
                log = CACHE / "logs" / ("build-%s.log" % self.name)
                run_tool("python3 -m venv (Debian: python3-venv)", [sys.executable, "-m", "venv", self.venv], log)
                run_tool("pip", [self.venv / "bin" / "pip", "install", "-q", "-r", self.requirements], log)

            once(self.venv, sys.version + fingerprint(self.requirements), build)
        built(self.venv)

    def argv(self, home):
        return [self.venv / "bin" / "python", "-u", HERE / "cpp" / "compat.py"]


class Script(Client):
    """A client with a build.sh and a run.sh of its own, which keep what they make in RINGMQ_COMPAT_CACHE."""

    def __init__(self, name, about, *tools, extra=()):
        self.name = self.source = name
        self.about, self.tools, self.extra = about, tools, list(extra)

    def available(self):
        return (HERE / self.source / "run.sh").is_file()

    def prepare(self, install):
        if install:
            need(*self.tools)
            say("building " + self.about)
            run_tool("build of " + self.name, [HERE / self.source / "build.sh"], CACHE / "logs" / ("build-%s.log" % self.name),
                     env={**os.environ, "RINGMQ_COMPAT_CACHE": str(CACHE)})

    def argv(self, home):
        return [HERE / self.source / "run.sh"]

    def env(self, home):
        return {**super().env(home), "RINGMQ_COMPAT_CACHE": str(CACHE)}


CLIENTS = [
    Java("java498", "4.9.8"),
    Java("java533", "5.3.3"),
    Java("java533bin", "5.3.3", "-Drocketmq.serialize.type=ROCKETMQ"),
    Script("go", "Go rocketmq-client-go/v2", "go", extra=["transaction"]),
    Cpp("cpp1", "requirements-cpp1.txt", "C++ 1.0.1 in PyPI rocketmq"),
    Cpp("cpp2", "requirements-cpp2.txt", "C++ 2.x in PyPI rocketmq-python-cvs"),
    Script("node", "Node ali-ons", "node", "npm"),
    Script("rust", "Rust rocketmq-client-rust", "cargo"),
]


def named(names):
    known = {c.name: c for c in CLIENTS}
    if not names:
        return [c for c in CLIENTS if c.available()]
    unknown = [n for n in names if n not in known]
    if unknown:
        raise Trouble("unknown client %s; known: %s" % (", ".join(unknown), ", ".join(known)))
    missing = [n for n in names if not known[n].available()]
    if missing:
        raise Trouble("no source for " + ", ".join(missing))
    return [known[n] for n in names]
