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

use crate::{Cases, Context, Family, Tier};

/// The group of cases that take too long for a sample.
const FULL_ONLY: (&str, usize) = ("full", 0);

/// Concurrent work of numbered cases: in a full run that of the present case and that of the next number. Dropping work
/// that no case has taken must end it.
struct Ahead<T> {
    next: Option<(usize, Result<T>)>,
}

impl<T> Ahead<T> {
    fn new() -> Self {
        Self { next: None }
    }

    /// Returns the work of case `number` of `count`. A sample starts nothing ahead, because it leaves most numbers out.
    fn take(
        &mut self,
        context: &Context,
        number: usize,
        count: usize,
        start: impl Fn(usize) -> Result<T>,
    ) -> Result<T> {
        let started = self.next.take().filter(|(next, _)| *next == number);
        let work = started.map_or_else(|| start(number), |(_, work)| work);
        if context.tier == Tier::Full && number + 1 < count {
            self.next = Some((number + 1, start(number + 1)));
        }
        work
    }
}

type Examine = fn(&Context, &mut Cases) -> Result<()>;

const fn family(name: &'static str, examine: Examine) -> Family {
    Family { name, about: "", examine, any_target: false }
}

/// All families, cheapest first.
pub const FAMILIES: &[Family] = &[
    family("cli-contract", cli_contract::examine).about("exit codes, messages, JSON and refusals of the command line"),
    family("sim", sim::examine).about("simulated cuts, kills and lost connections of initiator, target and mover"),
    family("libiscsi-tools", libiscsi_tools::examine).about("iscsi-ls, iscsi-inq, iscsi-readcapacity16, iscsi-swp against the target")
    .of_any_target(),
    family("qemu-img", qemu_img::examine).about("a file system through qemu-img and back; qemu-io patterns, digests, CHAP")
    .of_any_target(),
    family("tgt", tgt::examine).about("our copy to and from tgt, with and without CHAP"),
    family("nbd", nbd::examine).about("our NBD client against qemu-nbd and nbdkit: copies, holes, bitmaps, errors, killed servers"),
    family("copy-matrix", copy_matrix::examine).about("endpoint pairs times copy options, byte-compared"),
    family("since", since::examine).about("copy --since a clone or a snapshot, on xfs and btrfs, under changes of every kind"),
    family("kill", kill::examine).about("signals and sudden death of either side"),
    family("mover", mover::examine).about("copies with a journal, interrupted at every step, on storage that fails, fills up, vanishes or is swapped"),
    family("xcopy", xcopy::examine).about("the target copies between its own LUNs: exact, counted, refused, aborted"),
    family("sessions", sessions::examine).about("many sessions at once, some of them busy: memory, fairness, longest command"),
    family("torture", torture::examine).about("acknowledged data under kill -9, cut connections and power cuts, judged by a history"),
    family("bad-input", bad_input::examine).about("garbage, truncated and mutated PDUs while other sessions work")
        .of_any_target(),
    family("sealed", sealed::examine).about("sealed sessions under attack: on the way, at the door, in masses, and by those who have a key"),
    family("attack", attack::examine).about("ways past the promises of docs/internals/trust.md: names, rights, claims, users, reloads, first contact, host"),
    family("fuzz", fuzz::examine).about("coverage-guided fuzzing of every parser and of whole sessions in both roles"),
    family("mutants", mutants::examine).about("defects on demand, each of which the simulator or the torture test must find"),
    family("seal-model", seal_model::examine).about("the model of SEAL/1's handshake and downgrade rules, checked by Verifpal"),
    family("conformance", conformance::examine).about("libiscsi's iscsi-test-cu on thin, removable and read-only LUNs")
    .of_any_target(),
    family("kernel", kernel::examine).about("the stock Linux initiator (open-iscsi) and target (LIO) in an emulated machine")
    .of_any_target(),
    family("passthrough", passthrough::examine).about("copies by a disk's own commands in an emulated machine: exact, counted, refused, failing disks"),
    family("volumes", volumes::examine).about("LVM in an emulated machine: copy --since of thin volumes, and snapshots that never stay"),
    family("nfs", nfs::examine).about("copy --offload where the Linux NFS server copies, in an emulated machine: exact, counted"),
    family("boot", boot::examine).about("a machine that boots from our LUN by iPXE and by OVMF"),
    family("foreign", foreign::examine).about("ext4, xfs, SQLite and PostgreSQL on our LUN under cut connections, killed targets and power cuts"),
];

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use super::*;
    use crate::Against;

    #[test]
    fn a_full_run_has_the_next_work_under_way_and_a_sample_has_not() {
        for (tier, expected) in [(Tier::Full, &[3, 4, 5, 7, 8][..]), (Tier::Sample, &[3, 4, 7])] {
            let context = Context::new(PathBuf::new(), 1, tier, Against::Ours).unwrap();
            let started = RefCell::new(Vec::new());
            let mut ahead = Ahead::new();
            for number in [3, 4, 7] {
                let work = ahead.take(&context, number, 9, |number| {
                    started.borrow_mut().push(number);
                    Ok(number)
                });
                assert_eq!(work.unwrap(), number);
            }
            assert_eq!(*started.borrow(), expected);
        }
    }
}
