#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Where the broker's time goes: a flame graph of it under load, and the functions with the most samples.
source "$(dirname "$0")/lib.sh"
options "usage: perf/flame.sh [--seconds N] [--out FILE.svg]      10 seconds, ./flame.svg" "$@"
out=${out:-flame.svg}

need_perf
need inferno-collapse-perf "crates.io: cargo install inferno"
need inferno-flamegraph "crates.io: cargo install inferno"
need cargo "https://rustup.rs"
need curl "Debian: curl"
need jq "Debian: jq"
need taskset "Debian: util-linux"
needs_met

if has_hardware_counters; then
    event=cycles
    echo "samples by the hardware counter of cycles"
else
    event=cpu-clock
    echo "this machine has no hardware counters: samples by the software clock, which can't see into the kernel's" \
        "sections without interrupts"
fi
load_needs
start_broker
start_load $((seconds + 30))
before=$(messages)
# The release has no frame pointers: stacks are copied and unwound later.
timeout --kill-after=5 $((seconds + 20)) perf record --quiet -e "$event" -F 499 --call-graph dwarf,16384 \
    -p "$broker" -o "$work/perf.data" -- sleep "$seconds" >"$work/perf.log" 2>&1 ||
    { cat "$work/perf.log" >&2; fail "perf record failed"; }
sent=$(($(messages) - before))
check_load
timeout --kill-after=5 300 perf script --no-inline -i "$work/perf.data" >"$work/script" 2>"$work/perf.log" ||
    { cat "$work/perf.log" >&2; fail "perf script failed"; }
inferno-collapse-perf "$work/script" >"$work/stacks" 2>"$work/inferno.log" ||
    { cat "$work/inferno.log" >&2; fail "the stacks can't be read"; }
# Stacks are weighted by the time or the cycles that a sample stands for; in the script a sample ends with an empty line.
samples=$(grep -c '^$' "$work/script") || fail "no samples: the broker did nothing"
inferno-flamegraph --title "ringmq under load, $event" --subtitle "$sent messages in $seconds s" "$work/stacks" >"$out"

describe_machine
echo "$samples samples over $seconds s and $sent messages; most by function, callees not included:"
awk '
    { all += $NF; count = $NF; sub(/ [0-9]+$/, ""); parts = split($0, frame, ";"); self[frame[parts]] += count }
    END { for (name in self) printf "  %5.1f %%  %s\n", 100 * self[name] / all, name }' "$work/stacks" |
    sort -rn | awk 'NR <= 20'
echo "$out"
