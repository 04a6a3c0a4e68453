//! Append, visibility, rolling, reading, restart.

use super::*;
use crate::testing::sim_io::OpKind;

#[test]
fn a_message_is_visible_in_the_turn_of_its_write() {
    let mut shop = Shop::open(config(ASYNC));
    let first = shop.send("T", 1, b"a");
    let second = shop.send("T", 1, b"b");
    assert_eq!(
        (first.queue_offset, second.queue_offset),
        (QueueOffset(0), QueueOffset(1))
    );
    assert_eq!(second.at, first.end);
    assert_eq!(shop.store.visible(), first.at);
    shop.turn();
    assert_eq!(shop.store.visible(), second.end);
    let queue = shop.store.queue("T", 1).unwrap();
    let expected = Arrival {
        queue,
        from: QueueOffset(0),
        to: QueueOffset(2),
        appended_us: shop.arrivals[0].appended_us,
    };
    assert_eq!(shop.arrivals, [expected]);
    assert_eq!(shop.bodies("T", 1), ["a", "b"]);
}

#[test]
fn one_turn_makes_one_write() {
    let mut shop = Shop::open(config(ASYNC));
    shop.io.hold(true);
    for body in [b"a", b"b", b"c"] {
        shop.send("T", 0, body);
    }
    let now = shop.io.now();
    shop.store.seal(now, &mut shop.io);
    let writes = shop
        .io
        .pending()
        .iter()
        .filter(|(token, _)| token.kind == tokens::LOG_WRITE);
    assert_eq!(writes.count(), 1);
}

#[test]
fn only_the_finished_prefix_counts() {
    let mut shop = Shop::open(config(ASYNC));
    shop.io.hold(true);
    let mut ends = Vec::new();
    for body in [b"a", b"b", b"c"] {
        ends.push(shop.send("T", 0, body).end);
        let now = shop.io.now();
        shop.store.seal(now, &mut shop.io);
    }
    let write = |shop: &Shop, number: u64| {
        let mut pending = shop.io.pending().iter();
        pending
            .position(|(token, _)| *token == tokens::log_write(number))
            .unwrap()
    };
    let c = write(&shop, 2);
    shop.complete(c);
    assert_eq!(shop.store.written(), PhysicalOffset(0));
    let a = write(&shop, 0);
    shop.complete(a);
    assert_eq!(shop.store.written(), ends[0]);
    let b = write(&shop, 1);
    shop.complete(b);
    assert_eq!(shop.store.written(), ends[2]);
}

#[test]
fn sync_flush_delivers_only_what_is_flushed() {
    let mut shop = Shop::open(config(FlushMode::Sync));
    let sent = shop.send("T", 0, b"a");
    shop.io.hold(true);
    let now = shop.io.now();
    shop.store.seal(now, &mut shop.io);
    shop.complete(0);
    assert_eq!(shop.store.written(), sent.end);
    assert_eq!(shop.store.visible(), PhysicalOffset(0));
    // The second batch is written while the first is flushed; this flush doesn't cover it.
    let second = shop.send("T", 0, b"b");
    shop.store.seal(now, &mut shop.io);
    let write = shop
        .io
        .pending()
        .iter()
        .position(|(token, _)| token.kind == tokens::LOG_WRITE);
    shop.complete(write.unwrap());
    let flush = shop
        .io
        .pending()
        .iter()
        .position(|(token, _)| *token == tokens::LOG_FLUSH);
    shop.complete(flush.unwrap());
    assert_eq!(shop.store.visible(), sent.end);
    assert_eq!(shop.bounds("T", 0), (0, 1));
    let flush = shop
        .io
        .pending()
        .iter()
        .position(|(token, _)| *token == tokens::LOG_FLUSH);
    shop.complete(flush.unwrap());
    assert_eq!(shop.store.visible(), second.end);
}

#[test]
fn async_flush_follows_in_the_background_and_then_all_is_quiet() {
    let mut shop = Shop::open(config(ASYNC));
    assert_eq!(shop.store.next_deadline(), None, "an idle store sleeps");
    let sent = shop.send("T", 0, b"a");
    shop.turn();
    assert_eq!(shop.store.flushed(), PhysicalOffset(0));
    shop.pass_ms(50);
    assert_eq!(shop.store.flushed(), sent.end);
    shop.pass_ms(60_000);
    assert_eq!(shop.store.next_deadline(), None, "an idle store sleeps");
}

#[test]
fn a_segment_ends_with_a_blank_and_records_do_not_cross() {
    let mut shop = Shop::open(config(ASYNC));
    let body = [b'x'; 900];
    let mut places = Vec::new();
    for _ in 0..12 {
        places.push(shop.send("T", 0, &body).at.0);
        shop.turn();
    }
    // 91 + 900 + 1 + 10 = 1002 bytes; four of them leave 88.
    let expected: Vec<u64> = (0..12)
        .map(|n| n / 4 * SEGMENT_BYTES + n % 4 * 1002)
        .collect();
    assert_eq!(places, expected);
    {
        let disk = shop.io.disk();
        let id = disk
            .find("/store/commitlog/00000000000000000000".as_ref())
            .unwrap();
        let contents = disk.contents(id);
        assert_eq!(contents[4008..4016], [0, 0, 0, 88, 0xCB, 0xD4, 0x31, 0x94]);
        assert!(contents[4016..].iter().all(|byte| *byte == 0));
    }
    let read: Vec<Vec<u8>> = (0..12).map(|at| shop.body("T", 0, at)).collect();
    assert!(read.iter().all(|read| *read == body));
}

#[test]
fn a_roll_within_one_turn_makes_a_write_for_each_segment() {
    let mut shop = Shop::open(config(ASYNC));
    shop.send("T", 0, b"x");
    shop.turn();
    for _ in 0..5 {
        shop.send("T", 0, &[b'x'; 900]);
    }
    shop.turn();
    assert_eq!(shop.bounds("T", 0), (0, 6));
    assert_eq!(shop.body("T", 0, 5), [b'x'; 900]);
}

#[test]
fn appends_are_refused_while_the_next_segment_is_not_ready() {
    let mut shop = Shop::open(config(ASYNC));
    shop.io.hold(true);
    for _ in 0..4 {
        shop.send("T", 0, &[b'x'; 900]);
    }
    let busy = shop.try_send("T", 0, &[b'x'; 900]);
    assert!(matches!(busy, Err(AppendError::Busy { .. })), "{busy:?}");
    shop.turn();
    shop.io.hold(false);
    shop.settle();
    shop.send("T", 0, &[b'x'; 900]);
}

#[test]
fn a_full_disk_refuses_only_what_needs_the_next_segment_and_heals() {
    let mut shop = Shop::open(config(ASYNC));
    shop.io.fail(OpKind::Prepare, 0, 2, 28);
    shop.send("T", 0, &[b'x'; 900]);
    shop.turn();
    for _ in 0..3 {
        shop.send("T", 0, &[b'x'; 900]);
    }
    shop.turn();
    let full = shop.try_send("T", 0, &[b'x'; 900]);
    assert!(matches!(full, Err(AppendError::DiskFull(_))), "{full:?}");
    assert!(shop.store.failure().is_none());
    shop.pass_ms(2500);
    shop.send("T", 0, &[b'x'; 900]);
    shop.turn();
    assert_eq!(shop.bounds("T", 0), (0, 5));
}

#[test]
fn records_that_fit_no_segment_are_refused() {
    let mut shop = Shop::open(config(ASYNC));
    let result = shop.try_send("T", 0, &[0; 4000]);
    assert_eq!(
        result,
        Err(AppendError::TooLong {
            bytes: 4102,
            max: 4088
        })
    );
    assert_eq!(shop.bounds("T", 0), (0, 0));
}

#[test]
fn a_batch_is_stored_whole_or_not_at_all() {
    let mut shop = Shop::open(config(ASYNC));
    let queue = shop.store.open_queue("T", 0);
    let body = [b'x'; 900];
    let now = shop.io.now();
    let mut appended = Vec::new();
    let three = [message("T", 0, &body); 3];
    shop.store
        .append_all(queue, &three, now, &mut appended)
        .unwrap();
    assert_eq!(appended.len(), 3);
    // Two more need the next segment, which isn't there yet: none of them is stored.
    let refused = shop.store.append_all(queue, &three, now, &mut appended);
    assert!(
        matches!(refused, Err(AppendError::Busy { .. })),
        "{refused:?}"
    );
    shop.turn();
    assert_eq!(shop.bounds("T", 0), (0, 3));
    shop.store
        .append_all(queue, &three, now, &mut appended)
        .unwrap();
    shop.turn();
    assert_eq!(shop.bounds("T", 0), (0, 6));
    let long = [message("T", 0, &body); 5];
    let refused = shop.store.append_all(queue, &long, now, &mut appended);
    assert!(
        matches!(refused, Err(AppendError::TooLong { .. })),
        "{refused:?}"
    );
}

#[test]
fn prepared_and_rolled_back_messages_have_no_entry() {
    let mut shop = Shop::open(config(ASYNC));
    let queue = shop.store.open_queue("T", 0);
    let now = shop.io.now();
    let kinds = [
        0,
        sys_flag::TRANSACTION_PREPARED,
        sys_flag::TRANSACTION_ROLLBACK,
        sys_flag::TRANSACTION_COMMIT,
    ];
    for sys_flag in kinds {
        let message = NewMessage {
            sys_flag,
            ..message("T", 0, b"a")
        };
        shop.store.append(queue, &message, now).unwrap();
    }
    shop.turn();
    assert_eq!(shop.bounds("T", 0), (0, 2));
    let shop = shop.restart();
    assert_eq!(shop.bounds("T", 0), (0, 2));
}

#[test]
fn store_timestamps_never_decrease() {
    let mut shop = Shop::open(config(ASYNC));
    let mut now = shop.io.now();
    shop.send("T", 0, b"a");
    now.wall_ms -= 10_000;
    shop.io.set_now(now);
    shop.send("T", 0, b"b");
    shop.turn();
    let stamps = |shop: &mut Shop| {
        let read = |at| shop.read("T", 0, at).unwrap();
        [0, 1]
            .map(read)
            .map(|record| crate::protocol::message::store_timestamp_of(&record).unwrap())
    };
    let [first, second] = stamps(&mut shop);
    assert_eq!(first, second);
    let mut shop = shop.restart();
    shop.io.set_now(now);
    shop.send("T", 0, b"c");
    shop.turn();
    let record = shop.read("T", 0, 2).unwrap();
    assert_eq!(
        crate::protocol::message::store_timestamp_of(&record).unwrap(),
        first
    );
}

#[test]
fn one_failed_write_makes_the_log_read_only() {
    let mut shop = Shop::open(config(ASYNC));
    let kept = shop.send("T", 0, b"a");
    shop.turn();
    shop.io.fail(OpKind::Write, 0, 1, 5);
    shop.send("T", 0, b"b");
    shop.turn();
    let failure = shop.store.failure().unwrap().to_owned();
    assert!(
        failure.contains("00000000000000000000") && failure.contains("at 103 "),
        "{failure}"
    );
    assert_eq!(shop.store.visible(), kept.end);
    let refused = shop.try_send("T", 0, b"c");
    assert_eq!(refused, Err(AppendError::ReadOnly(failure)));
    assert_eq!(shop.bodies("T", 0), ["a"]);
    shop.stop();
    assert!(shop.store.is_stopped());
    assert!(
        shop.io.disk().find("/store/abort".as_ref()).is_ok(),
        "the next start recovers"
    );
}

#[test]
fn one_failed_flush_makes_the_log_read_only() {
    let mut shop = Shop::open(config(FlushMode::Sync));
    shop.io.fail(OpKind::Flush, 0, 1, 5);
    shop.send("T", 0, b"a");
    shop.turn();
    assert!(shop.store.failure().unwrap().contains("flush of"));
    assert_eq!(shop.store.visible(), PhysicalOffset(0));
    shop.pass_ms(60_000);
    assert_eq!(
        shop.store.visible(),
        PhysicalOffset(0),
        "it is never repeated into a success"
    );
}

#[test]
fn everything_is_there_after_an_orderly_restart() {
    let mut shop = Shop::open(config(ASYNC));
    for n in 0..40 {
        shop.send(["A", "B"][n % 2], n as u32 % 3, format!("{n}").as_bytes());
        shop.turn();
    }
    let mut shop = shop.restart();
    assert!(shop.recovered.clean);
    assert_eq!(shop.recovered.scanned_messages, 0);
    assert_eq!(shop.recovered.queues, 6);
    assert_eq!(
        shop.bodies("A", 0),
        ["0", "6", "12", "18", "24", "30", "36"]
    );
    assert_eq!(
        shop.bodies("B", 1),
        ["1", "7", "13", "19", "25", "31", "37"]
    );
    let sent = shop.send("A", 0, b"more");
    assert_eq!(sent.queue_offset, QueueOffset(7));
    shop.turn();
    assert_eq!(shop.bodies("A", 0).last().unwrap(), "more");
}

/// A segment is a gigabyte, and a start that clears the rest of it takes a while.
#[test]
fn a_start_after_an_orderly_stop_clears_nothing() {
    let (empty, mut used) = (Shop::open(config(ASYNC)), Shop::open(config(ASYNC)));
    used.send("T", 0, b"a");
    used.turn();
    let started = empty.restart().io.effects();
    assert_eq!(
        used.restart().io.effects(),
        started,
        "the files that say that a process is at work"
    );
    let crashed = Shop::open(config(ASYNC));
    let crashed = Shop::reopen(crashed.io.disk().clone(), config(ASYNC));
    assert!(
        crashed.io.effects() > started,
        "what lies behind a crash's end is cleared"
    );
}

#[test]
fn everything_is_there_after_a_kill() {
    let mut shop = Shop::open(config(ASYNC));
    for n in 0..40 {
        shop.send("T", 0, format!("{n}").as_bytes());
        shop.turn();
    }
    let expected: Vec<String> = (0..40).map(|n| n.to_string()).collect();
    assert_eq!(shop.bodies("T", 0), expected);
    let disk = shop.io.disk().clone();
    let mut shop = Shop::reopen(disk, config(ASYNC));
    assert!(!shop.recovered.clean);
    assert_eq!(shop.recovered.scanned_messages, 40);
    assert_eq!(shop.bodies("T", 0), expected);
}

#[test]
fn a_record_that_belongs_elsewhere_ends_the_log() {
    let mut shop = Shop::open(config(ASYNC));
    shop.send("T", 0, b"first");
    let last = shop.send("T", 0, b"other");
    shop.turn();
    let mut disk = shop.io.disk().clone();
    let log = disk
        .find("/store/commitlog/00000000000000000000".as_ref())
        .unwrap();
    // Sound in itself, with the next offset of its queue, but written for another place.
    let bytes = last.end.bytes_since(last.at) as usize;
    let mut copy = disk.contents(log)[last.at.0 as usize..][..bytes].to_vec();
    copy[27] = 2;
    disk.write(log, last.end.0, &copy);
    let mut shop = Shop::reopen(disk, config(ASYNC));
    assert_eq!(shop.bodies("T", 0), ["first", "other"]);
    assert_eq!(shop.recovered.end, last.end);
    assert_eq!(shop.recovered.cut_bytes, bytes as u64);
}

#[test]
fn a_stop_does_not_wait_for_the_next_segment() {
    let mut shop = Shop::open(config(ASYNC));
    shop.send("T", 0, b"a");
    shop.io.hold(true);
    let now = shop.io.now();
    shop.store.seal(now, &mut shop.io);
    shop.store.begin_stop(now, &mut shop.io);
    let is_prepare = |(token, _): &(crate::io::Token, crate::io::Op)| *token == tokens::LOG_PREPARE;
    while let Some(index) = shop.io.pending().iter().position(|op| !is_prepare(op)) {
        shop.complete(index);
    }
    assert!(shop.store.is_stopped());
    assert_eq!(shop.io.pending().len(), 1, "the segment");
    shop.io.hold(false);
    shop.settle();
    let disk = shop.io.disk().clone();
    let mut shop = Shop::reopen(disk, config(ASYNC));
    assert!(shop.recovered.clean);
    assert_eq!(shop.bodies("T", 0), ["a"]);
}

#[test]
fn entries_that_find_no_disk_refuse_appends_in_the_end() {
    let mut shop = Shop::open(config(ASYNC));
    shop.store.table = QueueTable::with_limit(4);
    shop.io.fail(OpKind::Prepare, 1, u64::MAX, 28);
    let mut sent = 0;
    let refused = loop {
        match shop.try_send("T", 0, b"a") {
            Ok(_) => sent += 1,
            Err(error) => break error,
        }
        shop.turn();
        shop.pass_ms(600);
    };
    assert!(sent <= 10, "{sent}");
    assert!(matches!(refused, AppendError::DiskFull(_)), "{refused:?}");
    shop.io.heal();
    shop.pass_ms(5000);
    shop.send("T", 0, b"b");
}
