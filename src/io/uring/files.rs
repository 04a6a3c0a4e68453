//! The blocking calls go to the table of files.

use super::Uring;
use crate::io::{File, FileSystem, Space};
use std::io;
use std::path::Path;

impl FileSystem for Uring {
    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.files.list(directory)
    }
    fn is_directory(&self, path: &Path) -> bool {
        self.files.is_directory(path)
    }
    fn exists(&self, path: &Path) -> bool {
        self.files.exists(path)
    }
    fn create_directories(&self, path: &Path) -> io::Result<()> {
        self.files.create_directories(path)
    }
    fn open(&mut self, path: &Path) -> io::Result<File> {
        self.files.open(path)
    }
    fn lock(&mut self, path: &Path) -> io::Result<File> {
        self.files.lock(path)
    }
    fn close(&mut self, file: File) {
        self.files.close(file)
    }
    fn len(&self, file: File) -> io::Result<u64> {
        self.files.len(file)
    }
    fn read_at(&self, file: File, position: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.files.read_at(file, position, buffer)
    }
    fn write_at(&mut self, file: File, position: u64, bytes: &[u8]) -> io::Result<()> {
        self.files.write_at(file, position, bytes)
    }
    fn zero_range(&mut self, file: File, position: u64, len: u64) -> io::Result<()> {
        self.files.zero_range(file, position, len)
    }
    fn next_data(&self, file: File, position: u64) -> io::Result<u64> {
        self.files.next_data(file, position)
    }
    fn set_len(&mut self, file: File, len: u64) -> io::Result<()> {
        self.files.set_len(file, len)
    }
    fn flush(&mut self, file: File) -> io::Result<()> {
        self.files.flush(file)
    }
    fn flush_directory(&mut self, directory: &Path) -> io::Result<()> {
        self.files.flush_directory(directory)
    }
    fn create(&mut self, path: &Path, len: u64) -> io::Result<File> {
        self.files.create(path, len)
    }
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.files.remove(path)
    }
    fn remove_directory(&mut self, path: &Path) -> io::Result<()> {
        self.files.remove_directory(path)
    }
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.files.rename(from, to)
    }
    fn read_whole(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.read_whole(path)
    }
    fn replace(&mut self, path: &Path, contents: &[u8], keep_backup: bool) -> io::Result<()> {
        self.files.replace(path, contents, keep_backup)
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        self.files.space(path)
    }
}
