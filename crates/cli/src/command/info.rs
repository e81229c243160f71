//! `info`: prints the properties of an endpoint.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use block::{Capability, OpenOptions};
use host::{Entry, Image, Kernel, Node, number_text};
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::endpoint::{self, Named};
use crate::error::{Exit, Failure};
use crate::{advice, output, protection, units};

/// Show what an endpoint is, holds and can do
///
/// Size, blocks, abilities, what it holds; of a device or file also its users and which disks it lies on; of an image file the size
/// of its disk and how to open that; of a LUN also what was negotiated and its identity.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  hikyaku info disk.img
  hikyaku info /dev/sdx
  hikyaku info iscsi://host/iqn.2026-11.example:disks/0 --json")]
pub(crate) struct Args {
    /// What to look at; it is opened for reading only
    #[arg(value_name = "ENDPOINT")]
    endpoint: String,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, Failure> {
    let mut named = Named::parse(context, &args.endpoint, &[])?;
    let image = ImageFile::of(context, &named);
    if image.is_some() {
        named.set("format", "raw");
    }
    let mut io = job::event_loop()?;
    let options = OpenOptions { writable: false, request_alignment: 512, allow_in_use: true };
    let medium = named.open(context, &options)?;
    let mut endpoint = endpoint::attach(&mut io, &[(&named, &medium)])?.remove(0);
    let (capability, facts) = (endpoint.capability().clone(), endpoint.inspect().facts());
    let holds = job::refusals::probe(&mut io, &mut *endpoint);
    let local = named.path().map(|path| Local::of(path, endpoint.inspect().disks()));
    job::close(&mut io, [endpoint]);
    if args.json {
        let mut object = object(&named.text, &capability, &facts);
        object["holds"] = json!(holds.ok());
        object["image"] = image.map_or(Value::Null, |image| image.object());
        if let Some(local) = local {
            local.add_to(&mut object);
        }
        output::json(&object);
    } else {
        let mut rows = rows(&named.text, &capability, &facts, image.is_some());
        let row = |name: &str, value: String| (name.to_owned(), value);
        let holds = match holds {
            Ok(holds) if holds.is_empty() => "nothing known".to_owned(),
            Ok(holds) => holds.join(", "),
            Err(error) => format!("unknown: {error}"),
        };
        rows.push(row("holds", holds));
        rows.extend(image.iter().flat_map(ImageFile::rows).map(|(name, value)| row(name, value)));
        rows.extend(local.iter().flat_map(Local::rows).map(|(name, value)| row(name, value)));
        output::line(&output::pairs(&rows, output::columns()));
    }
    Ok(Exit::Done)
}

fn object(name: &str, capability: &Capability, facts: &[(&'static str, String)]) -> Value {
    let named: Map<String, Value> =
        facts.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    json!({
        "schema": output::SCHEMA,
        "endpoint": name,
        "size_bytes": capability.size_bytes,
        "odd_bytes": odd_bytes(capability),
        "block_size": capability.block_size,
        "physical_block_size": capability.physical_block_size,
        "granularity": capability.granularity,
        "max_transfer_bytes": capability.max_transfer_bytes,
        "optimal_transfer_bytes": capability.optimal_transfer_bytes,
        "queue_depth": capability.queue_depth,
        "discard": capability.discard,
        "write_zeroes": capability.write_zeroes,
        "volatile_cache": capability.volatile_cache,
        "rotational": capability.rotational,
        "read_only": facts.iter().find(|(name, _)| *name == "mode").map(|(_, mode)| mode == "ro"),
        "protection": protection::of(facts),
        "facts": named,
        "values": values(facts),
    })
}

/// Facts that are numbers, and their names in `values`, with the unit where the standard's name does not imply bytes.
const NUMBERS: [(&str, &str); 8] = [
    ("MaxRecvDataSegmentLength", "MaxRecvDataSegmentLength"),
    ("target's MaxRecvDataSegmentLength", "target_MaxRecvDataSegmentLength"),
    ("MaxBurstLength", "MaxBurstLength"),
    ("FirstBurstLength", "FirstBurstLength"),
    ("MaxOutstandingR2T", "MaxOutstandingR2T"),
    ("ErrorRecoveryLevel", "ErrorRecoveryLevel"),
    ("maximum transfer length", "transfer_blocks_max"),
    ("maximum unmap LBA count", "unmap_blocks_max"),
];
/// Facts that are `true` and `false`, or RFC 7143's `Yes` and `No`.
const FLAGS: [&str; 5] = ["InitialR2T", "ImmediateData", "FUA", "WCE", "LBPRZ"];

/// The facts that are numbers or flags, as such.
fn values(facts: &[(&'static str, String)]) -> Value {
    let value = |(name, text): &(&'static str, String)| {
        if FLAGS.contains(name) {
            return Some(((*name).to_owned(), json!(matches!(text.as_str(), "Yes" | "true"))));
        }
        let (_, named) = NUMBERS.iter().find(|(fact, _)| fact == name)?;
        let number = text.split(' ').next()?.parse::<u64>().ok()?;
        Some(((*named).to_owned(), json!(number)))
    };
    Value::Object(facts.iter().filter_map(value).collect())
}

/// Bytes after the last whole block.
fn odd_bytes(capability: &Capability) -> u64 {
    capability.size_bytes.checked_rem(capability.block_size.into()).unwrap_or(0)
}

/// A file in an image format. It is described as the file that it is, with the size of its disk and how to open that.
struct ImageFile {
    image: Image,
    hint: String,
}

impl ImageFile {
    /// `None` if the endpoint is no such file, or if `format=` says how to take it.
    fn of(context: &Context, named: &Named) -> Option<Self> {
        let path = named.path().filter(|_| named.spec.get("format").is_none())?;
        let kind = path.metadata().ok()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return None;
        }
        let image = Image::of(&block::open_input(path).ok()?)?;
        Some(Self { image, hint: advice::image(path, image.format, false, &named.text, &context.arguments) })
    }

    fn object(&self) -> Value {
        json!({ "format": self.image.format, "disk_bytes": self.image.disk_bytes, "hint": self.hint })
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let disk = match self.image.disk_bytes {
            Some(bytes) => format!("a disk of {} ({bytes} bytes)", units::bytes(bytes)),
            None => "a disk of unknown size".to_owned(),
        };
        let format = self.image.format;
        let mut rows = vec![("image", format!("{format}, {disk}, which is not interpreted; to open it:"))];
        rows.extend(self.hint.lines().map(|line| ("", line.trim().to_owned())));
        rows
    }
}

/// Facts about a file or device of this machine.
struct Local {
    /// `None` for a file.
    device: Option<Entry>,
    /// Device node names, or device numbers without a node.
    disks: Vec<String>,
    users: Vec<String>,
}

impl Local {
    fn of(path: &Path, disks: &[u64]) -> Self {
        let kernel = Kernel::default();
        let device = match Node::of(path) {
            Some(Node::Device(number)) => kernel.entry(number),
            _ => None,
        };
        let name = |disk: &u64| kernel.entry(*disk).map_or_else(|| number_text(*disk), |entry| entry.name);
        Self { device, disks: disks.iter().map(name).collect(), users: kernel.users(path) }
    }

    fn add_to(&self, object: &mut Value) {
        object["disks"] = json!(self.disks);
        object["users"] = json!(self.users);
        let Some(device) = &self.device else { return };
        let limits = &device.limits;
        object["device"] = json!({
            "name": device.name,
            "number": number_text(device.number),
            "diskseq": device.diskseq,
            "read_only": device.read_only,
            "partition_of": device.partition_of,
            "slaves": device.slaves,
            "holders": device.holders,
            "backing_file": device.backing_file.as_ref().map(|file| file.display().to_string()),
            "transfer_bytes_max": limits.transfer_bytes_max,
            "segments_max": limits.segments_max,
            "segment_bytes_max": limits.segment_bytes_max,
            "discard_bytes_max": limits.discard_bytes_max,
            "write_zeroes_bytes_max": limits.write_zeroes_bytes_max,
        });
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = Vec::new();
        if let Some(device) = &self.device {
            let limits = &device.limits;
            let known = |value: Option<u64>| value.map_or("unknown".to_owned(), units::bytes);
            let diskseq = device.diskseq.map(|diskseq| format!(", diskseq {diskseq}")).unwrap_or_default();
            rows.push(("device", format!("{} ({}{diskseq})", device.name, number_text(device.number))));
            rows.push(("one request", known(limits.transfer_bytes_max)));
            let segments = limits.segments_max.map_or("unknown".to_owned(), |segments| segments.to_string());
            rows.push(("segments", format!("{segments} of {}", known(limits.segment_bytes_max))));
            rows.push(("one discard", units::bytes(limits.discard_bytes_max)));
            rows.push(("one zeroing", known(limits.write_zeroes_bytes_max)));
            rows.extend(device.partition_of.clone().map(|disk| ("partition of", disk)));
            rows.extend((!device.slaves.is_empty()).then(|| ("made of", device.slaves.join(", "))));
            rows.extend((!device.holders.is_empty()).then(|| ("held by", device.holders.join(", "))));
            rows.extend(
                device.backing_file.as_ref().map(|file| ("backing file", file.display().to_string())),
            );
        }
        rows.extend((!self.disks.is_empty()).then(|| ("disks", self.disks.join(", "))));
        rows.extend((!self.users.is_empty()).then(|| ("in use", self.users.join("; "))));
        rows
    }
}

fn rows(
    name: &str,
    capability: &Capability,
    facts: &[(&'static str, String)],
    is_image: bool,
) -> Vec<(String, String)> {
    let yes = |value: bool| if value { "yes" } else { "no" }.to_owned();
    let mut size = format!("{} ({} bytes)", units::bytes(capability.size_bytes), capability.size_bytes);
    match (capability.size_bytes, odd_bytes(capability)) {
        _ if is_image => {}
        (0, _) => size += ": empty; the option grow,size=SIZE makes a file larger",
        (_, 0) => {}
        (_, odd) => size += &format!(": the last {odd} do not fill a block, and `serve` leaves them out"),
    }
    let own = [
        ("endpoint", name.to_owned()),
        ("size", size),
        ("logical block", format!("{} bytes", capability.block_size)),
        ("physical block", format!("{} bytes", capability.physical_block_size)),
        ("optimal transfer", units::bytes(capability.optimal_transfer_bytes.into())),
        ("longest transfer", units::bytes(capability.max_transfer_bytes.into())),
        ("queue depth", capability.queue_depth.to_string()),
        ("discard", yes(capability.discard)),
        ("write zeroes", yes(capability.write_zeroes)),
        ("volatile cache", yes(capability.volatile_cache)),
        ("rotational", yes(capability.rotational)),
    ];
    own.into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .chain(facts.iter().map(|(name, value)| ((*name).to_owned(), value.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_flags_are_values() {
        let facts = [
            ("MaxBurstLength", "262144"),
            ("target's MaxRecvDataSegmentLength", "8192"),
            ("maximum transfer length", "16384 blocks"),
            ("InitialR2T", "No"),
            ("WCE", "true"),
            // A serial number stays text, whatever its characters.
            ("serial", "0123"),
        ];
        let facts = facts.map(|(name, text)| (name, text.to_owned()));
        let expected = json!({
            "MaxBurstLength": 262_144,
            "target_MaxRecvDataSegmentLength": 8192,
            "transfer_blocks_max": 16384,
            "InitialR2T": false,
            "WCE": true,
        });
        assert_eq!(values(&facts), expected);
    }
}
