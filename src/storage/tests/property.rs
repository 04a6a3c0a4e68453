//! Random histories over several lives of a store: completions in any order, failing operations, kills, power cuts
//! that persist any subset of what was unflushed, orderly stops. After each life, the store is compared with what
//! was sent: everything acknowledged is there once, in order, unchanged; offsets never go back.

use super::model::{Action, Model};
use super::*;
use crate::testing::disk::Fate;
use crate::testing::sim_io::OpKind;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum End {
    Stop,
    Kill { seed: u64 },
    PowerCut { seed: u64 },
}

#[derive(Clone, Debug)]
struct Life {
    actions: Vec<Action>,
    end: End,
}

fn topic() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["A", "B"])
}

fn send() -> impl Strategy<Value = Action> {
    // Few sizes, so that a later record often has exactly the place of one that was lost.
    let bytes = prop::sample::select(vec![10, 10, 10, 450, 900]);
    (topic(), 0..2_u32, bytes).prop_map(|(topic, queue_id, bytes)| Action::Send {
        topic,
        queue_id,
        bytes,
    })
}

fn fault() -> impl Strategy<Value = Action> {
    let kinds = vec![
        OpKind::Write,
        OpKind::Flush,
        OpKind::Prepare,
        OpKind::Replace,
        OpKind::Remove,
    ];
    let errno = prop::sample::select(vec![5, 28]);
    (prop::sample::select(kinds), errno).prop_map(|(kind, errno)| Action::Fail { kind, errno })
}

fn action() -> impl Strategy<Value = Action> {
    let partial =
        (any::<u64>(), 0..8_usize).prop_map(|(seed, steps)| Action::Partial { seed, steps });
    let pass = prop::sample::select(vec![10, 60, 600, 11_000]).prop_map(|ms| Action::Pass { ms });
    prop_oneof![
        12 => send(),
        4 => Just(Action::Turn),
        6 => partial,
        2 => pass,
        1 => topic().prop_map(|topic| Action::Delete { topic }),
        1 => fault(),
    ]
}

fn life() -> impl Strategy<Value = Life> {
    let end = prop_oneof![
        1 => Just(End::Stop),
        3 => any::<u64>().prop_map(|seed| End::Kill { seed }),
        4 => any::<u64>().prop_map(|seed| End::PowerCut { seed }),
    ];
    let actions = prop::collection::vec(action(), 0..40);
    (actions, end).prop_map(|(actions, end)| Life { actions, end })
}

fn fate(random: &mut Random) -> Fate {
    match random.below(4) {
        0 => Fate::Lost,
        1 => Fate::Torn {
            sectors: random.below(3),
        },
        _ => Fate::Kept,
    }
}

/// Ends a life: the disk that it leaves, and what must be on it.
fn end_life(shop: &mut Shop, model: &mut Model, end: &End) -> (Disk, PhysicalOffset) {
    let seed = match end {
        End::Stop => {
            model.perform(shop, &Action::Stop);
            assert!(shop.store.is_stopped(), "{:?}", shop.store);
            return (shop.io.disk().clone(), shop.store.visible());
        }
        End::Kill { seed } | End::PowerCut { seed } => *seed,
    };
    let mut random = Random(seed);
    let (visible, flushed) = (shop.store.visible(), shop.store.flushed());
    // What is in flight happens or not; nobody hears of it.
    while !shop.io.pending().is_empty() {
        let index = random.below(shop.io.pending().len());
        if random.below(2) == 0 {
            shop.io.complete(index, &mut Vec::new());
        } else {
            shop.io.drop_pending(index);
        }
    }
    let disk = shop.io.disk();
    match (end, shop.store.config().flush) {
        (End::PowerCut { .. }, FlushMode::Sync) => (disk.power_cut(|_| fate(&mut random)), visible),
        (End::PowerCut { .. }, FlushMode::Async { .. }) => {
            (disk.power_cut(|_| fate(&mut random)), flushed)
        }
        _ => (disk.clone(), visible),
    }
}

fn check_lives(mode: FlushMode, lives: &[Life]) {
    let mut model = Model::default();
    let mut disk = Disk::new();
    let mut durable = PhysicalOffset(0);
    for (number, life) in lives.iter().enumerate() {
        let mut shop = Shop::reopen(disk, config(mode));
        model.check(&mut shop, durable, &format!("life {number}"));
        for action in &life.actions {
            model.perform(&mut shop, action);
        }
        (disk, durable) = end_life(&mut shop, &mut model, &life.end);
    }
    let mut shop = Shop::reopen(disk, config(mode));
    model.check(&mut shop, durable, "at the end");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_acknowledged_is_lost_with_async_flush(lives in prop::collection::vec(life(), 1..5)) {
        check_lives(ASYNC, &lives);
    }

    #[test]
    fn nothing_acknowledged_is_lost_with_sync_flush(lives in prop::collection::vec(life(), 1..5)) {
        check_lives(FlushMode::Sync, &lives);
    }
}
