# SPDX-License-Identifier: Apache-2.0
"""Starts and stops brokers, and builds what the suites need. Python 3 standard library only."""

import atexit
import ctypes
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import wire

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
CACHE = Path(os.environ.get("RINGMQ_COMPAT_CACHE") or HERE / ".cache").resolve()
APACHE_VERSION = "5.3.3"


class Trouble(Exception):
    """Something that ends the run, told without a stack trace."""


def say(text):
    print(text, flush=True)


# ---- processes ----------------------------------------------------------------

_children = []
_children_lock = threading.Lock()
_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent():
    _libc.prctl(1, signal.SIGKILL)


class Process:
    """A child that ends, at the latest, with this program."""

    def __init__(self, name, argv, log, cwd=None, env=None, stdin=subprocess.DEVNULL, stdout=None):
        self.name = name
        self.log = Path(log)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as out:
            self.popen = subprocess.Popen(
                [str(a) for a in argv], cwd=cwd, env=env, stdin=stdin,
                stdout=stdout or out, stderr=out, preexec_fn=_die_with_parent,
            )
        with _children_lock:
            _children.append(self)

    def alive(self):
        return self.popen.poll() is None

    def wait(self, seconds):
        """The exit code, or None when the process is still there after so many seconds."""
        try:
            return self.popen.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self):
        if self.alive():
            self.popen.kill()
        self.popen.wait()

    def stop(self, seconds=40):
        """SIGTERM; the exit code. A process that stays is killed and reported."""
        if self.alive():
            self.popen.terminate()
        code = self.wait(seconds)
        if code is None:
            self.kill()
            raise Trouble("%s did not stop within %d s of SIGTERM:\n%s" % (self.name, seconds, tail(self.log)))
        return code


def stop_all():
    with _children_lock:
        children = list(_children)
    for child in children:
        if child.alive():
            child.popen.kill()
            child.popen.wait()


atexit.register(stop_all)
for _number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(_number, lambda number, frame: sys.exit(128 + number))


def tail(path, lines=40):
    try:
        text = Path(path).read_text(errors="replace").splitlines()
    except OSError as e:
        return str(e)
    return "\n".join("    | " + line[:400] for line in text[-lines:])


def wait_for(what, condition, seconds, process=None, step=0.05):
    """Waits until the condition holds; its last exception is part of the complaint."""
    end = time.monotonic() + seconds
    trouble = ""
    while True:
        try:
            result = condition()
            if result:
                return result
        except (OSError, wire.WireError, ValueError, KeyError) as e:
            trouble = " (%s)" % e
        if process and not process.alive():
            raise Trouble("%s ended with code %s, before %s:\n%s"
                          % (process.name, process.popen.returncode, what, tail(process.log)))
        if time.monotonic() > end:
            log = "\n" + tail(process.log) if process else ""
            raise Trouble("waited %d s for %s%s%s" % (seconds, what, trouble, log))
        time.sleep(step)


def run_tool(what, argv, log, cwd=None, env=None, seconds=1500):
    process = Process(what, argv, log, cwd=cwd, env=env)
    code = process.wait(seconds)
    if code is None:
        process.kill()
    if code != 0:
        raise Trouble("%s failed (%s):\n%s" % (what, "timeout" if code is None else "code %d" % code, tail(log)))


# ---- ports --------------------------------------------------------------------

_taken = set()


def _bindable(port):
    with socket.socket() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False


def free_port(*offsets):
    """A port below the ephemeral range that is free, as are the ones at these offsets from it."""
    for _ in range(1000):
        base = random.randrange(12000, 30000)
        wanted = {base + o for o in (0,) + offsets}
        if not wanted & _taken and all(_bindable(p) for p in wanted):
            _taken.update(wanted)
            return base
    raise Trouble("no free port found")


# ---- installation ---------------------------------------------------------------

PACKAGES = {
    "java": "openjdk-17-jdk-headless", "javac": "openjdk-17-jdk-headless", "mvn": "maven", "python3": "python3",
    "go": "golang (1.22 or newer)", "node": "nodejs (20 or newer)", "npm": "npm", "cargo": "a Rust toolchain (rustup)",
}


def need(*tools):
    missing = ["%s (Debian: %s)" % (t, PACKAGES.get(t, t)) for t in tools if not shutil.which(t)]
    if missing:
        raise Trouble("missing: " + ", ".join(missing))


def fingerprint(*paths):
    digest = hashlib.sha256()
    for path in paths:
        path = Path(path)
        for file in sorted(p for p in ([path] if path.is_file() else path.rglob("*")) if p.is_file()):
            digest.update(str(file.relative_to(HERE)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def once(folder, mark, build):
    """Builds into an emptied folder unless it already holds what the mark says."""
    stamp = folder / "built"
    if stamp.is_file() and stamp.read_text() == mark:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    build()
    stamp.write_text(mark)


def built(folder):
    if not (folder / "built").is_file():
        raise Trouble("%s is not built yet: run without --no-install" % folder.name)


def maven(source, version, out, install):
    """classes and lib of a Maven project; returns the class path."""
    if install:
        need("java", "javac", "mvn")

        def build():
            work = out / "src"
            shutil.copytree(source, work)
            say("building %s with RocketMQ %s" % (source.name, version))
            run_tool("mvn", ["mvn", "-q", "-B", "-Drocketmq.version=" + version, "compile",
                             "dependency:copy-dependencies", "-DoutputDirectory=%s" % (out / "lib")],
                     CACHE / "logs" / ("build-%s.log" % out.name), cwd=work)
            (work / "target" / "classes").mkdir(parents=True, exist_ok=True)
            shutil.copytree(work / "target" / "classes", out / "classes")
            shutil.rmtree(work)

        once(out, version + fingerprint(source), build)
    need("java")
    built(out)
    return "%s:%s/*" % (out / "classes", out / "lib")


def apache_classpath(install, version=APACHE_VERSION):
    return maven(HERE / "apache", version, CACHE / ("apache-" + version), install)


# ---- brokers --------------------------------------------------------------------

JAVA_FLAGS = [
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED", "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
]

LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.%s">%s
    <encoder><pattern>%%d{HH:mm:ss.SSS} %%-5level %%logger{0} - %%msg%%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
LOG_TO_CONSOLE = LOGBACK % ("ConsoleAppender", "")


def log_to_file(path):
    """Settings of the log of a program whose output is read: what it logs stays out of what it prints."""
    return LOGBACK % ("FileAppender", "\n    <file>%s</file>" % path)


def properties(path, values):
    path.write_text("".join("%s=%s\n" % item for item in values.items()))
    return path


def logback(folder):
    """Where each version looks for its settings of the log."""
    (folder / "conf").mkdir(parents=True, exist_ok=True)
    for name in ("logback.xml", "conf/logback_namesrv.xml", "conf/logback_broker.xml"):
        (folder / name).write_text(LOG_TO_CONSOLE)


class Folder:
    """A temporary folder that goes away at the end, unless RINGMQ_COMPAT_KEEP is set."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="ringmq-compat-"))
        if not os.environ.get("RINGMQ_COMPAT_KEEP"):
            atexit.register(shutil.rmtree, self.path, True)


class ApacheNamesrv:
    def __init__(self, classpath, folder, log, port=None):
        self.classpath, self.folder, self.log = classpath, Path(folder), log
        self.port = port or free_port()
        self.process = None

    def start(self):
        logback(self.folder)
        config = properties(self.folder / "namesrv.properties", {
            "listenPort": self.port, "bindAddress": "127.0.0.1",
            "rocketmqHome": self.folder, "kvConfigPath": self.folder / "kvConfig.json",
        })
        self.process = Process("Apache name server", [
            "java", *JAVA_FLAGS, "-Xms64m", "-Xmx128m", "-Duser.home=%s" % self.folder,
            "-Drmq.logback.configurationFile=%s" % (self.folder / "logback.xml"), "-cp", self.classpath,
            "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", config,
        ], self.log, cwd=self.folder)
        wait_for("the name server to answer", lambda: wire.route(("127.0.0.1", self.port), "TBW102") is not None,
                 60, self.process)

    def stop(self):
        self.process.stop()


class ApacheBroker:
    """A stock broker that registers at a name server."""

    def __init__(self, classpath, folder, log, namesrv_port, name="broker-a", cluster="DefaultCluster", **settings):
        self.classpath, self.folder, self.log = classpath, Path(folder), log
        self.namesrv_port, self.name, self.cluster = namesrv_port, name, cluster
        self.port = free_port(-2, 1)
        self.settings = settings
        self.store = self.folder / "store"
        self.process = None

    def start(self):
        logback(self.folder)
        config = properties(self.folder / "broker.properties", {
            "brokerClusterName": self.cluster, "brokerName": self.name, "brokerId": 0, "brokerRole": "ASYNC_MASTER",
            "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1", "listenPort": self.port,
            "haListenPort": self.port + 1, "namesrvAddr": "127.0.0.1:%d" % self.namesrv_port,
            "bindAddress": "127.0.0.1", "rocketmqHome": self.folder, "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog", "autoCreateTopicEnable": "true",
            "mappedFileSizeCommitLog": 16 << 20, "mappedFileSizeConsumeQueue": 20 * 5000,
            "maxIndexNum": 40000, "maxHashSlotNum": 10000, "diskMaxUsedSpaceRatio": 95,
            "osPageCacheBusyTimeOutMills": 10000, "waitTimeMillsInSendQueue": 10000, **self.settings,
        })
        self.process = Process("Apache broker", [
            "java", *JAVA_FLAGS, "-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-Duser.home=%s" % self.folder,
            "-Drmq.logback.configurationFile=%s" % (self.folder / "logback.xml"), "-cp", self.classpath,
            "org.apache.rocketmq.broker.BrokerStartup", "-c", config,
        ], self.log, cwd=self.folder)
        address = "127.0.0.1:%d" % self.port
        wait_for("the broker to register", lambda: wire.route(("127.0.0.1", self.namesrv_port), "TBW102")
                 .get(self.name) == address, 90, self.process)

    def stop(self):
        code = self.process.stop()
        if code not in (0, 143):
            raise Trouble("the Apache broker ended with code %d:\n%s" % (code, tail(self.log)))

    def kill(self):
        self.process.kill()


class Apache:
    """Stock name server and broker as one target."""

    def __init__(self, classpath, folder, log, **settings):
        self.namesrv = ApacheNamesrv(classpath, Path(folder) / "namesrv", "%s-namesrv.log" % log)
        self.broker = ApacheBroker(classpath, Path(folder) / "broker", "%s-broker.log" % log, self.namesrv.port, **settings)

    @property
    def address(self):
        return "127.0.0.1:%d" % self.namesrv.port

    @property
    def store(self):
        return self.broker.store

    def start(self):
        self.namesrv.start()
        self.broker.start()

    def stop(self):
        self.broker.stop()
        self.namesrv.stop()

    def kill(self):
        self.broker.kill()
        self.namesrv.stop()

    def restart(self):
        """The broker goes down and comes back; the name server stays, as it would in production."""
        self.broker.stop()
        self.broker.start()


class Ringmq:
    """Our broker. How it is configured and started is known here and nowhere else."""

    def __init__(self, binary, folder, log, shards=1, namesrv_addr=None, name="broker-a", cluster="DefaultCluster", **settings):
        self.binary, self.folder, self.log = Path(binary), Path(folder), "%s-ringmq.log" % log
        self.shards, self.name, self.cluster = shards, name, cluster
        self.port = free_port(*[10 * i for i in range(1, shards)])
        self.external = namesrv_addr
        self.namesrv_port = int(namesrv_addr.rsplit(":", 1)[1]) if namesrv_addr else free_port()
        self.settings = settings
        self.store = self.folder / "store"
        self.process = None

    @property
    def address(self):
        return "127.0.0.1:%d" % self.namesrv_port

    def start(self):
        if not os.access(self.binary, os.X_OK):
            raise Trouble("no broker at %s: run cargo build --release, or name one with --broker-bin" % self.binary)
        self.folder.mkdir(parents=True, exist_ok=True)
        names = {"namesrvAddr": self.external} if self.external else {"namesrvListenPort": self.namesrv_port}
        config = properties(self.folder / "ringmq.conf", {
            "listenPort": self.port, **names, "storePathRootDir": self.store, "shards": self.shards,
            "brokerName": self.name, "brokerClusterName": self.cluster, "brokerIP1": "127.0.0.1",
            "autoCreateTopicEnable": "true", "mappedFileSizeCommitLog": 16 << 20, **self.settings,
        })
        self.process = Process("ringmq", [self.binary, "-c", config], self.log, cwd=self.folder)
        expected = {"127.0.0.1:%d" % (self.port + 10 * i) for i in range(self.shards)}
        wait_for("ringmq to register %d shards" % self.shards, lambda: expected <= set(
            wire.route(("127.0.0.1", self.namesrv_port), "TBW102").values()), 60, self.process)
        for address in expected:
            port = int(address.rsplit(":", 1)[1])
            wait_for("the shard at " + address, lambda: wire.call(("127.0.0.1", port), 105, {"topic": "TBW102"}),
                     10, self.process)

    def stop(self):
        code = self.process.stop()
        if code != 0:
            raise Trouble("ringmq ended with code %d after SIGTERM:\n%s" % (code, tail(self.log)))

    def kill(self):
        self.process.kill()

    def restart(self):
        self.stop()
        self.start()
