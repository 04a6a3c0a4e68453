#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Instructions that a message costs in ringmq's own code: requests decoded, appended, dispatched, holds woken, answers
# encoded. Counted by callgrind on benches/instructions.rs, which is the same work each time on one thread and without
# the kernel (valgrind has no io_uring). Counts everything twice; hash tables have seeds of their own in each process, so
# that counts differ a little. Fails where it is more than one in a thousand.
source "$(dirname "$0")/lib.sh"
usage="usage: perf/instructions.sh [--out FILE]      FILE: the profile of the first workload, for callgrind_annotate"
options "$usage" "$@"

need valgrind "Debian: valgrind"
need callgrind_annotate "Debian: valgrind"
need setarch "Debian: util-linux"
need cargo "https://rustup.rs"
need jq "Debian: jq"
needs_met

count=2000
build instructions
program=$(executable instructions)

# counted_in WORKLOAD MESSAGES: "instructions messages". Without address randomization: addresses are part of the work
# wherever they are hashed or compared.
counted_in() {
    local name=$1 number=$2
    timeout --kill-after=5 300 setarch -R valgrind --tool=callgrind --callgrind-out-file="$work/callgrind.$name.$number" \
        --toggle-collect='*support::Desk::handle*' --toggle-collect='*support::Desk::write*' \
        --toggle-collect='*support::Desk::answer*' \
        "$program" "$name" "$number" >"$work/$name.txt" 2>"$work/valgrind.log" ||
        { cat "$work/valgrind.log" >&2; fail "the workload $name failed under callgrind"; }
    echo "$(awk '$1 == "totals:" || $1 == "summary:" { print $2; exit }' "$work/callgrind.$name.$number")" \
        "$(awk '$1 == "messages" { print $2 }' "$work/$name.txt")"
}

describe_machine
echo
echo "instructions a message, send to delivery, over $count messages of 1 KiB:"
differ=0
for name in json binary tags sql batch; do
    results=()
    for run in 1 2; do
        read -r warm_instructions warm_messages <<<"$(counted_in "$name" 0)"
        read -r instructions number <<<"$(counted_in "$name" "$count")"
        [ "$number" -gt "$warm_messages" ] && [ "$instructions" -gt "$warm_instructions" ] ||
            fail "$name, run $run: nothing was counted"
        results+=("$((instructions - warm_instructions)) $((number - warm_messages))")
    done
    awk -v name="$name" -v first="${results[0]}" -v second="${results[1]}" 'BEGIN {
        split(first, a); split(second, b)
        same = (first == second) ? "the same count twice" : sprintf("the second count differs by %d", b[1] - a[1])
        printf "  %-10s %10.1f      %s\n", name, a[1] / a[2], same
    }'
    awk -v first="${results[0]% *}" -v second="${results[1]% *}" \
        'BEGIN { far = second - first; exit (far < 0 ? -far : far) * 1000 > first }' || differ=1
done
if [ -n "$out" ]; then
    cp "$work/callgrind.json.$count" "$out"
    echo "$out"
fi
[ "$differ" = 0 ] || fail "counts that differ by more than one in a thousand: something is not the same each time (an address, the time)"
