# SPDX-License-Identifier: Apache-2.0
"""One request of the remoting protocol, enough to learn whether a broker is ready."""

import json
import socket
import struct

ROUTE_OF_TOPIC = 105


class WireError(Exception):
    pass


def call(address, code, ext, timeout=3.0, body=b""):
    """Sends one request on a connection of its own; returns (code, remark, ext fields, body)."""
    with socket.create_connection(address, timeout=timeout) as conn:
        conn.settimeout(timeout)
        return exchange(conn, code, ext, body)


def exchange(conn, code, ext, body=b""):
    """Sends one request with a JSON header; returns (code, remark, ext fields, body)."""
    header = {"code": code, "language": "PYTHON", "version": 474, "opaque": 1, "flag": 0, "extFields": ext}
    head = json.dumps(header).encode()
    conn.sendall(struct.pack(">II", 4 + len(head) + len(body), len(head)) + head + body)
    total, head_len = struct.unpack(">II", _exactly(conn, 8))
    if head_len >> 24 != 0:
        raise WireError("a JSON request was answered with header type %d" % (head_len >> 24))
    head = json.loads(_exactly(conn, head_len))
    body = _exactly(conn, total - 4 - head_len)
    return head["code"], head.get("remark"), head.get("extFields") or {}, body


def route(address, topic):
    """The brokers that a name server knows for a topic, name to address; empty when it knows none."""
    code, remark, _, body = call(address, ROUTE_OF_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"})
    if code == 17:
        return {}
    if code != 0:
        raise WireError("route of %s: code %d, %s" % (topic, code, remark))
    return {b["brokerName"]: next(iter(b["brokerAddrs"].values())) for b in json.loads(body)["brokerDatas"]}


def _exactly(conn, count):
    data = b""
    while len(data) < count:
        more = conn.recv(count - len(data))
        if not more:
            raise WireError("the connection closed after %d of %d bytes" % (len(data), count))
        data += more
    return data
