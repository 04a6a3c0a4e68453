//! Whole shards on a simulated disk, network and clock.
//!
//! Goal: what the README promises holds through every death of process and machine, every error of the disk and every
//! order of completions. Method: one seed drives a run of several lives (`src/testing/simulation.rs`); after every turn
//! the invariants are checked, after every death what clients were told.
//!
//! `RINGMQ_SIM_SEEDS=n` runs n seeds instead of a few, `RINGMQ_SIM_SEED=s` one of them.

use ringmq::testing::simulation::{Outcome, run};

const SEEDS: u64 = 40;

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|e| panic!("{name}={text}: {e}")),
    )
}

fn replay(seed: u64) -> String {
    format!("replay: RINGMQ_SIM_SEED={seed} cargo test --test simulation no_seed")
}

fn run_well(seed: u64) -> Outcome {
    let ran = std::panic::catch_unwind(|| run(seed));
    let outcome = ran.unwrap_or_else(|_| panic!("seed {seed} panics\n{}", replay(seed)));
    if let Some(finding) = &outcome.finding {
        panic!("seed {seed}: {finding}\n{}", replay(seed));
    }
    outcome
}

#[test]
fn no_seed_finds_anything() {
    if let Some(seed) = number("RINGMQ_SIM_SEED") {
        println!("{:?}", run_well(seed));
        return;
    }
    let count = number("RINGMQ_SIM_SEEDS").unwrap_or(SEEDS);
    let first = number("RINGMQ_SIM_FIRST").unwrap_or(0);
    let outcomes: Vec<Outcome> = (first..first + count).map(run_well).collect();
    let sum = |of: fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>();
    let (acknowledged, delivered) = (sum(|o| o.acknowledged), sum(|o| o.delivered));
    let (cuts, failures) = (sum(|o| o.power_cuts), sum(|o| o.failures));
    println!(
        "seeds {first}..{}: {} turns, {acknowledged} acknowledged, {delivered} delivered, {cuts} power cuts, {failures} failed operations",
        first + count,
        sum(|o| o.turns)
    );
    // Runs in which nothing happens prove nothing.
    assert!(acknowledged > 20 * count && delivered > 20 * count);
    assert!(count < SEEDS || cuts > 0 && failures > 0);
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in [3, 17] {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
    assert_ne!(run(3).trace, run(17).trace);
}
