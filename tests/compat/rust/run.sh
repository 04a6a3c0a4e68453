#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh --namesrv IP:PORT --run ID --scenario all|NAME     (after build.sh)
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${RINGMQ_COMPAT_CACHE:-$here/../.cache}/rust/debug/compat-rust" "$@"
