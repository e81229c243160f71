//! The families of interoperability tests, one module per peer or subject.

mod attack;
mod bad_input;
mod boot;
mod cli_contract;
mod conformance;
mod copy_matrix;
mod foreign;
mod fuzz;
mod guest;
mod kernel;
mod kill;
mod libiscsi_tools;
mod mover;
mod mutants;
mod nbd;
mod nfs;
mod passthrough;
mod qemu_img;
mod seal_contract;
mod seal_model;
mod sealed;
mod sessions;
mod sim;
mod since;
mod tgt;
mod torture;
mod volumes;
mod xcopy;

use anyhow::Result;

use crate::harness::{Cases, Context};

/// One family.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// Runs its cases; an error is one more failed case, `family`.
    pub(crate) examine: fn(&Context, &mut Cases) -> Result<()>,
    /// Can examine tgt in our place (`--against tgt`).
    pub(crate) any_target: bool,
}

/// Families that take too long for every change, unless they are asked for by name.
pub(crate) const NIGHTLY: &[&str] = &["mutants", "seal-model", "passthrough", "volumes", "nfs"];

/// All families, cheapest first.
pub(crate) const FAMILIES: &[Family] = &[
    Family {
        name: "cli-contract",
        about: "exit codes, messages, JSON and refusals of the command line",
        examine: cli_contract::examine,
        any_target: false,
    },
    Family {
        name: "sim",
        about: "simulated cuts, kills and lost connections of initiator, target and mover",
        examine: sim::examine,
        any_target: false,
    },
    Family {
        name: "libiscsi-tools",
        about: "iscsi-ls, iscsi-inq, iscsi-readcapacity16, iscsi-swp against the target",
        examine: libiscsi_tools::examine,
        any_target: true,
    },
    Family {
        name: "qemu-img",
        about: "a file system through qemu-img and back; qemu-io patterns, digests, CHAP",
        examine: qemu_img::examine,
        any_target: true,
    },
    Family {
        name: "tgt",
        about: "our copy to and from tgt, with and without CHAP",
        examine: tgt::examine,
        any_target: false,
    },
    Family {
        name: "nbd",
        about: "our NBD client against qemu-nbd and nbdkit: copies, holes, bitmaps, errors, killed servers",
        examine: nbd::examine,
        any_target: false,
    },
    Family {
        name: "copy-matrix",
        about: "endpoint pairs times copy options, byte-compared",
        examine: copy_matrix::examine,
        any_target: false,
    },
    Family {
        name: "since",
        about: "copy --since a clone or a snapshot, on xfs and btrfs, under changes of every kind",
        examine: since::examine,
        any_target: false,
    },
    Family {
        name: "kill",
        about: "signals and sudden death of either side",
        examine: kill::examine,
        any_target: false,
    },
    Family {
        name: "mover",
        about: "copies with a journal, interrupted at every step, on storage that fails, fills up, vanishes or is swapped",
        examine: mover::examine,
        any_target: false,
    },
    Family {
        name: "xcopy",
        about: "the target copies between its own LUNs: exact, counted, refused, aborted",
        examine: xcopy::examine,
        any_target: false,
    },
    Family {
        name: "sessions",
        about: "many sessions at once, some of them busy: memory, fairness, longest command",
        examine: sessions::examine,
        any_target: false,
    },
    Family {
        name: "torture",
        about: "acknowledged data under kill -9, cut connections and power cuts, judged by a history",
        examine: torture::examine,
        any_target: false,
    },
    Family {
        name: "bad-input",
        about: "garbage, truncated and mutated PDUs while other sessions work",
        examine: bad_input::examine,
        any_target: true,
    },
    Family {
        name: "sealed",
        about: "sealed sessions under attack: on the way, at the door, in masses, and by those who have a key",
        examine: sealed::examine,
        any_target: false,
    },
    Family {
        name: "attack",
        about: "ways past the promises of docs/internals/trust.md: names, rights, claims, users, reloads, first contact, host",
        examine: attack::examine,
        any_target: false,
    },
    Family {
        name: "fuzz",
        about: "coverage-guided fuzzing of every parser and of whole sessions in both roles",
        examine: fuzz::examine,
        any_target: false,
    },
    Family {
        name: "mutants",
        about: "defects on demand, each of which the simulator or the torture test must find",
        examine: mutants::examine,
        any_target: false,
    },
    Family {
        name: "seal-model",
        about: "the model of SEAL/1's handshake and downgrade rules, checked by Verifpal",
        examine: seal_model::examine,
        any_target: false,
    },
    Family {
        name: "conformance",
        about: "libiscsi's iscsi-test-cu on thin, removable and read-only LUNs",
        examine: conformance::examine,
        any_target: true,
    },
    Family {
        name: "kernel",
        about: "the stock Linux initiator (open-iscsi) and target (LIO) in an emulated machine",
        examine: kernel::examine,
        any_target: true,
    },
    Family {
        name: "passthrough",
        about: "copies by a disk's own commands in an emulated machine: exact, counted, refused, failing disks",
        examine: passthrough::examine,
        any_target: false,
    },
    Family {
        name: "volumes",
        about: "LVM in an emulated machine: copy --since of thin volumes, and snapshots that never stay",
        examine: volumes::examine,
        any_target: false,
    },
    Family {
        name: "nfs",
        about: "copy --offload where the Linux NFS server copies, in an emulated machine: exact, counted",
        examine: nfs::examine,
        any_target: false,
    },
    Family {
        name: "boot",
        about: "a machine that boots from our LUN by iPXE and by OVMF",
        examine: boot::examine,
        any_target: false,
    },
    Family {
        name: "foreign",
        about: "ext4, xfs, SQLite and PostgreSQL on our LUN under cut connections, killed targets and power cuts",
        examine: foreign::examine,
        any_target: false,
    },
];
