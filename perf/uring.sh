#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the broker's ring does for a message: its own counters, the ring's heads and tails, io_uring's tracepoints.
source "$(dirname "$0")/lib.sh"
options "usage: perf/uring.sh [--seconds N]      10 seconds" "$@"

need_perf
need cargo "https://rustup.rs"
need curl "Debian: curl"
need jq "Debian: jq"
need taskset "Debian: util-linux"
needs_met

events=$(perf list tracepoint 2>/dev/null | awk '$1 ~ /^io_uring:/ || $1 == "syscalls:sys_enter_io_uring_enter" { print $1 }' |
    paste -sd,)
[ -n "$events" ] || echo "no io_uring tracepoints (kernel without them, or /sys/kernel/tracing isn't readable):" \
    "counters and rings only"

counters="turns turns_spurious receives_starved frames_received log_writes log_flushes holds_woken messages_in messages_out"
# Name and value of the counters, then of every ring of the process: entries taken by the kernel, completions.
snapshot() {
    local name number ring
    metrics >"$work/metrics" || fail "the broker doesn't answer /metrics"
    for name in $counters; do
        echo "$name $(sum_of "ringmq_${name}_total" <"$work/metrics")"
    done
    for ring in "/proc/$broker/fd"/*; do
        [[ $(readlink "$ring") == *io_uring* ]] || continue
        number=${ring##*/}
        awk -v ring="ring $number:" '
            $1 == "SqHead:" { printf "%s_submitted %s\n", ring, $2 }
            $1 == "CqTail:" { printf "%s_completed %s\n", ring, $2 }
            /^CqOverflowList/ { inside = 1; next }
            inside && /user_data/ { overflown++ }
            END { printf "%s_overflown_now %d\n", ring, overflown }' "/proc/$broker/fdinfo/$number" | sed 's/ring \([0-9]*\):/ring_\1/'
    done
}

load_needs
start_broker
start_load $((seconds + 40))
snapshot >"$work/before"
if [ -n "$events" ]; then
    counted "$events" "$work/stat"
else
    counted context-switches "$work/stat"
fi
snapshot >"$work/after"
check_load

describe_machine
echo
echo "counters of /metrics and of the rings (/proc/PID/fdinfo), from a moment before to a moment after the $seconds s:"
# The rings count in 32 bits.
join <(sort "$work/before") <(sort "$work/after") | awk '
    { grown[$1] = ($1 ~ /_now$/) ? $3 : $3 - $2; if (grown[$1] < 0) grown[$1] += 4294967296 }
    END {
        all = grown["messages_in"]
        for (name in grown) printf "  %-38s %14.0f %12.4f a message\n", name, grown[name], grown[name] / all
    }' | sort
if [ -n "$events" ]; then
    echo
    echo "$sent messages in $seconds s, tracepoints of the broker's process:"
    per_message "$work/stat"
fi
