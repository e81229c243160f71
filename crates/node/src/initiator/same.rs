//! Whether the disk that a new session finds is the one of before.

use block::Capability;

use super::setup::Disk;

/// Compares the disk of before with that of `now`. The error is the evidence that it is another one, or has lost data.
///
/// A disk may grow while it is connected. Without a serial number and a designator, its size is the only evidence.
pub(super) fn check(before: (&Disk, &Capability), now: (&Disk, &Capability)) -> Result<(), String> {
    let key = |(disk, capability): (&Disk, &Capability)| {
        (capability.block_size, disk.designator.clone(), disk.serial.clone())
    };
    if key(before) != key(now) {
        return Err("another disk answers at this address than before".to_owned());
    }
    let (old, new) = (before.1.size_bytes, now.1.size_bytes);
    let is_named = now.0.designator.is_some() || now.0.serial.is_some();
    if new < old {
        return Err(format!("the disk at this address has {new} bytes and had {old} before"));
    }
    if new > old && !is_named {
        return Err(format!(
            "the disk at this address has {new} bytes and had {old} before, and no serial number or designator that \
             shows that it is the same"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::initiator::command::unknown_capability;

    #[test]
    fn a_disk_of_another_size_is_the_same_only_if_it_has_grown_and_has_a_name() {
        let disk = |serial: &str, designator: &str| {
            let named = |text: &str| (!text.is_empty()).then(|| text.to_owned());
            Disk { serial: named(serial), designator: named(designator), ..Disk::default() }
        };
        let of = |size_bytes, block_size| Capability { size_bytes, block_size, ..unknown_capability() };
        let before = of(8192, 512);
        for (was, is, now, evidence) in [
            (disk("1", "naa.1"), disk("1", "naa.1"), of(8192, 512), None),
            (disk("", ""), disk("", ""), of(8192, 512), None),
            (disk("1", ""), disk("1", ""), of(16384, 512), None),
            (disk("", "naa.1"), disk("", "naa.1"), of(16384, 512), None),
            (disk("", ""), disk("", ""), of(16384, 512), Some("no serial number")),
            (disk("1", "naa.1"), disk("1", "naa.1"), of(4096, 512), Some("has 4096 bytes and had 8192")),
            (disk("", ""), disk("", ""), of(4096, 512), Some("has 4096 bytes and had 8192")),
            (disk("1", "naa.1"), disk("2", "naa.1"), of(8192, 512), Some("another disk")),
            (disk("1", "naa.1"), disk("1", "naa.2"), of(8192, 512), Some("another disk")),
            (disk("1", "naa.1"), disk("", ""), of(8192, 512), Some("another disk")),
            (disk("1", "naa.1"), disk("1", "naa.1"), of(8192, 4096), Some("another disk")),
        ] {
            let found = check((&was, &before), (&is, &now));
            match evidence {
                None => assert_eq!(found, Ok(())),
                Some(words) => assert!(found.as_ref().is_err_and(|text| text.contains(words)), "{found:?}"),
            }
        }
    }
}
