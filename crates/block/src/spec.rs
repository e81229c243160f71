//! The syntax that names storage on every command line: `ENDPOINT[,option=value...]`.

use std::path::PathBuf;

use thiserror::Error;

use crate::{parse_size, size::parse_rate};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    File(PathBuf),
    Stdio,
    Memory {
        size: u64,
    },
    /// Discards writes and reads as zeroes.
    Null {
        size: u64,
    },
    Pattern {
        size: u64,
        seed: u64,
    },
    /// A URL whose scheme another crate handles (`iscsi://…`).
    Url(String),
}

/// A parsed endpoint: a location and its options, in the order given (the leftmost layer is nearest to the storage).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    pub location: Location,
    /// `name` or `name=value`, in the order given.
    pub options: Vec<(String, Option<String>)>,
}

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

    /// The last value given for `name`; `Some("")` if `name` was given without a value.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.options.iter().rev().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_deref().unwrap_or(""))
    }

    /// Whether `name` (or `name=yes`) was given; a later `name=no` cancels it.
    pub fn flag(&self, name: &str) -> Result<bool, SpecError> {
        match self.get(name) {
            None | Some("no" | "false" | "off") => Ok(false),
            Some("" | "yes" | "true" | "on") => Ok(true),
            Some(other) => Err(SpecError(format!("'{name}={other}': say {name} or {name}=no"))),
        }
    }

    /// The last value given for `name`, in bytes.
    pub fn size(&self, name: &str) -> Result<Option<u64>, SpecError> {
        let parse = |text| parse_size(text).map_err(|error| SpecError(format!("option {name}: {error}")));
        self.get(name).map(parse).transpose()
    }

    /// The last value given for `name`, in bytes per second.
    pub fn rate(&self, name: &str) -> Result<Option<u64>, SpecError> {
        let parse = |text| parse_rate(text).map_err(|error| SpecError(format!("option {name}: {error}")));
        self.get(name).map(parse).transpose()
    }

    /// The last value given for `name`: 512 or 4096.
    pub fn block_size(&self, name: &str) -> Result<Option<u32>, SpecError> {
        match self.size(name)? {
            None => Ok(None),
            Some(size @ (512 | 4096)) => Ok(Some(size as u32)),
            Some(other) => Err(SpecError(format!("option {name}: {other} is not 512 or 4096"))),
        }
    }

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
