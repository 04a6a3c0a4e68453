# SPDX-License-Identifier: Apache-2.0
"""The clients of the suite: how each is built, and how its program is called."""

import json
import os
import shutil
import sys
from pathlib import Path

import harness
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
    extra = ["pull_lite", "latency_probe"]

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


class Go(Client):
    name, source, about = "go", "go", "Go rocketmq-client-go/v2"
    binary = CACHE / "go" / "compat"

    def prepare(self, install):
        if install:
            need("go")
            self.binary.parent.mkdir(parents=True, exist_ok=True)
            run_tool("go build", ["go", "build", "-o", self.binary, "."], CACHE / "logs" / "build-go.log", cwd=HERE / "go")
        if not self.binary.is_file():
            raise Trouble("the Go client is not built yet: run without --no-install")

    def argv(self, home):
        return [self.binary]


class Node(Client):
    name, source, about = "node", "node", "Node ali-ons"
    folder = CACHE / "node"

    def prepare(self, install):
        if install:
            need("node", "npm")

            def build():
                say("installing " + self.about)
                for file in ("package.json", "package-lock.json"):
                    shutil.copy(HERE / "node" / file, self.folder)
                run_tool("npm ci", ["npm", "ci", "--no-audit", "--no-fund"], CACHE / "logs" / "build-node.log", cwd=self.folder)

            once(self.folder, fingerprint(HERE / "node" / "package-lock.json"), build)
            for file in (HERE / "node").iterdir():
                if file.suffix in (".js", ".mjs", ".cjs"):
                    shutil.copy(file, self.folder)
        built(self.folder)
        self.main = json.loads((HERE / "node" / "package.json").read_text()).get("main", "index.js")

    def argv(self, home):
        return ["node", self.folder / self.main]


class Rust(Client):
    name, source, about = "rust", "rust", "Rust rocketmq-client-rust"
    target = CACHE / "rust-target"

    def prepare(self, install):
        if install:
            need("cargo")
            say("building the Rust client")
            env = {k: v for k, v in os.environ.items() if k != "RUSTFLAGS"}
            run_tool("cargo build", ["cargo", "build", "--release", "--locked"], CACHE / "logs" / "build-rust.log",
                     cwd=HERE / "rust", env={**env, "CARGO_TARGET_DIR": str(self.target), "CARGO_TERM_COLOR": "never"})
        self.binary = self.target / "release" / "ringmq-compat-rust"
        if not self.binary.is_file():
            raise Trouble("the Rust client is not built yet: run without --no-install")

    def argv(self, home):
        return [self.binary]


CLIENTS = [
    Java("java498", "4.9.8"),
    Java("java533", "5.3.3"),
    Java("java533bin", "5.3.3", "-Drocketmq.serialize.type=ROCKETMQ"),
    Go(),
    Cpp("cpp1", "requirements-cpp1.txt", "C++ 1.0.1 in PyPI rocketmq"),
    Cpp("cpp2", "requirements-cpp2.txt", "C++ 2.x in PyPI rocketmq-python-cvs"),
    Node(),
    Rust(),
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
