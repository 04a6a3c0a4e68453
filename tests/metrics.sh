#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The metrics as Prometheus sees them: promtool finds nothing to say, a real server scrapes a broker with traffic.
# Needs python3 and Debian's package prometheus, which root gets installed; --help tells the options.
set -euo pipefail
command -v python3 >/dev/null || { echo "missing: python3 (Debian: python3)"; exit 1; }
if ! command -v promtool >/dev/null || ! command -v prometheus >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing prometheus"
        (apt-get update && apt-get install -y --no-install-recommends prometheus) >/dev/null
    else
        echo "missing: prometheus and promtool (Debian: apt-get install prometheus)"
        exit 1
    fi
fi
exec python3 "$(dirname "$0")/compat/lib/metrics.py" "$@"
