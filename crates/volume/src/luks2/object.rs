//! Typed access to the JSON of a header, with errors that name the place.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value};

use super::error::Refusal;
use super::hash::Hash;

/// Most values of a header's JSON: parsing takes up to a hundred bytes of memory for each.
const JSON_VALUES_MAX: usize = 1 << 16;

/// Parses a JSON area: an object, then zero bytes to the end of the area (LUKS2 on-disk format §3).
pub(super) fn parse(area: &[u8]) -> Result<Map<String, Value>, Refusal> {
    let end = area.iter().position(|byte| *byte == 0).ok_or_else(|| malformed("it fills its area"))?;
    let (text, rest) = area.split_at(end);
    if rest.iter().any(|byte| *byte != 0) {
        return Err(malformed("bytes follow it"));
    }
    if text.iter().filter(|byte| b",[{".contains(byte)).count() > JSON_VALUES_MAX {
        return Err(malformed("it has too many values"));
    }
    serde_json::from_slice(text)
        .map_err(|error| malformed(format!("line {}, column {}", error.line(), error.column())))
}

pub(super) fn malformed(what: impl Into<String>) -> Refusal {
    Refusal::Malformed(what.into())
}

/// An object and its place in the JSON, such as `keyslots.0.kdf`.
#[derive(Clone)]
pub(super) struct Object<'a> {
    place: String,
    map: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    pub(super) fn root(map: &'a Map<String, Value>) -> Self {
        Self { place: String::new(), map }
    }

    fn place(&self, name: &str) -> String {
        if self.place.is_empty() { name.to_owned() } else { format!("{}.{name}", self.place) }
    }

    fn missing(&self, name: &str, what: &str) -> Refusal {
        malformed(format!("{} is not {what}", self.place(name)))
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.map.contains_key(name)
    }

    pub(super) fn object(&self, name: &str) -> Result<Self, Refusal> {
        let map =
            self.map.get(name).and_then(Value::as_object).ok_or_else(|| self.missing(name, "an object"))?;
        Ok(Self { place: self.place(name), map })
    }

    /// The members of an object whose names are numbers below `limit`, which are objects.
    pub(super) fn numbered(&self, name: &str, limit: u8) -> Result<Vec<(u8, Self)>, Refusal> {
        let all = self.object(name)?;
        let member = |key: &String| {
            let number =
                id(key, limit).ok_or_else(|| malformed(format!("{name} has a name that is no number")))?;
            Ok((number, all.object(key)?))
        };
        all.map.keys().map(member).collect()
    }

    pub(super) fn text(&self, name: &str) -> Result<&'a str, Refusal> {
        self.map.get(name).and_then(Value::as_str).ok_or_else(|| self.missing(name, "a string"))
    }

    /// A number of 64 bits, which the format writes as a decimal string.
    pub(super) fn number(&self, name: &str) -> Result<u64, Refusal> {
        decimal(self.text(name)?).ok_or_else(|| self.missing(name, "a decimal number"))
    }

    pub(super) fn integer(&self, name: &str) -> Result<u32, Refusal> {
        let integer = self.map.get(name).and_then(Value::as_u64).and_then(|value| value.try_into().ok());
        integer.ok_or_else(|| self.missing(name, "an integer"))
    }

    /// A number below `limit`, as a string.
    pub(super) fn id(&self, name: &str, limit: u8) -> Result<u8, Refusal> {
        id(self.text(name)?, limit).ok_or_else(|| self.missing(name, "a number"))
    }

    pub(super) fn hash(&self, name: &str) -> Result<Hash, Refusal> {
        let text = self.text(name)?;
        Hash::from_name(text).ok_or_else(|| Refusal::Hash(super::error::quoted(text)))
    }

    pub(super) fn base64(&self, name: &str) -> Result<Vec<u8>, Refusal> {
        BASE64_STANDARD.decode(self.text(name)?).map_err(|_| self.missing(name, "base64"))
    }

    pub(super) fn salt<const N: usize>(&self, name: &str) -> Result<[u8; N], Refusal> {
        let bytes = self.base64(name)?;
        bytes.try_into().map_err(|_| self.missing(name, &format!("{N} bytes in base64")))
    }

    pub(super) fn texts(&self, name: &str) -> Result<Vec<&'a str>, Refusal> {
        let array = self.map.get(name).and_then(Value::as_array);
        let texts = array.and_then(|array| array.iter().map(Value::as_str).collect());
        texts.ok_or_else(|| self.missing(name, "an array of strings"))
    }

    /// Numbers below `limit`, which the array has as strings; sorted, each once.
    pub(super) fn ids(&self, name: &str, limit: u8) -> Result<Vec<u8>, Refusal> {
        let ids = self.texts(name)?.into_iter().map(|text| id(text, limit)).collect::<Option<BTreeSet<_>>>();
        Ok(ids.ok_or_else(|| self.missing(name, "an array of numbers"))?.into_iter().collect())
    }
}

/// A number as the format writes it: digits only.
fn decimal(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits)
}

fn id(text: &str, limit: u8) -> Option<u8> {
    let number = u8::try_from(decimal(text)?).ok().filter(|number| *number < limit)?;
    (text == number.to_string()).then_some(number)
}

pub(super) fn to_base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}
