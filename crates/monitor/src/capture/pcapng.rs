//! Writes pcapng.
//!
//! One section with an interface description for each (interface, link type) that occurs; times in nanoseconds. When
//! the table of interfaces is full, a new section begins, so that memory stays bounded. Comments are escaped to
//! printable ASCII: what packets say never reaches the terminal of a reader of the file.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use super::container::Frame;
use crate::limits::{COMMENT_BYTES_MAX, COMMENTS_PER_FRAME_MAX, WRITTEN_INTERFACES_MAX};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED: u32 = 6;

const COMMENT: u16 = 1;
const APPLICATION: u16 = 4;
const UNIT: u16 = 9;
/// 10^-9 seconds.
const NANOSECONDS: u8 = 9;

/// Writes frames of a capture with comments. Interfaces keep their link types, not their names.
pub struct Writer<W: Write>(Blocks<W>);

impl<W: Write> Writer<W> {
    /// `output` gets many small writes: give it a buffer.
    pub fn new(output: W) -> io::Result<Self> {
        Ok(Self(Blocks::new(output)?))
    }

    /// At most [`COMMENTS_PER_FRAME_MAX`] comments are written, of [`COMMENT_BYTES_MAX`] each.
    pub fn write(&mut self, frame: &Frame<'_>, comments: &[String]) -> io::Result<()> {
        let interface =
            Interface { index: frame.interface, link_type: frame.link_type, snap_bytes: frame.snap_bytes };
        self.0.frame(interface, frame.at_ns, frame.original_bytes, &[frame.bytes], comments)
    }

    /// Flushes and returns the output.
    pub fn finish(self) -> io::Result<W> {
        self.0.finish()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Interface {
    pub(super) index: u32,
    pub(super) link_type: u16,
    pub(super) snap_bytes: u32,
}

pub(super) struct Blocks<W: Write> {
    output: W,
    interfaces: HashMap<Interface, u32>,
    /// Of the frame before, which is mostly of the same interface.
    last: Option<(Interface, u32)>,
    /// Head and options of the block that is written.
    head: Vec<u8>,
    options: Vec<u8>,
}

impl<W: Write> Blocks<W> {
    pub(super) fn new(output: W) -> io::Result<Self> {
        let mut blocks =
            Self { output, interfaces: HashMap::new(), last: None, head: Vec::new(), options: Vec::new() };
        blocks.section()?;
        Ok(blocks)
    }

    /// One frame, whose captured bytes are the concatenation of `parts`.
    pub(super) fn frame(
        &mut self,
        interface: Interface,
        at_ns: u64,
        original_bytes: u32,
        parts: &[&[u8]],
        comments: &[String],
    ) -> io::Result<()> {
        let interface = self.interface(interface)?;
        let captured: usize = parts.iter().map(|part| part.len()).sum();
        let captured_bytes = u32::try_from(captured).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let padding = captured.next_multiple_of(4) - captured;
        self.options.clear();
        if !comments.is_empty() {
            self.comments(comments);
        }
        let length = u32::try_from(32 + captured + padding + self.options.len())
            .map_err(|_| io::ErrorKind::FileTooLarge)?;
        self.head.clear();
        for word in [
            ENHANCED,
            length,
            interface,
            (at_ns >> 32) as u32,
            at_ns as u32,
            captured_bytes,
            original_bytes.max(captured_bytes),
        ] {
            self.head.extend(word.to_le_bytes());
        }
        self.output.write_all(&self.head)?;
        for part in parts {
            self.output.write_all(part)?;
        }
        self.output.write_all(&[0; 3][..padding])?;
        self.output.write_all(&self.options)?;
        self.output.write_all(&length.to_le_bytes())
    }

    pub(super) fn finish(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }

    fn comments(&mut self, comments: &[String]) {
        for comment in comments.iter().take(COMMENTS_PER_FRAME_MAX) {
            option(&mut self.options, COMMENT, printable(comment).as_bytes());
        }
        if let Some(more @ 1..) = comments.len().checked_sub(COMMENTS_PER_FRAME_MAX) {
            option(&mut self.options, COMMENT, format!("and {more} more").as_bytes());
        }
        self.options.extend([0; 4]);
    }

    fn section(&mut self) -> io::Result<()> {
        self.interfaces.clear();
        self.last = None;
        let mut body = Vec::new();
        body.extend(0x1a2b_3c4d_u32.to_le_bytes());
        // Version 1.0; the length of the section is not known.
        body.extend([1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        option(&mut body, APPLICATION, concat!("hikyaku ", env!("CARGO_PKG_VERSION")).as_bytes());
        body.extend([0; 4]);
        self.block(SECTION, &body)
    }

    /// The number of `interface` in the section, which is described if it is new.
    fn interface(&mut self, interface: Interface) -> io::Result<u32> {
        if let Some((last, number)) = self.last
            && last == interface
        {
            return Ok(number);
        }
        let number = match self.interfaces.get(&interface) {
            Some(number) => *number,
            None => {
                if self.interfaces.len() >= WRITTEN_INTERFACES_MAX {
                    self.section()?;
                }
                let number = self.interfaces.len() as u32;
                self.describe(interface)?;
                self.interfaces.insert(interface, number);
                number
            }
        };
        self.last = Some((interface, number));
        Ok(number)
    }

    fn describe(&mut self, interface: Interface) -> io::Result<()> {
        let mut body = Vec::new();
        body.extend(interface.link_type.to_le_bytes());
        body.extend([0; 2]);
        body.extend(interface.snap_bytes.to_le_bytes());
        option(&mut body, UNIT, &[NANOSECONDS]);
        body.extend([0; 4]);
        self.block(INTERFACE, &body)
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        debug_assert!(body.len().is_multiple_of(4));
        let length = (body.len() as u32 + 12).to_le_bytes();
        self.output.write_all(&kind.to_le_bytes())?;
        self.output.write_all(&length)?;
        self.output.write_all(body)?;
        self.output.write_all(&length)
    }
}

/// Appends one option; `value` is shorter than 64 KiB.
fn option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    to.extend(code.to_le_bytes());
    to.extend((value.len() as u16).to_le_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// `text` in printable ASCII, with other characters as `\u{..}`; cut after [`COMMENT_BYTES_MAX`].
fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if out.len() >= COMMENT_BYTES_MAX {
            out.push_str("...");
            break;
        }
        if character == ' ' || character.is_ascii_graphic() {
            out.push(character);
        } else {
            write!(out, "{}", character.escape_unicode()).expect("a string takes everything");
        }
    }
    out
}

const _: () = assert!(COMMENT_BYTES_MAX + 16 < u16::MAX as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_printable_ascii() {
        let cases = [
            ("R2T offset 0", "R2T offset 0"),
            ("a\x1b[31m\n\u{202e}é", "a\\u{1b}[31m\\u{a}\\u{202e}\\u{e9}"),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(printable(text), expected);
        }
        let long = printable(&"\u{202e}".repeat(COMMENT_BYTES_MAX));
        assert!(long.len() < COMMENT_BYTES_MAX + 16 && long.ends_with("..."));
    }
}
