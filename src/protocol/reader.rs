//! Takes big-endian fields off the front of a slice; every method is `None` where the bytes run out.

/// What is left of a slice.
pub(super) struct Reader<'b> {
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    pub fn new(bytes: &'b [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*head)
    }

    pub fn bytes(&mut self, count: usize) -> Option<&'b [u8]> {
        let (head, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(head)
    }

    pub fn i16(&mut self) -> Option<i16> {
        self.array().map(i16::from_be_bytes)
    }

    pub fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_be_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_be_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// Bytes behind a length of 8 bits.
    pub fn bytes_behind_u8(&mut self) -> Option<&'b [u8]> {
        let [count] = self.array()?;
        self.bytes(usize::from(count))
    }

    /// Bytes behind a length of 16 bits; a negative length points outside.
    pub fn bytes_behind_i16(&mut self) -> Option<&'b [u8]> {
        let count = usize::try_from(self.i16()?).ok()?;
        self.bytes(count)
    }

    /// Bytes behind a length of 32 bits; a negative length points outside.
    pub fn bytes_behind_i32(&mut self) -> Option<&'b [u8]> {
        let count = usize::try_from(self.i32()?).ok()?;
        self.bytes(count)
    }
}
