//! The writes of an empty volume.

use super::keys::Keys;
use super::map::Groups;
use super::{Layout, OPERATION_BYTES_MAX, PAGE_BYTES, Superblock};

/// Yields offsets and bytes; every map page, and both copies of the superblock last. The caller writes those before a
/// flush, then makes the header durable. Contexts and data are not written: what the storage held there does not matter.
pub fn format(layout: &Layout, keys: &Keys, blocks: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
    assert!(0 < blocks && blocks <= layout.capacity, "a size that the layout has room for");
    let superblock = Superblock::new(blocks, layout.capacity);
    let epoch = keys.of_epoch(layout, superblock.epoch);
    let layout = *layout;
    let mut copies = vec![0; 2 * PAGE_BYTES];
    let emitted = superblock.emit(keys);
    copies[..emitted.len()].copy_from_slice(&emitted);
    let groups = Groups::new(0);
    let step = OPERATION_BYTES_MAX / PAGE_BYTES;
    let map = (0..layout.map_pages()).step_by(step).map(move |first| {
        let pages = first..layout.map_pages().min(first + step as u64);
        let bytes = pages.flat_map(|page| groups.emit_page(&epoch, page)).collect();
        (layout.map_offset(first), bytes)
    });
    map.chain([(layout.superblock(0), copies)])
}
