//! A full disk: sends are refused with the numbers, nothing else stops, and they are taken again by themselves.

use super::*;
use crate::io::Space;
use crate::testing::sim_io::OpKind;

const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

fn used(percent: u64) -> Space {
    Space {
        used: percent * 1000,
        available: (100 - percent) * 1000,
    }
}

fn refusal(shop: &mut Shop) -> String {
    match shop.try_send("T", 0, b"refused") {
        Err(AppendError::DiskFull(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sends_are_refused_from_the_ratio_on_until_there_is_room() {
    let mut shop = Shop::open(config(ASYNC));
    shop.send("T", 0, b"a");
    shop.turn();
    shop.io.set_space(used(90));
    shop.send("T", 0, b"b");
    shop.pass_ms(2000);
    let reason = refusal(&mut shop);
    let told = "90 % of the disk of /store/commitlog are in use (90000 bytes, 10000 are free), \
                the limit is 90 % (diskSpaceWarningLevelRatio)";
    assert_eq!(reason, told);
    assert_eq!(shop.store.disk_full().as_deref(), Some(told));
    assert_eq!(shop.store.failure(), None);
    assert_eq!(shop.bodies("T", 0), ["a", "b"], "reads go on");
    shop.store.delete_topic("T");
    shop.turn();
    assert!(shop.store.removals.is_done(), "deletions go on");

    shop.io.set_space(used(89));
    shop.pass_ms(1000);
    shop.send("T", 0, b"c");
    shop.turn();
    assert_eq!(shop.bodies("T", 0), ["c"]);
    shop.pass_ms(60_000);
    assert_eq!(shop.store.next_deadline(), None, "an idle store sleeps");
}

#[test]
fn a_disk_that_is_full_at_the_start_is_known_before_the_first_send() {
    let mut io = SimIo::new();
    io.set_space(used(99));
    let opened = Shop::try_open(io, config(FlushMode::Sync));
    let mut shop = opened.map_err(|(error, _)| error).unwrap();
    assert!(refusal(&mut shop).starts_with("99 %"));
    shop.io.set_space(used(5));
    shop.pass_ms(1000);
    shop.send("T", 0, b"a");
    shop.turn();
    assert_eq!(shop.bodies("T", 0), ["a"]);
}

#[test]
fn a_write_without_room_is_done_once_there_is_some() {
    for errno in [ENOSPC, EDQUOT] {
        for mode in [ASYNC, FlushMode::Sync] {
            let mut shop = Shop::open(config(mode));
            let before = shop.send("T", 0, b"before");
            shop.turn();
            shop.io.fail(OpKind::Write, 0, 3, errno);
            let stalled = shop.send("T", 0, b"stalled");
            shop.turn();
            assert_eq!(shop.store.visible(), before.end, "not acknowledged");
            let reason = refusal(&mut shop);
            assert!(
                reason.contains("no room to write /store/commitlog/00000000000000000000 at 108"),
                "{reason}"
            );
            assert_eq!(shop.store.failure(), None);
            assert_eq!(shop.bodies("T", 0), ["before"], "reads go on");
            shop.pass_ms(3000);
            assert_eq!(shop.store.visible(), stalled.end);
            assert_eq!(shop.store.disk_full(), None);
            shop.send("T", 0, b"after");
            shop.turn();
            let expected = ["before", "stalled", "after"];
            assert_eq!(shop.bodies("T", 0), expected);
            assert_eq!(shop.restart().bodies("T", 0), expected);
        }
    }
}

#[test]
fn later_writes_do_not_count_while_an_earlier_one_has_no_room() {
    let mut shop = Shop::open(config(ASYNC));
    shop.io.hold(true);
    let now = shop.io.now();
    for body in [b"a", b"b"] {
        shop.send("T", 0, body);
        shop.store.seal(now, &mut shop.io);
    }
    shop.io.fail(OpKind::Write, 0, 1, ENOSPC);
    shop.io.hold(false);
    shop.settle();
    assert_eq!(shop.store.written(), PhysicalOffset(0));
    shop.pass_ms(1000);
    assert_eq!(shop.bodies("T", 0), ["a", "b"]);
}

#[test]
fn nothing_half_written_is_left_by_a_kill_or_a_stop_on_a_full_disk() {
    for stops in [false, true] {
        let mut shop = Shop::open(config(ASYNC));
        shop.send("T", 0, b"kept");
        shop.turn();
        shop.io.fail(OpKind::Write, 0, u64::MAX, ENOSPC);
        shop.send("T", 0, b"lost");
        shop.turn();
        if stops {
            shop.stop();
            assert!(shop.store.is_stopped(), "it doesn't wait for room");
            assert!(shop.io.disk().find("/store/abort".as_ref()).is_ok());
        }
        let disk = shop.io.disk().clone();
        let mut shop = Shop::reopen(disk, config(ASYNC));
        assert_eq!(shop.bodies("T", 0), ["kept"]);
        shop.send("T", 0, b"next");
        shop.turn();
        assert_eq!(shop.bodies("T", 0), ["kept", "next"]);
    }
}

#[test]
fn an_error_after_a_full_disk_is_final() {
    let mut shop = Shop::open(config(ASYNC));
    shop.io.fail(OpKind::Write, 0, 1, ENOSPC);
    shop.io.fail(OpKind::Write, 0, 1, 5);
    shop.send("T", 0, b"a");
    shop.turn();
    shop.pass_ms(1000);
    assert!(shop.store.failure().is_some());
    assert_eq!(shop.store.disk_full(), None);
    let refused = shop.try_send("T", 0, b"b");
    assert!(
        matches!(refused, Err(AppendError::ReadOnly(_))),
        "{refused:?}"
    );
    shop.pass_ms(60_000);
    assert_eq!(shop.store.visible(), PhysicalOffset(0));
}
