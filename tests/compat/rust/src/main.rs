// SPDX-License-Identifier: Apache-2.0

//! Scenarios of the client `rocketmq-client-rust` against a running broker.
//!
//! Every scenario prints one line `RESULT <scenario> PASS|FAIL|SKIP <detail>`.
//! The exit code is 0 only when nothing failed.

// The types of the client's futures are nested deeper than the default allows.
#![recursion_limit = "512"]

mod kit;
mod run;
mod samples;
mod scenarios;

use rocketmq_client_rust::{ClientRuntime, ClientRuntimeConfig};
use rocketmq_observability::TelemetryRuntimeGuard;
use rocketmq_runtime::RuntimeOwner;

/// The two restart halves need a broker restart between them, so only the runner calls them.
const SCENARIOS: &[(&str, bool)] = &[
    ("send_sync", true),
    ("send_async", true),
    ("send_oneway", true),
    ("send_batch", true),
    ("push_all", true),
    ("push_tag", true),
    ("push_tags", true),
    ("rebalance", true),
    ("restart_consumer", true),
    ("pull", true),
    ("before_restart", false),
    ("after_restart", false),
];

fn main() {
    let options = run::options();
    let owner = RuntimeOwner::new().expect("a runtime");
    let telemetry = TelemetryRuntimeGuard::noop();
    let client_runtime = ClientRuntime::try_new(
        owner.root_context().component("compat"),
        ClientRuntimeConfig::default(),
        telemetry.handle(),
    )
    .expect("a client runtime");

    let code = owner.block_on(run::all(SCENARIOS, &options, async |name, options| {
        let kit = kit::Kit::new(name, options, client_runtime.clone());
        scenarios::run(name, &kit).await
    }));
    std::process::exit(code);
}
