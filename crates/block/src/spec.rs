//! The words that name storage everywhere: `ENDPOINT[,option=value...]`.

use std::path::PathBuf;

use thiserror::Error;

use crate::{parse_size, size::parse_rate};

/// Where the storage is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// Regular file or block device.
    File(PathBuf),
    /// Standard input or output.
    Stdio,
    /// Memory of this process.
    Memory {
        /// Bytes.
        size: u64,
    },
    /// Discards writes, reads zeroes.
    Null {
        /// Bytes.
        size: u64,
    },
    /// Reproducible data.
    Pattern {
        /// Bytes.
        size: u64,
        /// Different seeds give different data.
        seed: u64,
    },
    /// A URL with a scheme that another crate knows (`iscsi://…`).
    Url(String),
}

/// A parsed endpoint: a location and its options in the order given (the leftmost layer nearest the storage).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// Where.
    pub location: Location,
    /// `name` or `name=value`, in order.
    pub options: Vec<(String, Option<String>)>,
}

/// What is wrong with the words.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct SpecError(pub String);

impl Spec {
    /// Parses `ENDPOINT[,option=value...]`. A comma inside a path or value is doubled.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let mut parts = split_commas(text).into_iter();
        let location = parse_location(&parts.next().unwrap_or_default())?;
        let options = parts
            .map(|option| match option.split_once('=') {
                Some(("", _)) => Err(SpecError("an option has no name".into())),
                Some((name, value)) => Ok((name.to_owned(), Some(value.to_owned()))),
                None if option.is_empty() => {
                    Err(SpecError("an option is empty; write a comma that belongs to a path twice".into()))
                }
                None => Ok((option, None)),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { location, options })
    }

    /// The last value given for `name`, `Some("")` for a bare word.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.options.iter().rev().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_deref().unwrap_or(""))
    }

    /// Whether the bare word `name` (or `name=yes`) was given; `=no` takes it back.
    pub fn flag(&self, name: &str) -> Result<bool, SpecError> {
        match self.get(name) {
            None | Some("no" | "false" | "off") => Ok(false),
            Some("" | "yes" | "true" | "on") => Ok(true),
            Some(other) => Err(SpecError(format!("'{name}={other}': say {name} or {name}=no"))),
        }
    }

    /// The value of a size option.
    pub fn size(&self, name: &str) -> Result<Option<u64>, SpecError> {
        let parse = |text| parse_size(text).map_err(|error| SpecError(format!("option {name}: {error}")));
        self.get(name).map(parse).transpose()
    }

    /// The value of a rate option.
    pub fn rate(&self, name: &str) -> Result<Option<u64>, SpecError> {
        let parse = |text| parse_rate(text).map_err(|error| SpecError(format!("option {name}: {error}")));
        self.get(name).map(parse).transpose()
    }

    /// A block size option: 512 or 4096.
    pub fn block_size(&self, name: &str) -> Result<Option<u32>, SpecError> {
        match self.size(name)? {
            None => Ok(None),
            Some(size @ (512 | 4096)) => Ok(Some(size as u32)),
            Some(other) => Err(SpecError(format!("option {name}: {other} is not 512 or 4096"))),
        }
    }

    /// Refuses options outside `known`, naming those that exist.
    pub fn only(&self, known: &[&str]) -> Result<(), SpecError> {
        match self.options.iter().find(|(name, _)| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some((name, _)) => {
                Err(SpecError(format!("unknown option '{name}'; known here: {}", known.join(", "))))
            }
        }
    }
}

fn split_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != ',' {
            parts.last_mut().expect("starts with one").push(c);
        } else if chars.next_if_eq(&',').is_some() {
            parts.last_mut().expect("starts with one").push(',');
        } else {
            parts.push(String::new());
        }
    }
    parts
}

fn parse_location(text: &str) -> Result<Location, SpecError> {
    let sized = |rest: &str| parse_size(rest).map_err(|error| SpecError(format!("'{text}': {error}")));
    if text.is_empty() {
        return Err(SpecError("an endpoint is needed: a path, iscsi://…, mem:SIZE, null:SIZE …".into()));
    }
    if text == "-" {
        return Ok(Location::Stdio);
    }
    if let Some(path) = text.strip_prefix("file:") {
        return Ok(Location::File(path.into()));
    }
    if let Some(rest) = text.strip_prefix("mem:") {
        return Ok(Location::Memory { size: sized(rest)? });
    }
    if let Some(rest) = text.strip_prefix("null:") {
        return Ok(Location::Null { size: sized(rest)? });
    }
    if let Some(rest) = text.strip_prefix("pattern:") {
        let (size, seed) = rest.split_once(':').unwrap_or((rest, "0"));
        let seed = seed
            .parse()
            .map_err(|_| SpecError(format!("'{text}': the seed '{seed}' is not a whole number")))?;
        return Ok(Location::Pattern { size: sized(size)?, seed });
    }
    if text.contains("://") {
        return Ok(Location::Url(text.to_owned()));
    }
    Ok(Location::File(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations() {
        for (text, location) in [
            ("/dev/sda", Location::File("/dev/sda".into())),
            ("file:mem:1", Location::File("mem:1".into())),
            ("-", Location::Stdio),
            ("mem:1M", Location::Memory { size: 1 << 20 }),
            ("null:1k", Location::Null { size: 1024 }),
            ("pattern:4K:7", Location::Pattern { size: 4096, seed: 7 }),
            ("iscsi://h/iqn.2000-01.x:y/0", Location::Url("iscsi://h/iqn.2000-01.x:y/0".into())),
            ("a,,b", Location::File("a,b".into())),
        ] {
            assert_eq!(Spec::parse(text).map(|spec| spec.location), Ok(location), "{text}");
        }
        for text in ["", "mem:", "mem:x", "pattern:1:y", "a,", "a,=1"] {
            assert!(Spec::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn options() {
        let spec = Spec::parse("x.img,ro,size=1M,delay=2ms,a=b,,c").unwrap();
        assert_eq!(spec.flag("ro"), Ok(true));
        assert_eq!(spec.flag("create"), Ok(false));
        assert_eq!(spec.size("size"), Ok(Some(1 << 20)));
        assert_eq!(spec.get("a"), Some("b,c"));
        assert!(spec.only(&["ro", "size", "delay", "a"]).is_ok());
        assert!(spec.only(&["ro", "size", "delay"]).unwrap_err().0.contains("unknown option 'a'"));
    }
}
