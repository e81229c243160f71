//! The storage of headers, as a caller that waits for each request sees it.

/// Bytes that a header, its keyslots and their changes are read from and written to. Offsets and lengths that this
/// crate passes are multiples of 4096 bytes.
///
/// A write is durable after the next [`Storage::flush`]; a power cut before it may keep any part of it.
pub trait Storage {
    type Error;

    fn size_bytes(&self) -> u64;

    /// Fills `into` from `offset`.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    fn write(&mut self, offset: u64, from: &[u8]) -> Result<(), Self::Error>;

    fn flush(&mut self) -> Result<(), Self::Error>;
}
