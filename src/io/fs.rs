//! Blocking file system calls for start, recovery and offline tools, and the table of open files.

use super::{File, FileSystem, Space};
use rustix::fs::{FallocateFlags, FlockOperation, SeekFrom};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Open files by handle.
#[derive(Debug, Default)]
pub struct Files {
    table: slab::Slab<fs::File>,
}

impl Files {
    fn get(&self, file: File) -> io::Result<&fs::File> {
        self.table
            .get(file.0 as usize)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }

    /// The descriptor, for operations of the ring.
    pub fn fd(&self, file: File) -> RawFd {
        self.table
            .get(file.0 as usize)
            .map_or(-1, AsRawFd::as_raw_fd)
    }

    pub fn insert(&mut self, fd: OwnedFd) -> File {
        self.add(fd.into())
    }

    fn add(&mut self, file: fs::File) -> File {
        File(self.table.insert(file) as u32)
    }
}

/// Opens read-write, never through a link; made if missing and asked for.
fn open(path: &Path, create: bool) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options
        .read(true)
        .write(true)
        .create(create)
        .custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW);
    options.open(path)
}

impl FileSystem for Files {
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut names = Vec::new();
        for entry in entries {
            // A name that isn't text is none of ours.
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn is_directory(&self, path: &Path) -> bool {
        path.is_dir()
    }

    fn exists(&self, path: &Path) -> bool {
        path.exists()
    }

    fn create_directories(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn open(&mut self, path: &Path) -> io::Result<File> {
        let file = open(path, false)?;
        Ok(self.add(file))
    }

    fn lock(&mut self, path: &Path) -> io::Result<File> {
        let file = open(path, true)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            // POSIX allows either for a lock that another process has.
            Err(rustix::io::Errno::ACCESS | rustix::io::Errno::AGAIN) => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Err(error) => return Err(error.into()),
        }
        Ok(self.add(file))
    }

    fn close(&mut self, file: File) {
        self.table.try_remove(file.0 as usize);
    }

    fn len(&self, file: File) -> io::Result<u64> {
        Ok(self.get(file)?.metadata()?.len())
    }

    fn read_at(&self, file: File, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let file = self.get(file)?;
        let mut done = 0;
        while done < buffer.len() {
            match file.read_at(&mut buffer[done..], position + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&mut self, file: File, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.get(file)?.write_all_at(bytes, position)
    }

    fn zero_range(&mut self, file: File, position: u64, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let file = self.get(file)?;
        let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(file, flags, position, len) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        let zeros = vec![0_u8; len.min(1 << 20) as usize];
        let mut at = position;
        while at < position + len {
            let count = (position + len - at).min(zeros.len() as u64) as usize;
            file.write_all_at(&zeros[..count], at)?;
            at += count as u64;
        }
        Ok(())
    }

    fn next_data(&self, file: File, position: u64) -> io::Result<u64> {
        let file = self.get(file)?;
        match rustix::fs::seek(file, SeekFrom::Data(position)) {
            Ok(at) => Ok(at),
            Err(rustix::io::Errno::NXIO) => Ok(file.metadata()?.len()),
            // No holes known: everything may be data.
            Err(rustix::io::Errno::INVAL) => Ok(position),
            Err(error) => Err(error.into()),
        }
    }

    fn set_len(&mut self, file: File, len: u64) -> io::Result<()> {
        self.get(file)?.set_len(len)
    }

    fn flush(&mut self, file: File) -> io::Result<()> {
        self.get(file)?.sync_all()
    }

    fn flush_directory(&mut self, directory: &Path) -> io::Result<()> {
        fs::File::open(directory)?.sync_all()
    }

    fn create(&mut self, path: &Path, len: u64) -> io::Result<File> {
        let file = open(path, true)?;
        if file.metadata()?.len() < len {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len) {
                Ok(()) => {}
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                    file.set_len(len)?
                }
                Err(error) => {
                    let _ = fs::remove_file(path);
                    return Err(error.into());
                }
            }
        }
        Ok(self.add(file))
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn remove_directory(&mut self, path: &Path) -> io::Result<()> {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn read_whole(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn replace(&mut self, path: &Path, contents: &[u8], keep_backup: bool) -> io::Result<()> {
        replace_file(path, contents, keep_backup)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        space(path)
    }
}

pub fn space(path: &Path) -> io::Result<Space> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(Space {
        used: stat.f_blocks.saturating_sub(stat.f_bfree) * stat.f_frsize,
        available: stat.f_bavail * stat.f_frsize,
    })
}

/// Temporary file, flush, backup of the old one, rename, flush of the directory.
pub fn replace_file(path: &Path, contents: &[u8], keep_backup: bool) -> io::Result<()> {
    let directory = path
        .parent()
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    fs::create_dir_all(directory)?;
    let temporary = with_suffix(path, "tmp");
    let mut file = fs::File::create(&temporary)?;
    file.write_all(contents)?;
    file.sync_all()?;
    if keep_backup && path.exists() {
        // A copy under the other name, so that the file itself never is away.
        let backup = with_suffix(path, "bak");
        let _ = fs::remove_file(&backup);
        fs::hard_link(path, &backup).or_else(|_| fs::copy(path, &backup).map(|_| ()))?;
    }
    fs::rename(&temporary, path)?;
    fs::File::open(directory)?.sync_all()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(suffix);
    PathBuf::from(name)
}

/// Zeros written at once while a file is being prepared.
const FILL_STEP_BYTES: u64 = 1 << 20;
/// Zeros between two flushes: a big flush would hold up those of others.
const FILL_FLUSH_BYTES: u64 = 16 << 20;

/// A file that is being made: zeros are written over what was not there before, so that a later flush has no extents
/// to convert. Done in steps, so that other work of the same thread need not wait for all of it.
#[derive(Debug)]
pub struct Preparation {
    path: PathBuf,
    file: fs::File,
    /// The file was made here: on failure it is removed again.
    is_new: bool,
    at: u64,
    len: u64,
    unflushed: u64,
}

impl Preparation {
    /// Creates or extends a file to `len` bytes, sparse unless it is to be filled with zeros.
    pub fn begin(path: &Path, len: u64, zero_fill: bool) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let is_new = !path.exists();
        let file = open(path, true)?;
        let before = file.metadata()?.len();
        let mut preparation = Self {
            path: path.to_path_buf(),
            file,
            is_new,
            at: if zero_fill { before.min(len) } else { len },
            len,
            unflushed: 0,
        };
        if before < len {
            let extended = preparation.extend(zero_fill);
            preparation.or_remove(extended)?;
        }
        Ok(preparation)
    }

    /// Gives the file its length and makes its name durable.
    fn extend(&mut self, zero_fill: bool) -> io::Result<()> {
        if zero_fill {
            match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, self.len) {
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {}
                Err(error) => return Err(error.into()),
            }
        } else {
            self.file.set_len(self.len)?;
        }
        match self.path.parent() {
            Some(directory) => fs::File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    }

    /// All zeros are written and flushed.
    pub fn is_done(&self) -> bool {
        self.at == self.len && self.unflushed == 0
    }

    /// Writes some more zeros.
    pub fn step(&mut self) -> io::Result<()> {
        let stepped = self.fill();
        self.or_remove(stepped)
    }

    fn fill(&mut self) -> io::Result<()> {
        let count = (self.len - self.at).min(FILL_STEP_BYTES);
        let zeros = vec![0_u8; count as usize];
        self.file.write_all_at(&zeros, self.at)?;
        self.at += count;
        self.unflushed += count;
        if self.at == self.len {
            self.file.sync_all()?;
            self.unflushed = 0;
        } else if self.unflushed >= FILL_FLUSH_BYTES {
            self.file.sync_data()?;
            self.unflushed = 0;
        }
        Ok(())
    }

    fn or_remove(&self, result: io::Result<()>) -> io::Result<()> {
        if result.is_err() && self.is_new {
            let _ = fs::remove_file(&self.path);
        }
        result
    }

    pub fn into_file(self) -> fs::File {
        self.file
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replaced_file_keeps_the_one_before() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("config/topics.json");
        for contents in ["one", "two", "three"] {
            replace_file(&path, contents.as_bytes(), true).expect("replaced");
        }
        assert_eq!(fs::read_to_string(&path).expect("there"), "three");
        assert_eq!(
            fs::read_to_string(directory.path().join("config/topics.json.bak")).expect("there"),
            "two"
        );
        assert!(!directory.path().join("config/topics.json.tmp").exists());
    }

    #[test]
    fn a_prepared_file_has_its_length_and_keeps_what_it_had() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("0");
        fs::write(&path, b"abc").expect("written");
        let mut preparation = Preparation::begin(&path, 3 << 20, true).expect("begun");
        let mut steps = 0;
        while !preparation.is_done() {
            preparation.step().expect("filled");
            steps += 1;
        }
        assert_eq!(steps, 3);
        let file = preparation.into_file();
        assert_eq!(file.metadata().expect("metadata").len(), 3 << 20);
        let bytes = fs::read(&path).expect("read");
        assert_eq!(&bytes[..3], b"abc");
        assert!(bytes[3..].iter().all(|b| *b == 0));
    }

    #[test]
    fn a_range_reads_as_zeros_and_a_lock_excludes() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut files = Files::default();
        let file = files
            .create(&directory.path().join("f"), 8192)
            .expect("created");
        files.write_at(file, 0, &[7; 8192]).expect("written");
        files.zero_range(file, 100, 5000).expect("zeroed");
        let mut bytes = vec![1; 8192];
        assert_eq!(files.read_at(file, 0, &mut bytes).expect("read"), 8192);
        assert!(bytes[100..5100].iter().all(|b| *b == 0) && bytes[99] == 7 && bytes[5100] == 7);
        let lock = directory.path().join("lock");
        files.lock(&lock).expect("free");
        assert!(Files::default().lock(&lock).is_err());
    }
}
