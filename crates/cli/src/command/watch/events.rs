//! Events of the connections from programs in the kernel (feature `bpf`), beside the samples. Without the feature there
//! are none, and nothing here does anything.

#[cfg(feature = "bpf")]
mod kernel;
#[cfg(not(feature = "bpf"))]
mod none;

#[cfg(feature = "bpf")]
pub(super) use kernel::Precise;
#[cfg(not(feature = "bpf"))]
pub(super) use none::Precise;
