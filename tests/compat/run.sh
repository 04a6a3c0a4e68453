#!/usr/bin/env bash
# Drives unmodified RocketMQ clients against ringmq, with one and with two shards, and prints a table.
# Usage: tests/compat/run.sh   (RINGMQ_BIN=path of the binary, RINGMQ_COMPAT_CACHE=folder for downloads and logs)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=${RINGMQ_BIN:-$root/target/release/ringmq}
cache=${RINGMQ_COMPAT_CACHE:-$here/.cache}
mkdir -p "$cache"
for tool in java mvn; do
  command -v $tool >/dev/null || { echo "$tool is missing (Debian: openjdk-17-jdk-headless, maven)"; exit 1; }
done
[ -x "$bin" ] || { echo "no broker at $bin: run cargo build --release"; exit 1; }

build_java() { # version
  local out="$cache/java-$1"
  [ -f "$out/built" ] && return
  rm -rf "$out" "$cache/src-$1"; mkdir -p "$out"; cp -r "$here/java" "$cache/src-$1"
  (cd "$cache/src-$1" && mvn -q -B -Drocketmq.version="$1" clean compile dependency:copy-dependencies -DoutputDirectory="$out/lib") >"$cache/build-$1.log" 2>&1 \
    && cp -r "$cache/src-$1/target/classes" "$out/classes" && touch "$out/built" \
    || { echo "the Java client $1 did not build:"; tail -20 "$cache/build-$1.log"; exit 1; }
}

free_port() { # first to try; a port p with p+10 free as well
  local p=$1
  while (exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || (exec 3<>"/dev/tcp/127.0.0.1/$((p + 10))") 2>/dev/null; do p=$((p + 40)); done
  echo "$p"
}

broker=
start() { # shards; same store and ports at a restart
  "$bin" --shards "$1" --storePathRootDir "$store" --namesrvListenPort "$names" --listenPort "$port" \
    --mappedFileSizeCommitLog 16777216 --zeroFillSegments false >>"$store.log" 2>&1 &
  broker=$!
  for _ in $(seq 300); do
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && (exec 3<>"/dev/tcp/127.0.0.1/$names") 2>/dev/null && return
    kill -0 "$broker" 2>/dev/null || break
    sleep 0.1
  done
  echo "the broker did not start:"; tail -5 "$store.log"; exit 1
}
stop() { kill "$broker" 2>/dev/null; wait "$broker"; }
trap '[ -n "$broker" ] && kill "$broker" 2>/dev/null' EXIT

passed=0; failed=0; skipped=0; rows=()
client() { # shards name scenario command…
  local shards=$1 name=$2 scenario=$3; shift 3
  local log="$cache/$name-$shards-$scenario.log"
  timeout 240 "$@" >"$log" 2>&1
  local lines; lines=$(grep '^RESULT ' "$log")
  [ -n "$lines" ] || lines="RESULT $scenario FAIL no result, see $log"
  while read -r _ what verdict _; do
    rows+=("$(printf '%-10s %-6s %-18s %s' "$name" "$shards" "$what" "$verdict")")
    case $verdict in
      PASS) passed=$((passed + 1)) ;;
      SKIP) skipped=$((skipped + 1)) ;;
      *) failed=$((failed + 1)); echo "--- $name, $shards shards, $what"; tail -25 "$log" ;;
    esac
  done <<<"$lines"
}

build_java 5.3.3; build_java 4.9.8
run_java() { # shards name version scenario [jvm options]
  local shards=$1 name=$2 version=$3 scenario=$4; shift 4
  client "$shards" "$name" "$scenario" java "$@" -Drocketmq.client.logRoot="$cache/logs" \
    -cp "$cache/java-$version/classes:$cache/java-$version/lib/*" Compat "127.0.0.1:$names" "${name}_$shards" "$scenario"
}
clients=("java533 5.3.3" "java498 4.9.8" "java533bin 5.3.3 -Drocketmq.serialize.type=ROCKETMQ")

for shards in 1 2; do
  store=$(mktemp -d)/store; names=$(free_port 46876); port=$(free_port $((names + 20)))
  start "$shards"
  for entry in "${clients[@]}"; do
    set -- $entry; name=$1; version=$2; shift 2
    run_java "$shards" "$name" "$version" all "$@"
    run_java "$shards" "$name" "$version" before_restart "$@"
  done
  stop; start "$shards"
  for entry in "${clients[@]}"; do
    set -- $entry; name=$1; version=$2; shift 2
    run_java "$shards" "$name" "$version" after_restart "$@"
  done
  stop; broker=
done

printf '\n%-10s %-6s %-18s %s\n' client shards scenario result
printf '%s\n' "${rows[@]}"
echo
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
