//! Stores that Apache RocketMQ 4.9.8 wrote: they open with the offsets that Apache printed, and every message reads
//! back byte for byte as it lies in the log.

use super::*;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

const SEGMENT: u64 = 256 * 1024;
const QUEUE_FILE: u64 = 2000;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden/apache-stores")
        .join(name)
}

pub fn apache_config() -> StoreConfig {
    StoreConfig {
        segment_bytes: SEGMENT,
        queue_file_bytes: QUEUE_FILE,
        ..config(ASYNC)
    }
}

/// Unpacks a store into a disk in memory, at `/store`.
pub fn unpack(name: &str) -> Disk {
    let file = std::fs::File::open(golden(name)).unwrap();
    let mut archive = tar::Archive::new(xz2::read::XzDecoder::new(file));
    let mut disk = Disk::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().into_owned();
        let inside: PathBuf = path.components().skip(1).collect();
        let path = Path::new("/store").join(inside);
        if entry.header().entry_type().is_dir() {
            disk.create_directories(&path);
            continue;
        }
        let mut contents = Vec::new();
        entry.read_to_end(&mut contents).unwrap();
        disk.replace(&path, &contents).unwrap();
    }
    disk
}

/// Max offsets as `mqadmin topicStatus` printed them.
fn expected_offsets(name: &str) -> BTreeMap<(String, u32), (u64, u64)> {
    let text = std::fs::read_to_string(golden(name)).unwrap();
    let mut topic = None;
    let mut offsets = BTreeMap::new();
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            topic = title.strip_prefix("topicStatus ").map(str::to_owned);
        } else if let Some(topic) = &topic
            && line.starts_with("broker-a")
        {
            let mut fields = line
                .split_whitespace()
                .skip(1)
                .map(|field| field.parse::<u64>());
            let mut number = || fields.next().unwrap().unwrap();
            let (queue_id, min, max) = (number(), number(), number());
            offsets.insert((topic.clone(), queue_id as u32), (min, max));
        }
    }
    offsets
}

fn check_store(shop: &mut Shop, expected: &str) {
    let expected = expected_offsets(expected);
    assert!(expected.len() >= 12, "{expected:?}");
    for ((topic, queue_id), bounds) in &expected {
        assert_eq!(shop.bounds(topic, *queue_id), *bounds, "{topic} {queue_id}");
    }
    read_everything(shop);
}

fn read_everything(shop: &mut Shop) {
    for (topic, queue_id, _) in shop.store.queues() {
        let (min, max) = shop.bounds(&topic, queue_id);
        for at in min..max {
            shop.body(&topic, queue_id, at);
        }
    }
}

/// The commit log's bytes up to its end.
fn log_bytes(disk: &Disk, end: u64) -> Vec<u8> {
    let log = disk
        .files()
        .filter(|(path, _)| path.starts_with("/store/commitlog"));
    let mut bytes: Vec<u8> = log.flat_map(|(_, contents)| contents.to_vec()).collect();
    bytes.truncate(end as usize);
    bytes
}

#[test]
fn a_clean_apache_store_opens() {
    let disk = unpack("apache-4.9.8-store-clean.tar.xz");
    let before = disk.clone();
    let mut shop = Shop::reopen(disk, apache_config());
    assert!(shop.recovered.clean);
    assert_eq!(shop.recovered.queues_rebuilt, 0);
    assert!(
        shop.recovered.scanned_bytes < SEGMENT,
        "{:?}",
        shop.recovered
    );
    check_store(&mut shop, "apache-4.9.8-store-clean.expected.txt");
    let end = shop.recovered.end.0;
    assert_eq!(log_bytes(&before, end), log_bytes(&shop.io.disk(), end));
}

#[test]
fn a_crashed_apache_store_opens() {
    let disk = unpack("apache-4.9.8-store-crashed.tar.xz");
    let before = disk.clone();
    let mut shop = Shop::reopen(disk, apache_config());
    assert!(!shop.recovered.clean);
    assert_eq!(shop.recovered.queues_rebuilt, 0);
    assert!(shop.recovered.scanned_messages > 0);
    check_store(&mut shop, "apache-4.9.8-store-crashed.expected.txt");
    let end = shop.recovered.end.0;
    assert_eq!(log_bytes(&before, end), log_bytes(&shop.io.disk(), end));
}

#[test]
fn an_apache_store_goes_on_and_restarts() {
    for name in ["clean", "crashed"] {
        let disk = unpack(&format!("apache-4.9.8-store-{name}.tar.xz"));
        let mut shop = Shop::reopen(disk, apache_config());
        let (_, max) = shop.bounds("FixBench", 0);
        for n in 0..300 {
            let sent = shop.send("FixBench", 0, &[b'x'; 2000]);
            assert_eq!(sent.queue_offset.0, max + n);
            shop.turn();
        }
        let mut shop = shop.restart();
        assert_eq!(shop.recovered.scanned_messages, 0, "{name}");
        assert_eq!(shop.bounds("FixBench", 0), (0, max + 300), "{name}");
        for at in max - 1..max + 300 {
            shop.body("FixBench", 0, at);
        }
    }
}

#[test]
fn queues_derived_from_the_log_equal_those_that_apache_wrote() {
    for name in ["clean", "crashed"] {
        let disk = unpack(&format!("apache-4.9.8-store-{name}.tar.xz"));
        let whole = Shop::reopen(disk.clone(), apache_config());
        let mut stripped = disk;
        stripped.remove_directory("/store/consumequeue".as_ref());
        let derived = Shop::reopen(stripped, apache_config());
        let queues = |shop: &Shop| -> BTreeMap<PathBuf, Vec<u8>> {
            let disk = shop.io.disk();
            let files = disk
                .files()
                .filter(|(path, _)| path.starts_with("/store/consumequeue"));
            let used = files.filter(|(_, contents)| contents.iter().any(|byte| *byte != 0));
            used.map(|(path, contents)| (path.to_path_buf(), contents.to_vec()))
                .collect()
        };
        let (whole, derived) = (queues(&whole), queues(&derived));
        let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&whole), names(&derived), "{name}");
        for (path, contents) in &whole {
            assert!(
                derived[path] == *contents,
                "{name}: {} differs",
                path.display()
            );
        }
    }
}

#[test]
fn a_wrong_configuration_is_refused_and_changes_nothing() {
    let disk = unpack("apache-4.9.8-store-clean.tar.xz");
    let cases = [
        (SEGMENT * 2, QUEUE_FILE, "mappedFileSizeCommitLog"),
        (SEGMENT, QUEUE_FILE * 3, "mappedFileSizeConsumeQueue"),
    ];
    for (segment_bytes, queue_file_bytes, key) in cases {
        let config = StoreConfig {
            segment_bytes,
            queue_file_bytes,
            ..apache_config()
        };
        let Err((error, io)) = Shop::try_open(SimIo::with_disk(disk.clone()), config) else {
            panic!("{key}: opened");
        };
        assert!(error.to_string().contains(key), "{error}");
        let after = io.disk();
        assert!(
            after.find("/store/abort".as_ref()).is_err(),
            "{key}: still clean"
        );
        assert!(disk.files().all(|(path, contents)| {
            after
                .find(path)
                .is_ok_and(|id| after.contents(id) == contents)
        }));
    }
}
