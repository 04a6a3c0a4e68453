//! The ring of provided receive buffers. A buffer belongs to the kernel or to the shard, never to both.
#![allow(unsafe_code)]

use super::BufferId;
use io_uring::types::BufRingEntry;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::atomic::{AtomicU16, Ordering};

const PAGE_BYTES: usize = 4096;

/// Page-aligned memory, zeroed, freed on drop.
#[derive(Debug)]
struct Pages {
    start: *mut u8,
    layout: Layout,
}

impl Pages {
    fn new(bytes: usize) -> Self {
        let layout = Layout::from_size_align(bytes.max(PAGE_BYTES), PAGE_BYTES)
            .expect("a page-aligned size");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Self { start, layout }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; `Uring` drops its ring first, so the kernel no longer writes.
        unsafe { dealloc(self.start, self.layout) };
    }
}

/// Entries shared with the kernel, and the buffers that they name.
#[derive(Debug)]
pub struct BufferRing {
    entries: Pages,
    memory: Pages,
    count: u16,
    buffer_bytes: u32,
    /// Tail as we know it; published by [`BufferRing::publish`].
    tail: u16,
    lent: Vec<bool>,
}

impl BufferRing {
    /// `count` is a power of two.
    pub fn new(count: u16, buffer_bytes: u32) -> Self {
        assert!(
            count.is_power_of_two(),
            "{count} receive buffers: not a power of two"
        );
        let entries = Pages::new(usize::from(count) * size_of::<BufRingEntry>());
        let memory = Pages::new(usize::from(count) * buffer_bytes as usize);
        let mut ring = Self {
            entries,
            memory,
            count,
            buffer_bytes,
            tail: 0,
            lent: vec![true; usize::from(count)],
        };
        for id in 0..count {
            ring.give_back(BufferId(id));
        }
        ring.publish();
        ring
    }

    /// Address of the entries, for registration.
    pub fn entries_address(&self) -> u64 {
        self.entries.start as u64
    }

    pub fn count(&self) -> u16 {
        self.count
    }

    fn buffer_start(&self, id: BufferId) -> *mut u8 {
        assert!(id.0 < self.count, "buffer {} of {}", id.0, self.count);
        // SAFETY: the id is in range, so the offset stays inside the allocation.
        unsafe {
            self.memory
                .start
                .add(usize::from(id.0) * self.buffer_bytes as usize)
        }
    }

    /// A completion handed this buffer to us.
    pub fn lend(&mut self, id: BufferId) {
        let lent = &mut self.lent[usize::from(id.0)];
        assert!(
            !*lent,
            "the kernel filled buffer {} that it does not own",
            id.0
        );
        *lent = true;
    }

    /// The first bytes of a lent buffer.
    pub fn bytes(&self, id: BufferId, count: u32) -> &[u8] {
        assert!(
            self.lent[usize::from(id.0)],
            "buffer {} belongs to the kernel",
            id.0
        );
        assert!(
            count <= self.buffer_bytes,
            "{count} bytes of a buffer of {}",
            self.buffer_bytes
        );
        // SAFETY: the buffer is lent, so the kernel does not write to it until `give_back`, which needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.buffer_start(id), count as usize) }
    }

    /// Makes the buffer the kernel's again; seen by it after [`BufferRing::publish`].
    pub fn give_back(&mut self, id: BufferId) {
        let lent = &mut self.lent[usize::from(id.0)];
        assert!(*lent, "buffer {} was given back twice", id.0);
        *lent = false;
        let address = self.buffer_start(id) as u64;
        let slot = usize::from(self.tail & (self.count - 1));
        let entries = self.entries.start.cast::<BufRingEntry>();
        // SAFETY: the slot lies inside the entries; the kernel reads it only once the tail has moved past it.
        let entry = unsafe { &mut *entries.add(slot) };
        entry.set_addr(address);
        entry.set_len(self.buffer_bytes);
        entry.set_bid(id.0);
        self.tail = self.tail.wrapping_add(1);
    }

    /// One store makes all buffers given back visible to the kernel.
    pub fn publish(&mut self) {
        let entries = self.entries.start.cast::<BufRingEntry>();
        // SAFETY: the tail lies in the first entry, as the kernel lays it out.
        let tail = unsafe { BufRingEntry::tail(entries) }.cast::<AtomicU16>();
        // SAFETY: aligned, inside our allocation, and written by us alone.
        unsafe { &*tail }.store(self.tail, Ordering::Release);
    }
}
