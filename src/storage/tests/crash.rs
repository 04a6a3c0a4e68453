//! Death at every effect on the disk of small histories: kill, and power cut with every subset of what was unflushed.
//! Afterwards everything acknowledged is there, once, in order, unchanged, and the store goes on.

use super::model::{Action, Crashed, Model, run};
use super::*;
use crate::testing::disk::Fate;
use crate::testing::sim_io::Death;

fn send(topic: &'static str, bytes: usize) -> Action {
    Action::Send {
        topic,
        queue_id: 0,
        bytes,
    }
}

/// Rolls, two queues, a flush and a checkpoint, a deletion, an orderly stop.
fn history() -> Vec<Action> {
    let mut history = vec![
        send("A", 5),
        Action::Turn,
        send("A", 900),
        send("B", 700),
        Action::Turn,
    ];
    history.push(Action::Pass { ms: 60 });
    history.extend([send("A", 900), send("B", 900), send("A", 9), Action::Turn]);
    history.push(Action::Pass { ms: 11_000 });
    history.extend([send("B", 9), Action::Turn, Action::Delete { topic: "A" }]);
    history.extend([send("A", 11), send("B", 12), Action::Turn, Action::Stop]);
    history
}

/// Opens what a crash left, compares, goes on, kills and opens once more.
fn check_crash(
    crashed: Crashed,
    disk: Disk,
    durable: PhysicalOffset,
    mode: FlushMode,
    context: &str,
) {
    let mut model = crashed.model;
    let mut shop = Shop::reopen(disk, config(mode));
    model.check(&mut shop, durable, context);
    for action in [send("A", 30), send("B", 40), Action::Turn] {
        model.perform(&mut shop, &action);
    }
    let end = shop.store.visible();
    let disk = shop.io.disk().clone();
    let mut shop = Shop::reopen(disk, config(mode));
    model.check(&mut shop, end, context);
}

const MODES: [FlushMode; 2] = [ASYNC, FlushMode::Sync];

#[test]
fn a_kill_at_any_effect_loses_nothing_acknowledged() {
    for mode in MODES {
        let whole = run(
            Disk::new(),
            Model::default(),
            config(mode),
            &history(),
            None,
        );
        assert!(whole.effects > 40, "{}", whole.effects);
        for after_effects in 0..whole.effects {
            for torn_bytes in [0, 1, 100, 4000] {
                let death = Death {
                    after_effects,
                    torn_bytes,
                };
                let crashed = run(
                    Disk::new(),
                    Model::default(),
                    config(mode),
                    &history(),
                    Some(death),
                );
                let context = format!("{mode:?} {death:?}");
                let (disk, durable) = (crashed.disk.clone(), crashed.acknowledged);
                check_crash(crashed, disk, durable, mode, &context);
            }
        }
    }
}

#[test]
fn a_power_cut_at_any_effect_loses_nothing_flushed() {
    for mode in MODES {
        let whole = run(
            Disk::new(),
            Model::default(),
            config(mode),
            &history(),
            None,
        );
        for after_effects in 0..whole.effects {
            let death = Death {
                after_effects,
                torn_bytes: 0,
            };
            let probe = run(
                Disk::new(),
                Model::default(),
                config(mode),
                &history(),
                Some(death),
            );
            let unflushed = probe.disk.unflushed_writes();
            let fates = [Fate::Kept, Fate::Lost, Fate::Torn { sectors: 1 }];
            let subsets = 3_usize.pow(unflushed.min(5) as u32);
            for subset in 0..subsets {
                // The newest writes take every combination; older ones follow the subset's number.
                let fate = |index: usize| {
                    let from_end = unflushed - 1 - index;
                    let digit = subset / 3_usize.pow(from_end.min(4) as u32);
                    fates[digit % 3]
                };
                let disk = probe.disk.power_cut(fate);
                let crashed = Crashed {
                    disk: Disk::new(),
                    model: probe.model.clone(),
                    ..probe
                };
                let durable = match mode {
                    FlushMode::Sync => probe.acknowledged,
                    FlushMode::Async { .. } => probe.flushed,
                };
                let context = format!("{mode:?} {death:?} subset {subset} of {unflushed} writes");
                check_crash(crashed, disk, durable, mode, &context);
            }
        }
    }
}

#[test]
fn a_second_death_during_recovery_loses_nothing() {
    let mode = ASYNC;
    let whole = run(
        Disk::new(),
        Model::default(),
        config(mode),
        &history(),
        None,
    );
    for after_effects in (5..whole.effects).step_by(3) {
        let death = Death {
            after_effects,
            torn_bytes: 100,
        };
        let crashed = run(
            Disk::new(),
            Model::default(),
            config(mode),
            &history(),
            Some(death),
        );
        let recovery = run(
            crashed.disk.clone(),
            crashed.model.clone(),
            config(mode),
            &[],
            None,
        );
        for second in 0..recovery.effects {
            let second = Death {
                after_effects: second,
                torn_bytes: 7,
            };
            let again = run(
                crashed.disk.clone(),
                crashed.model.clone(),
                config(mode),
                &[],
                Some(second),
            );
            let context = format!("{death:?} then {second:?}");
            let disk = again.disk.clone();
            check_crash(again, disk, crashed.acknowledged, mode, &context);
        }
    }
}
