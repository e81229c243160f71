//! Opens local storage that a [`Spec`] names.

use std::sync::Arc;

use crate::layer::{Keys, NoKeys};
use crate::spec::{Location, Spec, SpecError};
use crate::{FileMedium, Medium, MemoryMedium, NullMedium, OpenError, PatternMedium, layer};

#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Open for writing too, unless the spec says `ro`.
    pub writable: bool,
    /// Offsets and lengths of requests will be multiples of this number of bytes, except at the tail of a file.
    /// O_DIRECT is used only if this suffices for it: the cached and the direct path must never share a page.
    pub request_alignment: u32,
    /// Open a device that is mounted or held, or an image that another program has locked. What is neither is locked all
    /// the same when it is opened for writing.
    pub allow_in_use: bool,
}

/// Options of every local endpoint, layers included.
pub const LOCAL_OPTIONS: &[&str] = &[
    "ro",
    "size",
    "create",
    "grow",
    "format",
    "block-size",
    "physical-block",
    "delay",
    "limit",
    "iops",
    "fault",
    "crash",
    "log",
    "readahead",
    "volume",
    "view",
    "password-file",
    "key-file",
    "header",
    "freshness",
];

impl From<SpecError> for OpenError {
    fn from(error: SpecError) -> Self {
        Self::Usage(error.0)
    }
}

/// Opens local storage (`PATH`, `mem:`, `null:`, `pattern:`) and wraps it in its layers. A URL is an error, and so is a
/// sealed volume.
pub fn open(spec: &Spec, options: &OpenOptions) -> Result<Arc<dyn Medium>, OpenError> {
    open_with(spec, options, &NoKeys)
}

/// [`open`], with keys for a sealed volume.
pub fn open_with(spec: &Spec, options: &OpenOptions, keys: &dyn Keys) -> Result<Arc<dyn Medium>, OpenError> {
    let read_only = spec.flag("ro")?;
    let medium: Arc<dyn Medium> = match &spec.location {
        Location::File(path) => Arc::new(FileMedium::open(path, spec, options)?),
        Location::Memory { size } => Arc::new(MemoryMedium::new(*size, read_only)?),
        Location::Null { size } => Arc::new(NullMedium::new(*size, read_only)),
        Location::Pattern { size, seed } => Arc::new(PatternMedium::new(*size, *seed)),
        Location::Stdio => {
            return Err(OpenError::Usage("'-' is not a block endpoint here; name a file".into()));
        }
        Location::Url(url) => {
            return Err(OpenError::Usage(format!("'{url}': this scheme is not known here")));
        }
    };
    layer::wrap(spec, medium, keys)
}
