//! A LUN as a medium that threads share. Each thread attaches through a session of its own.

use std::sync::Arc;

use block::remote::WriteCache;
use block::{Endpoint, Medium, OpenError};
use io::Io;

use super::endpoint;
use super::options::{Options, random_isid};
use super::url::Url;

#[derive(Clone, Debug)]
pub struct IscsiMedium {
    pub(super) url: Url,
    pub(super) options: Options,
    pub(super) read_only: bool,
    pub(super) cache: Arc<WriteCache>,
}

impl IscsiMedium {
    /// The LUN that `url` names; fails if `url` has no target name or no LUN.
    pub fn new(url: Url, options: Options, read_only: bool) -> Result<Self, OpenError> {
        if url.target.is_none() || url.lun.is_none() {
            let text = format!("{url} names no LUN; list them with: hikyaku ls {url}");
            return Err(OpenError::Usage(text));
        }
        options.login(url.target.as_deref(), random_isid())?;
        Ok(Self { url, options, read_only, cache: Arc::default() })
    }
}

impl Medium for IscsiMedium {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        endpoint::open(io, self)
    }

    fn name(&self) -> String {
        self.url.to_string()
    }
}
