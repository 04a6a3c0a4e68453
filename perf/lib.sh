# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the scripts in this folder share: prerequisites, the build, one broker with a load on it, and its end.
# Sourced, not run. Every wait is for a condition and has a bound; what ends at exit is what was started here.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work=$(mktemp -d "${TMPDIR:-/tmp}/ringmq-perf.XXXXXX")
started=()
absent=()
seconds=10
out=

fail() {
    echo "$*" >&2
    exit 1
}

# Ends what was started here, last first, and takes the files away.
finish() {
    local status=$? index
    trap - EXIT
    for ((index = ${#started[@]} - 1; index >= 0; index--)); do
        kill "${started[index]}" 2>/dev/null || true
        wait "${started[index]}" 2>/dev/null || true
    done
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# options USAGE ARGUMENTS...: sets $seconds and $out.
options() {
    local usage=$1
    shift
    while [ $# -gt 0 ]; do
        case $1 in
            -h | --help) echo "$usage"; exit 0 ;;
            --seconds) seconds=${2:-}; shift ;;
            --out) out=${2:-}; shift ;;
            *) echo "unknown option $1"; echo "$usage"; exit 2 ;;
        esac >&2
        shift || { echo "$usage" >&2; exit 2; }
    done
    [[ $seconds =~ ^[1-9][0-9]{0,2}$ ]] || fail "--seconds $seconds: wanted is a number from 1 to 999"
}

# need COMMAND WHERE-FROM: notes what is missing; needs_met says all of it at once.
need() {
    command -v "$1" >/dev/null || absent+=("$1 ($2)")
}

needs_met() {
    [ ${#absent[@]} -eq 0 ] && return
    printf 'missing: %s\n' "${absent[@]}" >&2
    exit 1
}

# need_perf: perf, and the right to look at other processes.
need_perf() {
    need perf "Debian: linux-perf"
    local level
    level=$(cat /proc/sys/kernel/perf_event_paranoid 2>/dev/null || echo 4)
    [ "$(id -u)" = 0 ] || [ "$level" -le 1 ] || absent+=("the right to measure: \
kernel.perf_event_paranoid is $level (run as root, or: sysctl kernel.perf_event_paranoid=-1)")
}

# Virtual machines often have no performance counters.
has_hardware_counters() {
    local count
    count=$(perf stat -x, -e cycles -- true 2>&1 >/dev/null | grep ',cycles' | cut -d, -f1) || return 1
    [[ $count =~ ^[0-9]+$ ]]
}

# build BENCH...: builds these and the broker as for a release, or by the profile that $PROFILE names; `executable NAME`
# is where they are.
build() {
    local targets=() bench
    for bench in "$@"; do
        targets+=(--bench "$bench")
    done
    echo "building" >&2
    (cd "$root" && cargo bench --quiet --locked --profile "${PROFILE:-release}" --no-run "${targets[@]}" --message-format=json >"$work/build.json") ||
        fail "it doesn't build"
}

executable() {
    local path
    path=$(jq -rs --arg name "$1" \
        '[.[] | select(.executable != null and .target.name == $name)] | last | .executable // empty' "$work/build.json")
    [ -x "$path" ] || fail "the build has no executable $1"
    echo "$path"
}

# The workload, for so many seconds, on the broker at $port. It is here alone that it is named.
load_needs() {
    build delivery
    ringmq=$(executable ringmq)
    loader=$(executable delivery)
}
load_command() {
    echo "$loader load $port $1"
}

free_port() {
    local candidate attempt
    for ((attempt = 0; attempt < 200; attempt++)); do
        candidate=$((20000 + RANDOM % 12000))
        if ! (exec 3<>"/dev/tcp/127.0.0.1/$candidate") 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "no free port between 20000 and 32000"
}

# on_core N COMMAND...: replaces the shell, so that the process id stays the one that was started.
on_core() {
    local core=$1
    shift
    if [ "$(nproc)" -gt 1 ]; then
        exec taskset -c "$core" "$@"
    fi
    exec "$@"
}

# await SECONDS WHAT COMMAND...: until the command succeeds.
await() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        kill -0 "${started[-1]}" 2>/dev/null || { cat "$work"/*.log >&2; fail "$what: the process ended"; }
        [ $SECONDS -lt $deadline ] || { cat "$work"/*.log >&2; fail "$what: not in time"; }
        # Between two looks; what is waited for is the condition.
        sleep 0.05
    done
}

is_ready() {
    curl -sf --max-time 2 "http://127.0.0.1:$metrics_port/readyz"
}

# Starts a broker with one shard on the first processor: $broker, $port, $metrics_port.
start_broker() {
    port=$(free_port)
    metrics_port=$(free_port)
    local name_server_port
    name_server_port=$(free_port)
    on_core 0 "$ringmq" --shards=1 --storePathRootDir="$work/store" --listenPort="$port" \
        --namesrvListenPort="$name_server_port" --metricsPort="$metrics_port" >"$work/broker.log" 2>&1 &
    broker=$!
    started+=("$broker")
    await 20 "the broker gets ready" is_ready
}

# metric NAME: its sum over all series, now. The name is that of the samples.
metric() {
    metrics | sum_of "$1"
}

metrics() {
    curl -sf --max-time 5 "http://127.0.0.1:$metrics_port/metrics"
}

sum_of() {
    awk -v name="$1" '$1 == name || index($1, name "{") == 1 { sum += $2 } END { printf "%.0f\n", sum }'
}

messages() {
    metric ringmq_messages_in_total
}

is_loaded() {
    [ "$(messages)" -gt 1000 ]
}

# start_load SECONDS: runs beside us; returns once messages flow.
start_load() {
    local command
    read -ra command <<<"$(load_command "$1")"
    on_core 1 timeout --kill-after=5 $(($1 + 30)) "${command[@]}" >"$work/load.log" 2>&1 &
    load=$!
    started+=("$load")
    await 20 "messages flow" is_loaded
}

# The load must have been there for the whole of a measurement.
check_load() {
    kill -0 "$load" 2>/dev/null || { cat "$work/load.log" >&2; fail "the load ended before the measurement did"; }
}

# counted EVENTS FILE: `perf stat` of the broker for $seconds, as lines "count,unit,event,…"; sets $sent.
counted() {
    local before
    before=$(messages)
    timeout --kill-after=5 $((seconds + 20)) perf stat -x, -e "$1" -p "$broker" --timeout $((seconds * 1000)) \
        -o "$2" >"$work/perf.log" 2>&1 || { cat "$work/perf.log" >&2; fail "perf stat failed"; }
    sent=$(($(messages) - before))
    check_load
    [ "$sent" -gt 0 ] || fail "no message went through the broker"
}

# per_message FILE: a table of what was counted.
per_message() {
    awk -F, -v sent="$sent" '
        /^#/ || NF < 3 { next }
        $1 ~ /^</ { printf "  %-38s %14s\n", $3, "not supported"; next }
        $1 == 0 { zeros = zeros (zeros ? ", " : "") $3; next }
        { printf "  %-38s %14.0f %12.4f %sa message\n", $3, $1, $1 / sent, $2 ? $2 " " : "" }
        END { if (zeros) print "  none: " zeros }' "$1"
}

describe_machine() {
    echo "kernel $(uname -r), $(nproc) processors, load $(cut -d' ' -f1-3 /proc/loadavg), \
revision $(git -C "$root" rev-parse --short HEAD 2>/dev/null || echo unknown)"
}
