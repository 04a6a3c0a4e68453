#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the Rust clients into $RINGMQ_COMPAT_CACHE/rust (default: tests/compat/.cache/rust).
# Needs the Rust toolchain; crates are pinned by Cargo.lock. The first build takes minutes.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${RINGMQ_COMPAT_CACHE:-$here/../.cache}/rust
mkdir -p "$target"
target=$(cd "$target" && pwd)

cd "$here"
cargo build --quiet --locked --target-dir "$target"
