#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ringmq and a stock Apache broker in one cluster; prints a table.
command -v python3 >/dev/null || { echo "missing: python3 (Debian: python3, python3-venv)"; exit 1; }
exec python3 "$(dirname "$0")/lib/cluster.py" "$@"
