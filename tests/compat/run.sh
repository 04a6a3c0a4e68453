#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Drives unmodified RocketMQ clients against ringmq (or a stock broker) and prints a table; --help tells the options.
command -v python3 >/dev/null || { echo "missing: python3 (Debian: python3, python3-venv)"; exit 1; }
exec python3 "$(dirname "$0")/lib/run.py" "$@"
