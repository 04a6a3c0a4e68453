#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the Go client into $RINGMQ_COMPAT_CACHE/go (default: tests/compat/.cache/go).
# Needs the Go toolchain; modules come from the module proxy, pinned by go.sum.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${RINGMQ_COMPAT_CACHE:-$here/../.cache}
mkdir -p "$cache/go"
cache=$(cd "$cache" && pwd)

cd "$here"
GOTOOLCHAIN=local GOFLAGS=-mod=readonly go build -trimpath -o "$cache/go/compat-go" .
