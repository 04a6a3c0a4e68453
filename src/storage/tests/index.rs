//! The index of keys: over restart, death at every effect, damage, failed writes, and in stores of Apache.

use super::apache::{apache_config, unpack};
use super::*;
use crate::testing::disk::Fate;
use crate::testing::sim_io::{Death, OpKind};
use std::path::{Path, PathBuf};

const APACHE_SIZES: IndexSizes = IndexSizes {
    slots: 1000,
    units: 4000,
};

/// What was sent: its unique key, place and end.
type Sent = Vec<(String, PhysicalOffset, PhysicalOffset)>;

fn send(shop: &mut Shop, number: usize, sent: &mut Sent) {
    let unique = format!("U{number}");
    let properties = format!("KEYS\u{1}k{number} all\u{2}UNIQ_KEY\u{1}{unique}\u{2}");
    let message = NewMessage {
        properties: &properties,
        ..message("T", 0, b"body")
    };
    let queue = shop.store.open_queue("T", 0);
    let now = shop.io.now();
    if let Ok(appended) = shop.store.append(queue, &message, now) {
        sent.push((unique, appended.at, appended.end));
    }
}

type Damage<'a> = &'a dyn Fn(&mut Disk);

fn query(topic: &str, key: &str) -> KeyQuery {
    KeyQuery::new(Store::key_hash(topic, key), 0, u64::MAX, 1000)
}

fn find(shop: &mut Shop, query: KeyQuery) -> Vec<PhysicalOffset> {
    let missing = Missing::Keys(query);
    let have = Fetched::default();
    let done = shop.store.fetch(7, &[missing], have, &mut shop.io);
    let done = done.unwrap_or_else(|| {
        shop.settle();
        shop.done.pop().expect("the search ended")
    });
    let fetched = done.result.unwrap();
    shop.store.find_key(query, &fetched).unwrap().to_vec()
}

/// All that ends at or below `durable` is found by each of its keys.
fn check(shop: &mut Shop, sent: &Sent, durable: PhysicalOffset, context: &str) {
    let all = find(shop, query("T", "all"));
    assert!(
        all.is_sorted_by(|a, b| a > b),
        "{context}: newest first, each once: {all:?}"
    );
    for (unique, at, _) in sent.iter().filter(|(.., end)| *end <= durable) {
        let key = unique.replace('U', "k");
        for key in [unique, &key] {
            assert!(find(shop, query("T", key)).contains(at), "{context}: {key}");
        }
        assert!(all.contains(at), "{context}: {unique} by the common key");
    }
}

/// Sends with checkpoints in between and an orderly stop: six files.
fn run(disk: Disk, death: Option<Death>) -> (Shop, Sent) {
    let mut io = SimIo::with_disk(disk);
    if let Some(death) = death {
        io.die(death);
    }
    let mut sent = Sent::new();
    let mut shop = match Shop::try_open(io, config(ASYNC)) {
        Ok(shop) => shop,
        // Died while it opened: what is left is a disk.
        Err((_, io)) => {
            let disk = io.disk().clone();
            return (Shop::reopen(disk, config(ASYNC)), sent);
        }
    };
    for number in 0..70 {
        send(&mut shop, number, &mut sent);
        if number % 3 == 0 {
            shop.turn();
        }
        if number % 32 == 31 {
            shop.pass_ms(11_000);
        }
        if shop.io.is_dead() {
            return (shop, sent);
        }
    }
    shop.turn();
    shop.stop();
    (shop, sent)
}

fn index_files(disk: &Disk) -> Vec<PathBuf> {
    let is_index = |path: &Path| path.starts_with("/store/index");
    let files = disk.files().map(|(path, _)| path.to_path_buf());
    files.filter(|path| is_index(path)).collect()
}

#[test]
fn keys_are_found_before_and_after_a_restart() {
    let (shop, sent) = run(Disk::new(), None);
    assert!(shop.store.is_stopped());
    let disk = shop.io.disk().clone();
    assert_eq!(index_files(&disk).len(), 6, "{:?}", index_files(&disk));
    let mut shop = Shop::reopen(disk, config(ASYNC));
    let end = shop.store.visible();
    check(&mut shop, &sent, end, "after an orderly stop");
    let mut sent = sent;
    for number in 70..100 {
        send(&mut shop, number, &mut sent);
    }
    assert_eq!(find(&mut shop, query("T", "k99")), [], "not visible yet");
    shop.turn();
    let end = shop.store.visible();
    check(&mut shop, &sent, end, "in memory");
    assert_eq!(find(&mut shop, query("U", "k99")), [], "another topic");
    let narrow = KeyQuery {
        max: 3,
        ..query("T", "all")
    };
    assert_eq!(find(&mut shop, narrow).len(), 3);
    let past = KeyQuery {
        end: 1,
        ..query("T", "all")
    };
    assert_eq!(find(&mut shop, past), []);
}

#[test]
fn a_kill_at_any_effect_loses_no_key() {
    let (whole, _) = run(Disk::new(), None);
    let effects = whole.io.effects();
    assert!(effects > 80, "{effects}");
    for after_effects in 0..effects {
        let death = Death {
            after_effects,
            torn_bytes: 100,
        };
        let (crashed, mut sent) = run(Disk::new(), Some(death));
        let context = format!("{death:?}");
        let durable = crashed.store.visible();
        let mut shop = Shop::reopen(crashed.io.disk().clone(), config(ASYNC));
        check(&mut shop, &sent, durable, &context);
        // It goes on behind what the crash left.
        sent.retain(|(.., end)| *end <= durable);
        for number in 200..220 {
            send(&mut shop, number, &mut sent);
        }
        shop.turn();
        let mut shop = shop.restart();
        let end = shop.store.visible();
        check(&mut shop, &sent, end, &format!("{context}, and on"));
    }
}

#[test]
fn a_power_cut_loses_no_key_of_what_was_flushed() {
    let (whole, _) = run(Disk::new(), None);
    for after_effects in 0..whole.io.effects() {
        let death = Death {
            after_effects,
            torn_bytes: 0,
        };
        let (crashed, sent) = run(Disk::new(), Some(death));
        let flushed = crashed.store.flushed();
        for seed in 0..4 {
            let mut random = Random(seed);
            let fates = [Fate::Kept, Fate::Lost, Fate::Torn { sectors: 1 }];
            let disk = crashed.io.disk().power_cut(|_| fates[random.below(3)]);
            let mut shop = Shop::reopen(disk, config(ASYNC));
            check(&mut shop, &sent, flushed, &format!("{death:?} seed {seed}"));
        }
    }
}

/// A file that is short, removed with its folder, of other sizes, or contradicts itself: derived from the log.
#[test]
fn damaged_files_are_derived_again() {
    let (shop, sent) = run(Disk::new(), None);
    let disk = shop.io.disk().clone();
    let files = index_files(&disk);
    let damage: [(&str, Damage<'_>); 4] = [
        ("short", &|disk| {
            let id = disk.find(&files[1]).unwrap();
            disk.set_len(id, 100);
        }),
        ("no folder", &|disk| {
            disk.remove_directory(Path::new("/store/index"))
        }),
        ("header", &|disk| {
            let id = disk.find(&files[2]).unwrap();
            disk.write(id, 16, &[0xff; 8]);
        }),
        ("slots of the last", &|disk| {
            let id = disk.find(&files[5]).unwrap();
            disk.write(id, 40, &[0x7f; 8]);
        }),
    ];
    for (what, damage) in damage {
        let mut damaged = disk.clone();
        damage(&mut damaged);
        let mut shop = Shop::reopen(damaged, config(ASYNC));
        let end = shop.store.visible();
        check(&mut shop, &sent, end, what);
    }
    let other = StoreConfig {
        index: IndexConfig {
            is_enabled: true,
            sizes: IndexSizes {
                slots: 11,
                units: 60,
            },
        },
        ..config(ASYNC)
    };
    let mut shop = Shop::reopen(disk.clone(), other);
    let end = shop.store.visible();
    check(&mut shop, &sent, end, "other sizes");
}

/// What is sent while the index is off is found once it is on again.
#[test]
fn an_index_that_was_off_is_completed() {
    let (shop, mut sent) = run(Disk::new(), None);
    let off = StoreConfig {
        index: IndexConfig::default(),
        ..config(ASYNC)
    };
    let mut shop = Shop::reopen(shop.io.disk().clone(), off);
    send(&mut shop, 300, &mut sent);
    shop.turn();
    assert_eq!(find(&mut shop, query("T", "k300")), []);
    shop.stop();
    let mut shop = Shop::reopen(shop.io.disk().clone(), config(ASYNC));
    let end = shop.store.visible();
    check(&mut shop, &sent, end, "on again");
}

#[test]
fn failed_writes_are_tried_again_and_failed_flushes_end_the_index() {
    for kind in [OpKind::Write, OpKind::Flush] {
        let (shop, mut sent) = run(Disk::new(), None);
        let mut shop = Shop::reopen(shop.io.disk().clone(), config(ASYNC));
        send(&mut shop, 400, &mut sent);
        shop.turn();
        shop.pass_ms(100);
        let failing = shop.io.effects();
        assert!(failing > 0);
        // The log is flushed; entries, units and slots are next.
        shop.io.fail(kind, 1, 1, 28);
        shop.pass_ms(30_000);
        let end = shop.store.visible();
        if shop.store.index.covered().is_some() {
            check(&mut shop, &sent, end, "tried again");
        }
        let disk = shop.io.disk().clone();
        let mut shop = Shop::reopen(disk, config(ASYNC));
        check(&mut shop, &sent, end, &format!("{kind:?}"));
    }
}

/// Keys that Apache indexed are found, further ones are put behind them.
#[test]
fn index_files_of_apache_are_read_and_continued() {
    for name in ["apache-4.9.8-store-clean", "apache-4.9.8-store-crashed"] {
        let disk = unpack(&format!("{name}.tar.xz"));
        let before = index_files(&disk);
        let apache = StoreConfig {
            index: IndexConfig {
                is_enabled: true,
                sizes: APACHE_SIZES,
            },
            ..apache_config()
        };
        let mut shop = Shop::reopen(disk, apache);
        assert_eq!(
            index_files(&shop.io.disk()),
            before,
            "{name}: none is removed or added"
        );
        let mut keys = 0;
        let queues = shop.store.queues();
        for (topic, queue_id, queue) in queues {
            let bounds = shop.store.bounds(queue);
            for at in (bounds.min.0..bounds.max.0).step_by(7) {
                let record = shop.read(&topic, queue_id, at).unwrap();
                let Ok(Record::Message(message)) = StoredMessage::decode(&record) else {
                    panic!("{name}: no message at {at} of {topic}");
                };
                let unique = crate::protocol::properties::get(message.properties, "UNIQ_KEY");
                if let Some(unique) = unique {
                    let found = find(&mut shop, query(&topic, unique));
                    assert!(
                        found.contains(&message.physical_offset),
                        "{name}: {topic} {unique}"
                    );
                    keys += 1;
                }
            }
        }
        assert!(keys > 20, "{name}: {keys} keys");
        let mut sent = Sent::new();
        send(&mut shop, 500, &mut sent);
        shop.turn();
        let mut shop = shop.restart();
        let end = shop.store.visible();
        check(&mut shop, &sent, end, name);
        assert_eq!(index_files(&shop.io.disk()), before, "{name}: continued");
    }
}
