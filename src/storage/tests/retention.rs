//! Deleting segments: by age, disk and size, what queues look like afterwards, and death in between.

use super::*;
use crate::io::Space;
use crate::testing::sim_io::{Death, OpKind};
use std::path::Path;

const HOUR_MS: u64 = 3_600_000;
/// Messages that fill a bit more than six segments.
const COUNT: usize = 240;

/// Little memory, so that entries and records are read from disk; the clock of the tests begins at 22:13.
fn keeping(retention: RetentionConfig) -> StoreConfig {
    StoreConfig {
        tail_cache_bytes: 0,
        entry_cache_bytes: 0,
        retention,
        ..config(ASYNC)
    }
}

fn two_segments() -> RetentionConfig {
    RetentionConfig {
        log_bytes_max: 2 * SEGMENT_BYTES,
        ..RetentionConfig::default()
    }
}

/// Sends to two queues in turn; bodies are numbers.
fn fill(shop: &mut Shop, from: usize, to: usize) {
    for n in from..to {
        shop.send("T", n as u32 % 2, n.to_string().as_bytes());
        shop.turn();
    }
}

fn percent(used: u64) -> Space {
    Space {
        used,
        available: 100 - used,
    }
}

fn segments(shop: &Shop) -> Vec<String> {
    let disk = shop.io.disk();
    let mut names = disk.list(Path::new("/store/commitlog"));
    names.truncate(shop.store.log.segments.len());
    names
}

fn queue_files(shop: &Shop, queue_id: u32) -> usize {
    let directory = format!("/store/consumequeue/T/{queue_id}");
    shop.io.disk().list(Path::new(&directory)).len()
}

/// Both queues hold exactly what was sent from their starts on, and nothing in front can be read.
fn check(shop: &mut Shop, count: usize) {
    // What is due at once is done, and the next thing is not.
    shop.turn();
    let start = shop.store.log.start();
    for queue_id in [0, 1] {
        let (min, max) = shop.bounds("T", queue_id);
        let expected: Vec<String> = (0..count)
            .filter(|n| n % 2 == queue_id as usize)
            .map(|n| n.to_string())
            .collect();
        assert_eq!(max, expected.len() as u64);
        assert_eq!(shop.bodies("T", queue_id), expected[min as usize..]);
        if min == 0 {
            continue;
        }
        assert!(shop.read("T", queue_id, min - 1).is_err());
        if min < max {
            let record = shop.read("T", queue_id, min).unwrap();
            let Ok(Record::Message(first)) = StoredMessage::decode(&record) else {
                panic!("no message");
            };
            assert!(first.physical_offset >= start);
        }
    }
}

#[test]
fn old_segments_go_at_their_hour_and_queues_begin_behind_them() {
    let retention = RetentionConfig {
        reserved_ms: HOUR_MS,
        hours: 1 << 3,
        utc_offset_s: 3600,
        ..RetentionConfig::default()
    };
    let mut shop = Shop::open(keeping(retention));
    fill(&mut shop, 0, COUNT);
    let before = segments(&shop);
    assert!(before.len() >= 6, "{before:?}");
    // 01:43 here: old enough, not the hour.
    shop.pass_ms(7 * HOUR_MS / 2);
    assert_eq!(segments(&shop), before);
    check(&mut shop, COUNT);
    shop.pass_ms(HOUR_MS / 2);
    assert_eq!(segments(&shop), before[before.len() - 1..]);
    check(&mut shop, COUNT);
    let bounds = [shop.bounds("T", 0), shop.bounds("T", 1)];
    assert!(bounds[0].0 > 100, "{bounds:?}");
    // 120 entries a queue, 10 a file.
    assert_eq!(queue_files(&shop, 0) as u64, 12 - bounds[0].0 / 10);
    let deleted: Vec<Deleted> = std::iter::from_fn(|| shop.store.take_deleted()).collect();
    assert_eq!(deleted.len(), before.len() - 1);
    assert!(deleted.iter().all(|one| one.why == Why::Age));
    let killed = shop.io.disk().clone();
    for mut shop in [Shop::reopen(killed, keeping(retention)), shop.restart()] {
        assert_eq!([shop.bounds("T", 0), shop.bounds("T", 1)], bounds);
        assert_eq!(shop.recovered.scanned_messages, 0);
        fill(&mut shop, COUNT, COUNT + 50);
        check(&mut shop, COUNT + 50);
    }
}

#[test]
fn a_queue_whose_messages_are_all_gone_goes_on_where_it_was() {
    let config = keeping(two_segments());
    let mut shop = Shop::open(config.clone());
    for n in 0..30 {
        shop.send("Old", 0, &[n]);
        shop.turn();
    }
    fill(&mut shop, 0, COUNT);
    shop.pass_ms(60_000);
    assert_eq!(shop.bounds("Old", 0), (30, 30));
    let killed = shop.io.disk().clone();
    for mut shop in [Shop::reopen(killed, config), shop.restart()] {
        assert_eq!(shop.bounds("Old", 0), (30, 30));
        shop.turn();
        let sent = shop.send("Old", 0, b"new");
        assert_eq!(sent.queue_offset, QueueOffset(30));
        shop.turn();
        assert_eq!(shop.bodies("Old", 0), ["new"]);
        let shop = shop.restart();
        assert_eq!(shop.bounds("Old", 0), (30, 31));
    }
}

#[test]
fn size_and_a_full_disk_delete_whatever_the_age_but_never_the_newest() {
    let mut shop = Shop::open(keeping(two_segments()));
    fill(&mut shop, 0, COUNT);
    shop.pass_ms(60_000);
    assert_eq!(shop.store.log.segments.len(), 2);
    check(&mut shop, COUNT);
    for (used, forced, is_deleted) in [(84, 85, false), (89, u64::MAX, false), (85, 85, true)] {
        let retention = RetentionConfig {
            forced_percent: forced,
            ..RetentionConfig::default()
        };
        let mut shop = Shop::open(keeping(retention));
        shop.io.set_space(percent(used));
        fill(&mut shop, 0, COUNT);
        shop.pass_ms(60_000);
        assert_eq!(shop.store.log.segments.len() == 1, is_deleted, "{used}");
        let why = shop.store.take_deleted().map(|deleted| deleted.why);
        assert_eq!(why, is_deleted.then_some(Why::Disk));
        check(&mut shop, COUNT);
    }
}

#[test]
fn a_disk_that_fills_up_does_not_wait_for_the_hour_but_for_the_age() {
    let retention = RetentionConfig {
        reserved_ms: HOUR_MS,
        hours: 0,
        ..RetentionConfig::default()
    };
    let mut shop = Shop::open(keeping(retention));
    shop.io.set_space(percent(75));
    fill(&mut shop, 0, COUNT);
    shop.pass_ms(HOUR_MS - 60_000);
    assert!(shop.store.take_deleted().is_none());
    shop.pass_ms(120_000);
    let why = shop.store.take_deleted().map(|deleted| deleted.why);
    assert_eq!(why, Some(Why::AgeAndDisk));
    assert_eq!(shop.store.log.segments.len(), 1);
}

#[test]
fn segments_go_one_at_a_time() {
    let retention = RetentionConfig {
        pace_ms: 3000,
        ..two_segments()
    };
    let mut shop = Shop::open(keeping(retention));
    fill(&mut shop, 0, COUNT);
    let mut times = Vec::new();
    for second in 0..60 {
        shop.pass_ms(1000);
        while shop.store.take_deleted().is_some() {
            times.push(second);
        }
    }
    assert!(times.len() >= 4, "{times:?}");
    let has_paused = times.windows(2).all(|pair| pair[1] >= pair[0] + 3);
    assert!(has_paused, "{times:?}");
}

#[test]
fn a_segment_that_is_being_read_is_removed_after_the_read() {
    let mut shop = Shop::open(keeping(two_segments()));
    let sent = shop.send("T", 0, b"0");
    shop.turn();
    fill(&mut shop, 1, COUNT);
    let bytes = sent.end.bytes_since(sent.at) as u32;
    let missing = [Missing::Log { at: sent.at, bytes }];
    shop.pass_ms(9_000);
    shop.io.hold(true);
    let done = shop
        .store
        .fetch(5, &missing, Fetched::default(), &mut shop.io);
    assert!(done.is_none());
    // Everything goes on but the read, which is the first that was submitted.
    for _ in 0..200 {
        shop.io.advance_ms(100);
        let now = shop.io.now();
        shop.store.seal(now, &mut shop.io);
        while shop.io.pending().len() > 1 {
            shop.complete(1);
        }
    }
    assert_eq!(shop.store.log.start(), PhysicalOffset(SEGMENT_BYTES));
    assert_eq!(shop.bounds("T", 0).0, 20);
    let front = Path::new("/store/commitlog/00000000000000000000");
    assert!(shop.io.disk().find(front).is_ok(), "it is being read");
    // Asked for again, the request is told to look at its queue once more.
    let again = shop
        .store
        .fetch(6, &missing, Fetched::default(), &mut shop.io);
    assert!(again.is_some_and(|done| done.result.is_ok_and(|fetched| fetched.is_empty())));
    shop.io.hold(false);
    shop.settle();
    let done = shop.done.pop().unwrap();
    assert_eq!(done.key, 5);
    assert!(
        shop.store
            .record(sent.at, bytes, &done.result.unwrap())
            .is_ok()
    );
    shop.pass_ms(10_000);
    assert!(shop.io.disk().find(front).is_err());
    check(&mut shop, COUNT);
}

#[test]
fn what_fails_is_tried_again() {
    for kind in [OpKind::Read, OpKind::Remove] {
        let mut shop = Shop::open(keeping(two_segments()));
        fill(&mut shop, 0, COUNT);
        shop.pass_ms(9_000);
        shop.io.fail(kind, 0, 2, 5);
        shop.pass_ms(15_000);
        let error = shop.store.last_background_error().unwrap_or_default();
        assert!(error.starts_with("retention: "), "{kind:?}: {error}");
        shop.pass_ms(60_000);
        assert_eq!(shop.store.log.segments.len(), 2, "{kind:?}");
        assert_eq!(segments(&shop).len(), 2);
        check(&mut shop, COUNT);
        let mut shop = shop.restart();
        check(&mut shop, COUNT);
    }
}

#[test]
fn a_death_while_segments_are_deleted_leaves_a_store_that_opens() {
    let config = keeping(two_segments());
    let run = |death: Option<Death>| {
        let mut io = SimIo::new();
        if let Some(death) = death {
            io.die(death);
        }
        let Ok(mut shop) = Shop::try_open(io, config.clone()) else {
            return None;
        };
        fill(&mut shop, 0, COUNT);
        let before = shop.io.effects();
        if !shop.io.is_dead() {
            shop.pass_ms(40_000);
        }
        Some((shop, before))
    };
    let (whole, before) = run(None).unwrap();
    assert_eq!(whole.store.log.segments.len(), 2);
    let effects = whole.io.effects();
    assert!(effects > before + 20, "{before} {effects}");
    for after_effects in before..effects {
        let death = Death {
            after_effects,
            torn_bytes: 0,
        };
        let (shop, _) = run(Some(death)).unwrap();
        assert!(shop.io.is_dead());
        let min = shop.bounds("T", 0).0;
        let disk = shop.io.disk().clone();
        let mut shop = Shop::reopen(disk, config.clone());
        // The one being deleted may be there again.
        let again = shop.bounds("T", 0).0;
        assert!(
            again <= min && min - again <= 20,
            "{death:?}: {min} {again}"
        );
        fill(&mut shop, COUNT, COUNT + 3);
        shop.pass_ms(40_000);
        assert_eq!(shop.store.log.segments.len(), 2, "{death:?}");
        check(&mut shop, COUNT + 3);
        let mut shop = shop.restart();
        check(&mut shop, COUNT + 3);
        assert_eq!(shop.recovered.scanned_messages, 0, "{death:?}");
    }
}
