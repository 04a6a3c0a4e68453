# SPDX-License-Identifier: Apache-2.0
"""What the suites with a stock broker beside ours share: checks, Apache's tool, the Java client."""

import os
import re

import clients as known
import harness
from harness import CACHE, Trouble, say, tail

CLIENT = "java533"
RESULT = re.compile(r"RESULT (\S+) (PASS|FAIL) ?(.*)$")


class Checks:
    def __init__(self):
        self.rows, self.failed = [], False

    def add(self, target, what, ok, detail=""):
        summary = detail if ok and "\n" not in detail else ""
        self.rows.append("%-22s %-34s %-4s %s" % (target, what, "ok" if ok else "FAIL", summary))
        if not ok:
            self.failed = True
            say("FAIL %s, %s: %s" % (target, what, detail))


def mqadmin(classpath, folder, namesrv, *arguments):
    """What a command of Apache's tool prints; its exit code says little.

    What the client inside logs goes to a file of its own: the tool ends while the client still sends heartbeats
    on the connections that it just opened, and then logs that its own end closed them."""
    log, logged = CACHE / "logs" / "mqadmin.log", CACHE / "logs" / "mqadmin-client.log"
    (folder / "conf").mkdir(exist_ok=True)
    for name in ("logback.xml", "conf/logback_tools.xml"):  # 5.x reads the one, 4.9 does not start without the other
        (folder / name).write_text(harness.log_to_file(logged))
    log.unlink(missing_ok=True)
    logged.unlink(missing_ok=True)
    argv = ["java", *harness.JAVA_FLAGS, "-Xms64m", "-Xmx256m", "-Duser.home=%s" % folder,
            "-Drmq.logback.configurationFile=%s" % (folder / "logback.xml"), "-cp", classpath,
            "org.apache.rocketmq.tools.command.MQAdminStartup", *arguments]
    process = harness.Process("mqadmin", argv, log, cwd=folder,
                              env={**os.environ, "NAMESRV_ADDR": namesrv, "ROCKETMQ_HOME": str(folder)})
    if process.wait(60) is None:
        process.kill()
        raise Trouble("mqadmin %s did not end:\n%s" % (arguments[0], tail(log)))
    return log.read_text(errors="replace")


def prepare(install):
    known.named([CLIENT])[0].prepare(install)


def client(namesrv, run, scenario, **env):
    """One scenario of the Java client: whether it passed, and what it says."""
    java = known.named([CLIENT])[0]
    java.prepare(False)
    home = CACHE / "home" / CLIENT
    home.mkdir(parents=True, exist_ok=True)
    log = CACHE / "logs" / ("peers-%s-%s.log" % (run, scenario))
    log.unlink(missing_ok=True)
    process = harness.Process(CLIENT, [*java.argv(home), "--namesrv", namesrv, "--run", run, "--scenario", scenario],
                              log, cwd=home, env={**os.environ, **java.env(home), **env})
    if process.wait(200) is None:
        process.kill()
    for line in log.read_text(errors="replace").splitlines():
        match = RESULT.search(line)
        if match:
            return match[2] == "PASS", match[3] + ("" if match[2] == "PASS" else "\n" + tail(log))
    return False, "no result\n" + tail(log)
