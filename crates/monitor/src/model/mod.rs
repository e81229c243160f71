//! What limits a connection: causes, the evidence for them, and the verdict.
//!
//! [`Evidence`] is the seam: captures, samples of a socket and our own programs each fill in what they can see, and
//! [`judge()`] decides from it alone. A field that a source cannot see is `None`; the verdict then names candidates
//! instead of a limit.

mod advice;
mod attribution;
mod cause;
mod evidence;
mod judge;
mod peers;
pub mod predict;
mod sampled;
#[cfg(test)]
mod tests;
mod verdict;
mod words;

pub use advice::{ENDS_UNKNOWN, is_for_several};
pub use attribution::Attribution;
pub use cause::{Cause, Seconds};
pub use evidence::{Caps, Cpu, Evidence, Path, Protocol, Source};
pub use judge::{SURE, advise, doubt, judge};
pub use peers::{Peers, System};
pub use sampled::{combined, sampled};
pub use verdict::{Advice, Verdict};
