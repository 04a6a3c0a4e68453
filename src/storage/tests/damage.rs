//! Changed bytes in a store that was killed: below the durable mark they are told from the tail of a crash.

use super::*;
use crate::testing::sim_io::OpKind;
use std::path::Path;

const LOG: &str = "/store/commitlog/00000000000000000000";
const MARK: &str = "/store/config/ringmq.durableMark";

/// Two flushed batches, then one that is only written; no checkpoint but that of the start.
fn killed() -> (Disk, PhysicalOffset, PhysicalOffset) {
    let mut shop = Shop::open(config(ASYNC));
    for body in [b"one", b"two"] {
        shop.send("T", 0, body);
        shop.turn();
        shop.pass_ms(60);
    }
    let flushed = shop.store.flushed();
    let end = shop.send("T", 0, b"three").end;
    shop.turn();
    assert!(flushed > PhysicalOffset(0) && flushed < end);
    (shop.io.disk().clone(), flushed, end)
}

fn flipped(disk: &Disk, path: &str, at: u64) -> Disk {
    let mut disk = disk.clone();
    let id = disk.find(Path::new(path)).unwrap();
    let byte = disk.contents(id)[at as usize];
    disk.write(id, at, &[byte ^ 0x10]);
    disk.flush(id);
    disk
}

fn open(disk: Disk) -> Result<Shop, OpenError> {
    Shop::try_open(SimIo::with_disk(disk), config(ASYNC)).map_err(|(error, _)| error)
}

#[test]
fn any_changed_byte_below_the_mark_is_refused_and_nothing_is_cut() {
    let (disk, flushed, _) = killed();
    for at in 0..flushed.0 {
        let changed = flipped(&disk, LOG, at);
        let error = match open(changed) {
            Err(error) => error,
            Ok(shop) => panic!("byte {at}: opened, ends at {}", shop.recovered.end),
        };
        let OpenError::Corrupt { path, offset, .. } = &error else {
            panic!("byte {at}: {error}");
        };
        assert_eq!(path, Path::new(LOG), "byte {at}");
        assert!(*offset <= at, "byte {at}: {error}");
        assert!(
            error.to_string().contains(&flushed.0.to_string()),
            "{error}"
        );
    }
    let mut shop = open(disk).unwrap();
    assert_eq!(shop.bodies("T", 0), ["one", "two", "three"]);
}

#[test]
fn without_the_mark_such_damage_goes_unseen() {
    // The flag of the message, which no checksum of RocketMQ's covers.
    let (disk, _, _) = killed();
    let mut changed = flipped(&disk, LOG, 17);
    assert!(open(changed.clone()).is_err());
    changed.remove(Path::new(MARK));
    assert!(open(changed).is_ok());
}

#[test]
fn changed_bytes_above_the_mark_are_the_tail_of_a_crash() {
    let (disk, flushed, _) = killed();
    // Of its body, which RocketMQ's own checksum covers.
    for at in flushed.0 + 88..flushed.0 + 93 {
        let mut shop = open(flipped(&disk, LOG, at)).unwrap_or_else(|e| panic!("byte {at}: {e}"));
        let (_, max) = shop.bounds("T", 0);
        assert_eq!(max, 2, "byte {at}");
        assert_eq!(shop.body("T", 0, 1), b"two", "byte {at}");
    }
}

#[test]
fn a_damaged_mark_harms_nothing() {
    let (disk, _, _) = killed();
    let id = disk.find(Path::new(MARK)).unwrap();
    for at in 0..disk.len(id) {
        let mut shop = open(flipped(&disk, MARK, at)).unwrap_or_else(|e| panic!("byte {at}: {e}"));
        assert_eq!(shop.bodies("T", 0), ["one", "two", "three"], "byte {at}");
    }
}

#[test]
fn sums_hold_over_checkpoints_rolls_restarts_and_stalled_writes() {
    let mut shop = Shop::open(config(FlushMode::Sync));
    for round in 0..12 {
        for _ in 0..3 {
            shop.send("T", 0, &[b'x'; 900]);
            shop.turn();
        }
        if round % 3 == 0 {
            shop.pass_ms(11_000);
        }
        if round == 5 {
            shop = shop.restart();
        }
        shop.send("T", 1, b"y");
        shop.turn();
        let disk = shop.io.disk().clone();
        let again = Shop::reopen(disk.clone(), config(FlushMode::Sync));
        assert_eq!(again.recovered.end, shop.store.visible(), "round {round}");
        // The last byte that was flushed belongs to the properties of the last message.
        let at = shop.store.flushed().0 - 1;
        let (file, at) = (at / SEGMENT_BYTES * SEGMENT_BYTES, at % SEGMENT_BYTES);
        let path = format!("/store/commitlog/{file:020}");
        assert!(open(flipped(&disk, &path, at)).is_err(), "round {round}");
    }
}

#[test]
fn a_mark_that_can_not_be_written_stops_nothing() {
    let mut shop = Shop::open(config(ASYNC));
    shop.send("T", 0, b"a");
    shop.turn();
    shop.io.fail(OpKind::Write, 0, 1, 5);
    shop.pass_ms(60);
    let error = shop.store.last_background_error().unwrap_or_default();
    assert!(error.contains("ringmq.durableMark"), "{error}");
    assert_eq!(shop.store.failure(), None);
    shop.send("T", 0, b"b");
    shop.turn();
    assert_eq!(shop.bodies("T", 0), ["a", "b"]);
}
