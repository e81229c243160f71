//! hikyaku: moves block data between disks.
fn main() {}
