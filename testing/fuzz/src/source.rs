//! Choices read from the fuzzer's bytes.
//!
//! Every choice takes a small fixed number of bytes from the front, so that a changed byte changes one choice and
//! coverage stays meaningful. When the bytes are used up, every choice is the first one.

#[derive(Clone, Debug)]
pub struct Source<'a> {
    bytes: &'a [u8],
}

impl<'a> Source<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Whether all further choices are the first one.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(count.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    /// Fewer than `bound` bytes.
    pub fn some(&mut self, bound: usize) -> &'a [u8] {
        let count = self.below(bound);
        self.take(count)
    }

    pub fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    /// `N` bytes, with zeroes after the end.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let taken = self.take(N);
        let mut bytes = [0; N];
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    /// One byte, or 0 after the end.
    pub fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Two bytes, big-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// Four bytes, big-endian.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// Eight bytes, big-endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// A number below `bound`, which must not be 0; takes two bytes if `bound` exceeds 256.
    pub fn below(&mut self, bound: usize) -> usize {
        let choice = if bound <= 256 { usize::from(self.byte()) } else { usize::from(self.u16()) };
        choice % bound
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// True once in `bound` for random bytes; false when the bytes are used up.
    pub fn rarely(&mut self, bound: u8) -> bool {
        self.byte() % bound == bound - 1
    }

    /// One element of a list that must not be empty.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    /// A length or number near interesting values: around powers of two, small, or any.
    pub fn number(&mut self) -> u32 {
        match self.byte() {
            byte @ 0..=63 => u32::from(byte),
            byte @ 64..=95 => 1 << (byte - 64),
            byte @ 96..=127 => (1_u32 << (byte - 96)) - 1,
            byte @ 128..=159 => (1_u32 << (byte - 128)) + 1,
            byte @ 160..=207 => u32::from(byte - 159) * 512,
            208..=231 => u32::from(self.u16()),
            232..=247 => u32::MAX - u32::from(self.byte()),
            248.. => self.u32(),
        }
    }
}
