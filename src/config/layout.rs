//! How many shards a store has, and where they are.
//!
//! With one shard the store's folder has the layout of a stock broker; with several, each has a folder `shard-i` in
//! it, which keeps its name when the machine changes. What is there decides the number of shards where the
//! configuration leaves it open, and refuses a number that would leave data without a shard.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

/// What a store's folder holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    New,
    /// That of a stock broker.
    Single,
    /// Folders of shards, by number.
    Sharded(BTreeSet<u16>),
}

/// Looks at a store. **Errors**: the folder can't be read, or holds both layouts.
pub fn find(root: &Path) -> Result<Layout, String> {
    let shown = root.display();
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Layout::New),
        Err(error) => return Err(format!("storePathRootDir {shown}: {error}")),
    };
    let mut shards = BTreeSet::new();
    let mut is_single = false;
    for entry in entries {
        let entry = entry.map_err(|error| format!("storePathRootDir {shown}: {error}"))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        is_single |= matches!(&*name, "commitlog" | "consumequeue" | "config");
        if let Some(shard) = shard_of(&name) {
            shards.insert(shard);
        }
    }
    match (is_single, shards.is_empty()) {
        (false, true) => Ok(Layout::New),
        (true, true) => Ok(Layout::Single),
        (false, false) => Ok(Layout::Sharded(shards)),
        (true, false) => Err(format!(
            "{shown} holds the store of one shard and the folders of several; move one of them away"
        )),
    }
}

/// Folder of a shard in a store of several.
pub fn shard_folder(shard: u16) -> String {
    format!("shard-{shard}")
}

fn shard_of(name: &str) -> Option<u16> {
    let shard = name.strip_prefix("shard-")?.parse().ok()?;
    // Not "shard-01" or "shard-+1".
    (shard_folder(shard) == name).then_some(shard)
}

/// The number of shards: what is configured, or what the store has; `processors` for a new one.
///
/// **Errors**: some of the store's data would have no shard; what to do.
pub fn shard_count(
    layout: &Layout,
    configured: u16,
    processors: u16,
    root: &Path,
) -> Result<u16, String> {
    let shown = root.display();
    match (layout, configured) {
        (Layout::New, 0) => Ok(processors),
        (Layout::New, count) => Ok(count),
        (Layout::Single, 0 | 1) => Ok(1),
        (Layout::Single, count) => Err(format!(
            "{shown} holds the store of one shard, but shards is {count}: its data would have no shard. Set shards to \
             1, or start {count} shards on another storePathRootDir and let consumers finish with this one first"
        )),
        (Layout::Sharded(shards), count) => {
            let highest = shards.last().copied().unwrap_or(0);
            let needed = highest.saturating_add(1);
            match count {
                0 => Ok(needed.max(2)),
                count if count >= needed && count > 1 => Ok(count),
                count => Err(format!(
                    "{} has no shard to serve it, shards is {count}. Set shards to {} or more; they may be more than \
                     there are processors",
                    root.join(shard_folder(highest)).display(),
                    needed.max(2)
                )),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(names: &[&str]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for name in names {
            std::fs::create_dir(directory.path().join(name)).unwrap();
        }
        directory
    }

    fn count(names: &[&str], configured: u16) -> Result<u16, String> {
        let store = store(names);
        let layout = find(store.path())?;
        shard_count(&layout, configured, 4, store.path())
    }

    #[test]
    fn the_store_decides_where_the_configuration_does_not() {
        for (names, configured, expected) in [
            (&[][..], 0, 4),
            (&[], 1, 1),
            (&[], 9, 9),
            (&["kvConfig.json", "shard-01", "shard-x", "shards"], 0, 4),
            (&["commitlog", "config"], 0, 1),
            (&["commitlog"], 1, 1),
            (&["shard-0", "shard-1"], 0, 2),
            (&["shard-0", "shard-7"], 0, 8),
            (&["shard-0", "shard-1"], 2, 2),
            (&["shard-0", "shard-1"], 9, 9),
            (&["shard-0"], 0, 2),
        ] {
            assert_eq!(
                count(names, configured),
                Ok(expected),
                "{names:?} {configured}"
            );
        }
        let absent = store(&[]).path().join("absent");
        assert_eq!(find(&absent), Ok(Layout::New));
    }

    #[test]
    fn data_without_a_shard_is_refused() {
        for (names, configured, expected) in [
            (
                &["commitlog"][..],
                2,
                "holds the store of one shard, but shards is 2",
            ),
            (&["config"], 3, "holds the store of one shard"),
            (
                &["shard-0", "shard-2"],
                2,
                "shard-2 has no shard to serve it, shards is 2. Set shards to 3",
            ),
            (&["shard-0", "shard-1"], 1, "shard-1 has no shard"),
            (&["shard-0"], 1, "shard-0 has no shard"),
            (
                &["commitlog", "shard-0"],
                0,
                "holds the store of one shard and the folders of several",
            ),
        ] {
            let error = count(names, configured).unwrap_err();
            assert!(error.contains(expected), "{names:?} {configured}: {error}");
        }
    }

    #[test]
    fn a_store_that_can_not_be_read_is_named() {
        let directory = store(&[]);
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = find(&file).unwrap_err();
        assert!(error.starts_with("storePathRootDir"), "{error}");
    }
}
