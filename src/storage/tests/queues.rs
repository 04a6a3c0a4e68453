//! Consume queues: lazily written, evicted, read cold, derived again, deleted.

use super::*;
use crate::testing::sim_io::OpKind;
use std::path::Path;

/// Little memory: everything visible is soon read from disk.
fn small_memory() -> StoreConfig {
    StoreConfig {
        tail_cache_bytes: 0,
        entry_cache_bytes: 0,
        ..config(ASYNC)
    }
}

fn fill(shop: &mut Shop, count: usize) {
    for n in 0..count {
        shop.send("T", n as u32 % 2, format!("{n}").as_bytes());
        shop.turn();
    }
}

fn expected(queue_id: usize, count: usize) -> Vec<String> {
    (0..count)
        .filter(|n| n % 2 == queue_id)
        .map(|n| n.to_string())
        .collect()
}

fn queue_file(queue_id: u32, number: u64) -> std::path::PathBuf {
    let name = segment::file_name(number * QUEUE_FILE_BYTES);
    Path::new("/store/consumequeue/T")
        .join(queue_id.to_string())
        .join(name)
}

#[test]
fn messages_are_read_from_disk_once_they_left_memory() {
    let mut shop = Shop::open(small_memory());
    fill(&mut shop, 60);
    shop.pass_ms(1000);
    assert_eq!(shop.store.table.entries_in_memory(), 0);
    let queue = shop.store.queue("T", 0).unwrap();
    let missing = shop.store.entry(queue, QueueOffset(3), &Fetched::default());
    let expected_missing = Missing::Entries {
        queue,
        from: QueueOffset(3),
        count: 27,
    };
    assert_eq!(missing, Err(expected_missing));
    assert_eq!(shop.bodies("T", 0), expected(0, 60));
    assert_eq!(shop.bodies("T", 1), expected(1, 60));
}

#[test]
fn neighbouring_records_are_read_at_once() {
    let mut shop = Shop::open(small_memory());
    let places: Vec<Appended> = (0..3).map(|_| shop.send("T", 0, b"abc")).collect();
    shop.turn();
    shop.pass_ms(1000);
    let missing: Vec<Missing> = places
        .iter()
        .rev()
        .map(|appended| Missing::Log {
            at: appended.at,
            bytes: appended.end.bytes_since(appended.at) as u32,
        })
        .collect();
    shop.io.hold(true);
    let done = shop
        .store
        .fetch(1, &missing, Fetched::default(), &mut shop.io);
    assert!(done.is_none());
    assert_eq!(shop.io.pending().len(), 1);
    shop.io.hold(false);
    shop.settle();
    let fetched = shop.done.pop().unwrap().result.unwrap();
    for appended in &places {
        let bytes = appended.end.bytes_since(appended.at) as u32;
        assert!(shop.store.record(appended.at, bytes, &fetched).is_ok());
    }
}

#[test]
fn reads_in_flight_are_bounded_and_the_others_wait() {
    let mut shop = Shop::open(small_memory());
    let sent = shop.send("T", 0, b"abc");
    shop.turn();
    let missing = [Missing::Log {
        at: sent.at,
        bytes: sent.end.bytes_since(sent.at) as u32,
    }];
    shop.io.hold(true);
    for key in 0..100 {
        let done = shop
            .store
            .fetch(key, &missing, Fetched::default(), &mut shop.io);
        assert!(done.is_none());
    }
    assert_eq!(
        shop.io.pending().len(),
        crate::limits::COLD_READS_IN_FLIGHT_MAX
    );
    shop.io.hold(false);
    shop.settle();
    let keys: Vec<u64> = shop.done.iter().map(|done| done.key).collect();
    assert_eq!(keys, (0..100).collect::<Vec<u64>>(), "in order");
}

#[test]
fn a_record_that_is_not_what_its_entry_says_is_not_delivered() {
    let mut shop = Shop::open(small_memory());
    let sent = shop.send("T", 0, b"abc");
    shop.turn();
    shop.pass_ms(1000);
    let bytes = sent.end.bytes_since(sent.at) as u32;
    // Size, magic, physical offset; the last case is an entry with a wrong size.
    for (flipped, asked) in [
        (3, bytes),
        (4, bytes),
        (35, bytes),
        (0, bytes - 1),
        (0, bytes + 1),
    ] {
        let intact = shop.io.disk().clone();
        if asked == bytes {
            let mut disk = shop.io.disk_mut();
            let id = disk
                .find(Path::new("/store/commitlog/00000000000000000000"))
                .unwrap();
            let byte = disk.contents(id)[flipped] ^ 0x10;
            disk.write(id, flipped as u64, &[byte]);
        }
        let missing = [Missing::Log {
            at: sent.at,
            bytes: asked,
        }];
        let done = shop
            .store
            .fetch(1, &missing, Fetched::default(), &mut shop.io);
        shop.settle();
        let done = done.or_else(|| shop.done.pop()).unwrap();
        assert!(done.result.is_err(), "{flipped} {asked}");
        *shop.io.disk_mut() = intact;
    }
    assert_eq!(shop.body("T", 0, 0), b"abc");
}

#[test]
fn a_record_is_found_by_its_place_and_nothing_else_is() {
    for config in [small_memory(), config(ASYNC)] {
        let mut shop = Shop::open(config);
        let sent = shop.send("T", 0, b"abc");
        let long = shop.send("T", 0, &[b'x'; 3000]);
        shop.turn();
        let mut at = |at: u64| {
            let at = PhysicalOffset(at);
            let missing = match shop.store.record_at(at, &Fetched::default()) {
                Ok(record) => return Ok(record.len() as u64),
                Err(missing) => missing,
            };
            let done = shop
                .store
                .fetch(1, &[missing], Fetched::default(), &mut shop.io);
            shop.settle();
            let done = done.or_else(|| shop.done.pop()).unwrap();
            let fetched = done.result?;
            Ok::<_, String>(shop.store.record_at(at, &fetched).unwrap().len() as u64)
        };
        assert_eq!(at(sent.at.0), Ok(sent.end.bytes_since(sent.at)));
        assert_eq!(at(long.at.0), Ok(long.end.bytes_since(long.at)));
        for elsewhere in [1, sent.end.0 - 1, long.at.0 + 4, long.end.0, 1 << 40] {
            assert!(at(elsewhere).is_err(), "{elsewhere}");
        }
    }
}

#[test]
fn failing_queue_writes_keep_entries_in_memory_and_are_tried_again() {
    let mut shop = Shop::open(small_memory());
    // The first write is the log's.
    shop.io.fail(OpKind::Write, 1, 3, 28);
    shop.send("T", 0, b"a");
    shop.turn();
    assert!(
        shop.store
            .last_background_error()
            .unwrap()
            .contains("queue T 0")
    );
    assert_eq!(shop.store.failure(), None);
    assert_eq!(shop.store.table.entries_in_memory(), 1);
    assert_eq!(shop.bodies("T", 0), ["a"]);
    shop.pass_ms(5000);
    assert_eq!(shop.store.table.entries_in_memory(), 0);
    assert_eq!(shop.bodies("T", 0), ["a"]);
}

#[test]
fn a_failed_queue_flush_ends_checkpoints_and_the_next_start_derives_the_queues() {
    let mut shop = Shop::open(config(ASYNC));
    fill(&mut shop, 30);
    shop.pass_ms(200);
    shop.io.fail(OpKind::Flush, 0, 1, 5);
    shop.pass_ms(30_000);
    assert_eq!(shop.store.failure(), None, "the log is sound");
    fill(&mut shop, 2);
    shop.stop();
    assert!(shop.store.is_stopped());
    let disk = shop.io.disk().clone();
    let mut shop = Shop::reopen(disk, config(ASYNC));
    assert!(!shop.recovered.clean);
    assert_eq!(shop.recovered.scanned_messages, 32);
    assert_eq!(shop.bounds("T", 0), (0, 16));
    assert_eq!(shop.bodies("T", 0)[..15], expected(0, 30));
}

/// A store with 60 messages in two queues of three files each, stopped in order.
fn stopped() -> Disk {
    let mut shop = Shop::open(config(ASYNC));
    fill(&mut shop, 60);
    shop.stop();
    assert!(shop.store.is_stopped());
    shop.io.disk().clone()
}

#[test]
fn damaged_queue_files_are_derived_from_the_log() {
    type Damage = fn(&mut Disk);
    let damages: [(&str, Damage); 7] = [
        ("no directory at all", |disk| {
            disk.remove_directory(Path::new("/store/consumequeue"))
        }),
        ("one queue missing", |disk| {
            disk.remove_directory(Path::new("/store/consumequeue/T/0"))
        }),
        ("first file missing", |disk| disk.remove(&queue_file(0, 0))),
        ("file in the middle missing", |disk| {
            disk.remove(&queue_file(0, 1))
        }),
        ("last file missing", |disk| disk.remove(&queue_file(0, 2))),
        ("last file empty", |disk| {
            disk.replace(&queue_file(0, 2), &[]).unwrap()
        }),
        ("short file", |disk| {
            disk.replace(&queue_file(0, 1), &[1; 100]).unwrap()
        }),
    ];
    for (name, damage) in damages {
        for is_clean in [true, false] {
            let mut disk = stopped();
            damage(&mut disk);
            if !is_clean {
                disk.replace(Path::new("/store/abort"), &[]).unwrap();
            }
            let mut shop = Shop::reopen(disk, config(ASYNC));
            assert_eq!(shop.bodies("T", 0), expected(0, 60), "{name}");
            assert_eq!(shop.bodies("T", 1), expected(1, 60), "{name}");
            let mut shop = shop.restart();
            assert_eq!(shop.bodies("T", 0), expected(0, 60), "{name}");
            assert_eq!(shop.recovered.scanned_messages, 0, "{name}");
        }
    }
}

#[test]
fn a_zeroed_or_foreign_entry_at_the_ends_is_found_after_a_crash() {
    for offset in [0, 29] {
        for entry in [[0; 20], [0x11; 20]] {
            let mut disk = stopped();
            disk.replace(Path::new("/store/abort"), &[]).unwrap();
            let id = disk.find(&queue_file(0, offset / 10)).unwrap();
            disk.write(id, offset % 10 * 20, &entry);
            let mut shop = Shop::reopen(disk, config(ASYNC));
            assert_eq!(shop.bodies("T", 0), expected(0, 60), "{offset} {entry:?}");
        }
    }
}

#[test]
fn a_damaged_entry_between_others_is_an_error_and_hides_none_of_them() {
    for entry in [[0; 20], [0x11; 20]] {
        let mut disk = stopped();
        let id = disk.find(&queue_file(0, 0)).unwrap();
        disk.write(id, 5 * 20, &entry);
        let mut shop = Shop::reopen(disk, config(ASYNC));
        assert!(shop.read("T", 0, 5).is_err());
        for at in (0..30).filter(|at| *at != 5) {
            assert_eq!(shop.body("T", 0, at), (2 * at).to_string().into_bytes());
        }
    }
}

#[test]
fn a_deleted_topic_starts_again_at_zero_and_stays_deleted_after_a_kill() {
    let mut shop = Shop::open(config(ASYNC));
    fill(&mut shop, 30);
    shop.send("U", 0, b"kept");
    shop.turn();
    shop.store.delete_topic("T");
    assert_eq!(shop.store.queue("T", 0), None);
    // The topic is made again before its old files are gone.
    let sent = shop.send("T", 0, b"new");
    assert_eq!(sent.queue_offset, QueueOffset(0));
    shop.turn();
    assert!(
        !shop
            .io
            .disk()
            .is_directory(Path::new("/store/consumequeue/T/1"))
    );
    let killed = shop.io.disk().clone();
    for shop in [Shop::reopen(killed, config(ASYNC)), shop.restart()] {
        let mut shop = shop;
        assert_eq!(shop.bodies("T", 0), ["new"]);
        assert_eq!(shop.store.queue("T", 1), None);
        assert_eq!(shop.bodies("U", 0), ["kept"]);
    }
}

#[test]
fn a_deleted_topic_stays_deleted_when_its_queues_are_derived_from_the_whole_log() {
    let mut shop = Shop::open(config(ASYNC));
    fill(&mut shop, 30);
    shop.store.delete_topic("T");
    shop.turn();
    shop.send("T", 0, b"new");
    shop.turn();
    shop.stop();
    let mut disk = shop.io.disk().clone();
    disk.remove_directory(Path::new("/store/consumequeue"));
    let mut shop = Shop::reopen(disk, config(ASYNC));
    assert_eq!(shop.bodies("T", 0), ["new"]);
    assert_eq!(shop.store.queue("T", 1), None);
}

#[test]
fn a_deletion_interrupted_before_its_files_were_removed_is_finished_at_the_start() {
    let mut shop = Shop::open(config(ASYNC));
    fill(&mut shop, 30);
    shop.pass_ms(20_000);
    shop.store.delete_topic("T");
    shop.io.fail(OpKind::Remove, 0, 1, 5);
    shop.turn();
    assert!(shop.io.disk().find(&queue_file(0, 0)).is_ok());
    let disk = shop.io.disk().clone();
    let shop = Shop::reopen(disk, config(ASYNC));
    assert_eq!(shop.store.queues(), []);
    assert!(shop.io.disk().find(&queue_file(0, 0)).is_err());
}

#[test]
fn queues_whose_first_records_are_gone_begin_with_the_first_that_exists() {
    let mut disk = stopped();
    // 60 messages of 104 or 105 bytes: the first segment holds 39 of them.
    disk.remove(Path::new("/store/commitlog/00000000000000000000"));
    let mut shop = Shop::reopen(disk.clone(), config(ASYNC));
    let (min, max) = shop.bounds("T", 0);
    assert!(min > 0 && max == 30, "{min} {max}");
    assert_eq!(shop.bodies("T", 0), expected(0, 60)[min as usize..]);
    // Derived from what is left of the log, they begin at the same offset, behind blanks.
    disk.remove_directory(Path::new("/store/consumequeue"));
    let mut derived = Shop::reopen(disk, config(ASYNC));
    assert_eq!(derived.bounds("T", 0), (min, max));
    assert_eq!(derived.bodies("T", 0), expected(0, 60)[min as usize..]);
    let mut derived = derived.restart();
    assert_eq!(derived.bounds("T", 0), (min, max));
    derived.send("T", 0, b"more");
    derived.turn();
    assert_eq!(derived.bounds("T", 0), (min, max + 1));
}

#[test]
fn a_lost_log_is_not_silently_begun_again() {
    let mut disk = stopped();
    disk.remove_directory(Path::new("/store/commitlog"));
    let Err((error, _)) = Shop::try_open(SimIo::with_disk(disk.clone()), config(ASYNC)) else {
        panic!("opened");
    };
    assert!(
        error.to_string().contains("remove the file checkpoint"),
        "{error}"
    );
    disk.remove(Path::new("/store/checkpoint"));
    let mut shop = Shop::reopen(disk, config(ASYNC));
    assert_eq!(shop.bounds("T", 0), (30, 30), "offsets never go back");
    let sent = shop.send("T", 0, b"new");
    assert_eq!(sent.queue_offset, QueueOffset(30));
    shop.turn();
    assert_eq!(shop.bodies("T", 0), ["new"]);
}

#[test]
fn corruption_below_the_durable_mark_is_not_cut() {
    let mut disk = stopped();
    disk.replace(Path::new("/store/abort"), &[]).unwrap();
    let checkpoint = disk.find(Path::new("/store/checkpoint")).unwrap();
    let mut found = checkpoint::Checkpoint::decode(disk.contents(checkpoint));
    // As if the crash came after a flush and before the queues were written.
    let marks = found.marks.as_mut().unwrap();
    marks.dispatched = PhysicalOffset(0);
    marks.totals = checkpoint::Totals::default();
    let encoded = found.encode();
    disk.replace(Path::new("/store/checkpoint"), &encoded)
        .unwrap();
    let log = disk
        .find(Path::new("/store/commitlog/00000000000000000000"))
        .unwrap();
    let byte = disk.contents(log)[88] ^ 1;
    disk.write(log, 88, &[byte]);
    let Err((error, _)) = Shop::try_open(SimIo::with_disk(disk), config(ASYNC)) else {
        panic!("opened");
    };
    let text = error.to_string();
    assert!(
        text.contains("00000000000000000000 at offset 0: body CRC"),
        "{text}"
    );
    assert!(text.contains("flushed up to"), "{text}");
}
