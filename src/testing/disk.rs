//! A disk in memory: what a program sees (current) and what a power cut leaves (durable).
//!
//! **Fault model**: a kill of the process keeps the current image. A power cut keeps the durable image plus any
//! subset of the unflushed writes, each whole, absent, or cut at a 512-byte sector. A failed flush loses what was
//! unflushed, although it can still be read. Names (create, remove, rename)
//! are durable at once; the code under test flushes directories anyway, which the real disk needs.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

const SECTOR_BYTES: usize = 512;

/// What becomes of one unflushed write in a power cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    Kept,
    Lost,
    /// The first sectors only.
    Torn {
        sectors: usize,
    },
}

#[derive(Clone, Debug, Default)]
struct Inode {
    current: Vec<u8>,
    durable: Vec<u8>,
    unflushed: Vec<(u64, Vec<u8>)>,
}

/// Index of an inode; stays valid when the name is gone, as an open file does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeId(usize);

#[derive(Clone, Debug, Default)]
pub struct Disk {
    inodes: Vec<Inode>,
    names: BTreeMap<PathBuf, InodeId>,
    directories: BTreeSet<PathBuf>,
}

fn overwrite(image: &mut Vec<u8>, position: u64, bytes: &[u8]) {
    let start = position as usize;
    let end = start + bytes.len();
    if image.len() < end {
        image.resize(end, 0);
    }
    image[start..end].copy_from_slice(bytes);
}

fn absent(path: &Path) -> io::Error {
    io::Error::new(
        io::ErrorKind::NotFound,
        format!("{} is absent", path.display()),
    )
}

impl Disk {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn find(&self, path: &Path) -> io::Result<InodeId> {
        self.names.get(path).copied().ok_or_else(|| absent(path))
    }

    pub fn is_directory(&self, path: &Path) -> bool {
        self.directories.contains(path)
    }

    pub fn create_directories(&mut self, path: &Path) {
        let ancestors = path.ancestors().map(Path::to_path_buf);
        self.directories.extend(ancestors);
    }

    /// Names in a directory, files and directories, sorted.
    pub fn list(&self, directory: &Path) -> Vec<String> {
        let names = self.names.keys().chain(&self.directories);
        let children = names.filter(|path| path.parent() == Some(directory));
        let text = children.filter_map(|path| path.file_name()?.to_str());
        let sorted: BTreeSet<String> = text.map(str::to_owned).collect();
        sorted.into_iter().collect()
    }

    /// All files with their contents; for comparing stores.
    pub fn files(&self) -> impl Iterator<Item = (&Path, &[u8])> {
        let files = self.names.iter();
        files.map(|(path, id)| (path.as_path(), self.inodes[id.0].current.as_slice()))
    }

    /// Opens or creates a file, extending it to `len` bytes of zeros.
    pub fn create(&mut self, path: &Path, len: u64) -> io::Result<InodeId> {
        let parent = path.parent().unwrap_or(Path::new(""));
        if !self.is_directory(parent) {
            return Err(absent(parent));
        }
        let id = match self.names.get(path) {
            Some(id) => *id,
            None => {
                self.inodes.push(Inode::default());
                InodeId(self.inodes.len() - 1)
            }
        };
        self.names.insert(path.to_path_buf(), id);
        if self.len(id) < len {
            self.set_len(id, len);
        }
        Ok(id)
    }

    pub fn len(&self, id: InodeId) -> u64 {
        self.inodes[id.0].current.len() as u64
    }

    pub fn set_len(&mut self, id: InodeId, len: u64) {
        let inode = &mut self.inodes[id.0];
        inode.current.resize(len as usize, 0);
        inode.durable.resize(len as usize, 0);
        let end = |(position, bytes): &(u64, Vec<u8>)| position + bytes.len() as u64;
        inode.unflushed.retain(|write| end(write) <= len);
    }

    pub fn read(&self, id: InodeId, position: u64, buffer: &mut [u8]) -> usize {
        let current = &self.inodes[id.0].current;
        let start = (position as usize).min(current.len());
        let count = buffer.len().min(current.len() - start);
        buffer[..count].copy_from_slice(&current[start..start + count]);
        count
    }

    pub fn contents(&self, id: InodeId) -> &[u8] {
        &self.inodes[id.0].current
    }

    pub fn write(&mut self, id: InodeId, position: u64, bytes: &[u8]) {
        let inode = &mut self.inodes[id.0];
        overwrite(&mut inode.current, position, bytes);
        inode.unflushed.push((position, bytes.to_vec()));
    }

    pub fn flush(&mut self, id: InodeId) {
        self.flush_first(id, usize::MAX);
    }

    /// A flush that covers the first `count` unflushed writes.
    pub fn flush_first(&mut self, id: InodeId, count: usize) {
        let inode = &mut self.inodes[id.0];
        let count = count.min(inode.unflushed.len());
        for (position, bytes) in inode.unflushed.drain(..count) {
            overwrite(&mut inode.durable, position, &bytes);
        }
    }

    pub fn unflushed_of(&self, id: InodeId) -> usize {
        self.inodes[id.0].unflushed.len()
    }

    /// A flush failed: the kernel reports it once and counts the pages as clean. What was unflushed can be read until
    /// the machine stops, and no later flush brings it to the disk.
    pub fn fail_flush(&mut self, id: InodeId) {
        self.inodes[id.0].unflushed.clear();
    }

    /// Replaces a file as a whole, durably.
    pub fn replace(&mut self, path: &Path, contents: &[u8]) -> io::Result<()> {
        self.names.remove(path);
        let id = self.create(path, 0)?;
        self.write(id, 0, contents);
        self.flush(id);
        Ok(())
    }

    pub fn remove(&mut self, path: &Path) {
        self.names.remove(path);
    }

    pub fn remove_directory(&mut self, path: &Path) {
        self.names.retain(|name, _| !name.starts_with(path));
        self.directories.retain(|name| !name.starts_with(path));
    }

    pub fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let id = self.find(from)?;
        self.names.remove(from);
        self.names.insert(to.to_path_buf(), id);
        Ok(())
    }

    /// Number of writes that a power cut may lose.
    pub fn unflushed_writes(&self) -> usize {
        self.inodes.iter().map(|inode| inode.unflushed.len()).sum()
    }

    /// The disk after a power cut; `fate` is asked for each unflushed write, in order.
    #[must_use]
    pub fn power_cut(&self, mut fate: impl FnMut(usize) -> Fate) -> Self {
        let mut after = self.clone();
        let mut index = 0;
        for inode in &mut after.inodes {
            for (position, bytes) in std::mem::take(&mut inode.unflushed) {
                let kept = match fate(index) {
                    Fate::Kept => bytes.len(),
                    Fate::Lost => 0,
                    Fate::Torn { sectors } => torn_bytes(position, bytes.len(), sectors),
                };
                overwrite(&mut inode.durable, position, &bytes[..kept]);
                index += 1;
            }
            inode.current.clone_from(&inode.durable);
        }
        after
    }
}

/// Bytes of a write up to the end of its first `sectors` sectors.
fn torn_bytes(position: u64, len: usize, sectors: usize) -> usize {
    let into_sector = position as usize % SECTOR_BYTES;
    (sectors * SECTOR_BYTES)
        .saturating_sub(into_sector)
        .min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_cut_keeps_what_was_flushed_and_any_subset_of_the_rest() {
        let mut disk = Disk::new();
        disk.create_directories(Path::new("/d"));
        let id = disk.create(Path::new("/d/f"), 2048).unwrap();
        disk.write(id, 0, &[1; 600]);
        disk.flush(id);
        disk.write(id, 600, &[2; 1000]);
        disk.write(id, 1600, &[3; 100]);
        let fates = [Fate::Torn { sectors: 1 }, Fate::Kept];
        let after = disk.power_cut(|index| fates[index]);
        let image = after.contents(id);
        assert_eq!(&image[..600], &[1; 600]);
        assert_eq!(image[600..1024], [2; 424], "to the end of the first sector");
        assert_eq!(image[1024..1600], [0; 576]);
        assert_eq!(image[1600..1700], [3; 100]);
        assert_eq!(disk.unflushed_writes(), 2);
    }
}
