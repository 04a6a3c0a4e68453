#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a message costs the broker: processor time, context switches, faults, system calls by name.
source "$(dirname "$0")/lib.sh"
options "usage: perf/stat.sh [--seconds N]      10 seconds for each of two measurements" "$@"

need_perf
need cargo "https://rustup.rs"
need curl "Debian: curl"
need jq "Debian: jq"
need taskset "Debian: util-linux"
by_name=
if command -v perf >/dev/null && timeout 20 perf trace -s -- true >/dev/null 2>&1; then
    by_name="perf trace"
else
    need strace "Debian: strace; perf trace doesn't work here"
    by_name="strace -c"
fi
needs_met

events=task-clock,context-switches,cpu-migrations,minor-faults,major-faults
if perf stat -e raw_syscalls:sys_enter -- true >/dev/null 2>&1; then
    events+=,raw_syscalls:sys_enter
else
    echo "no tracepoints (is /sys/kernel/tracing mounted and readable?): system calls by $by_name only"
fi
if has_hardware_counters; then
    events+=,cycles,instructions,cache-misses,branch-misses
else
    echo "this machine has no hardware counters: no cycles, instructions, misses (perf/instructions.sh counts" \
        "instructions without)"
fi
load_needs
start_broker
start_load $((2 * seconds + 40))

counted "$events" "$work/stat"
describe_machine
echo
echo "$sent messages in $seconds s, of the broker's process:"
per_message "$work/stat"

# The second measurement slows the broker down, so the first one doesn't see it.
before=$(messages)
if [ "$by_name" = "perf trace" ]; then
    timeout --kill-after=5 $((seconds + 20)) perf trace -s -p "$broker" -o "$work/trace" -- sleep "$seconds" \
        >"$work/trace.log" 2>&1 || { cat "$work/trace.log" >&2; fail "perf trace failed"; }
else
    # 124: the bound is how it ends.
    timeout --signal=INT --kill-after=5 "$seconds" strace -c -f -U name,calls,errors -p "$broker" -o "$work/trace" \
        >"$work/trace.log" 2>&1 || [ $? = 124 ] || { cat "$work/trace.log" >&2; fail "strace failed"; }
fi
sent=$(($(messages) - before))
check_load
[ "$sent" -gt 0 ] || fail "no message went through the broker"
echo
echo "$sent messages with $by_name watching, system calls by name:"
# Lines "name calls …" of both tools; perf trace has them once a thread.
awk -v sent="$sent" '
    $1 ~ /^[a-z_0-9]+$/ && $2 ~ /^[0-9]+$/ && $1 != "total" { calls[$1] += $2 }
    END { for (name in calls) printf "  %-38s %14d %12.4f a message\n", name, calls[name], calls[name] / sent }' \
    "$work/trace" | sort -k2,2nr
