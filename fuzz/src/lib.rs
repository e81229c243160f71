//! Fuzz targets: one function of bytes each, named after what it tests.
//!
//! A target reads its choices from the bytes ([`Source`]), drives one parser or machine with them, and panics when an
//! invariant does not hold. It knows nothing of the fuzzer: `targets/` links each to libFuzzer, and the tests below
//! run the kept inputs of `corpus/` through it in any build. Read docs/internals/fuzz.md.

mod answers;
mod edge;
mod heap;
mod initiator;
mod login;
mod mapfile;
mod nbd;
mod outer;
mod pair;
mod record;
mod sealed;
mod source;
mod spec;
mod stream;
mod target;
mod text;
mod unit;
mod wire;
mod words;

pub use answers::answers;
pub use initiator::initiator;
pub use login::login;
pub use mapfile::mapfile;
pub use nbd::nbd;
pub use outer::outer;
pub use pair::pair;
pub use record::record;
pub use sealed::sealed;
pub use source::Source;
pub use spec::spec;
pub use stream::stream;
pub use target::target;
pub use text::text;
pub use unit::unit;
pub use wire::wire;

#[cfg(test)]
mod tests;
