#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the packages of the Node client into $RINGMQ_COMPAT_CACHE/node
# (default: tests/compat/.cache/node). Needs node and npm; versions are pinned by
# package-lock.json. Does nothing when that lock file is installed already.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${RINGMQ_COMPAT_CACHE:-$here/../.cache}/node
mkdir -p "$target"

if [ -d "$target/node_modules" ] && cmp -s "$here/package-lock.json" "$target/installed-lock.json"; then
    exit 0
fi
cp "$here/package.json" "$here/package-lock.json" "$target/"
(cd "$target" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error)
cp "$here/package-lock.json" "$target/installed-lock.json"
