// SPDX-License-Identifier: Apache-2.0

// Scenarios of the official Go client against a running broker.
//
// Every scenario prints one line `RESULT <scenario> PASS|FAIL|SKIP <detail>`.
// The exit code is 0 only when nothing failed.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

// The whole program must end within this time, whatever a broker does.
const hardDeadline = 240 * time.Second

// waitLimit bounds each single wait for a condition.
var waitLimit = 30 * time.Second

type scenario struct {
	name  string
	inAll bool
	run   func(t *kit) error
}

// The two restart halves need a broker restart between them, so only the runner calls them.
var scenarios = []scenario{
	{"send_sync", true, sendSync},
	{"send_async", true, sendAsync},
	{"send_oneway", true, sendOneway},
	{"send_batch", true, sendBatch},
	{"push_all", true, pushAll},
	{"push_tag", true, pushTag},
	{"push_tags", true, pushTags},
	{"rebalance", true, rebalance},
	{"restart_consumer", true, restartConsumer},
	{"pull", true, pull},
	{"transaction", true, transaction},
	{"before_restart", false, beforeRestart},
	{"after_restart", false, afterRestart},
}

func main() {
	namesrv := flag.String("namesrv", "", "address of the name server, ip:port")
	run := flag.String("run", "", "id that keeps topics and groups of runs apart")
	which := flag.String("scenario", "all", "all, or the name of one scenario")
	flag.Parse()
	if *namesrv == "" || *run == "" || flag.NArg() != 0 {
		flag.Usage()
		os.Exit(2)
	}
	if os.Getenv("ROCKETMQ_GO_LOG_LEVEL") == "" {
		rlog.SetLogLevel("fatal")
	}
	if secs, err := strconv.Atoi(os.Getenv("RINGMQ_COMPAT_WAIT_SECS")); err == nil {
		waitLimit = time.Duration(secs) * time.Second
	}

	current := "start"
	time.AfterFunc(hardDeadline, func() {
		fmt.Printf("RESULT %s FAIL the program ran into its deadline of %s\n", current, hardDeadline)
		os.Exit(1)
	})

	ran, failed := 0, 0
	for _, s := range scenarios {
		if *which != s.name && !(*which == "all" && s.inAll) {
			continue
		}
		current = s.name
		ran++
		if !runOne(s, *namesrv, *run) {
			failed++
		}
	}
	if ran == 0 {
		fmt.Fprintf(os.Stderr, "no scenario is named %q\n", *which)
		os.Exit(2)
	}
	if failed > 0 {
		os.Exit(1)
	}
}

func runOne(s scenario, namesrv, run string) (ok bool) {
	begin := time.Now()
	t := newKit(s.name, namesrv, run)
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "%v\n%s\n", p, debug.Stack())
			fmt.Printf("RESULT %s FAIL panic: %v\n", s.name, p)
			ok = false
		}
	}()
	err := s.run(t)
	t.close()
	took := time.Since(begin).Round(100 * time.Millisecond)
	if err != nil {
		fmt.Printf("RESULT %s FAIL %v (%s)\n", s.name, err, took)
		return false
	}
	fmt.Printf("RESULT %s PASS %s (%s)\n", s.name, t.detail, took)
	return true
}
