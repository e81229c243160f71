//! The families of interoperability tests, one module per peer or subject.

mod analyze;
mod attack;
mod auth;
mod bad_input;
mod boot;
mod cli_contract;
mod conformance;
mod copy_matrix;
mod distance;
mod dm_crypt;
mod foreign;
mod fuzz;
mod gateway;
mod guest;
mod guides;
mod install;
mod journeys;
mod json;
mod kernel;
mod kill;
mod libiscsi_tools;
mod luks2;
mod messages;
mod mover;
mod mutants;
mod nbd;
mod net;
mod nfs;
mod page;
mod passthrough;
mod qemu_img;
mod report;
mod seal_contract;
mod seal_model;
mod sealed;
mod send_buffer;
mod service;
mod sessions;
mod sim;
mod since;
mod systemd;
mod tgt;
mod torture;
mod volumes;
mod watch;
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

const fn family(name: &'static str, examine: Examine, about: &'static str) -> Family {
    Family { name, about, examine, any_target: false, is_nightly: false }
}

/// All families, cheapest first.
pub const FAMILIES: &[Family] = &[
    family("cli-contract", cli_contract::examine, "exit codes, messages, JSON and refusals"),
    family("messages", messages::examine, "what is said after common mistakes, and what to type instead"),
    family(
        "auth",
        auth::examine,
        "volumes of authenticated blocks: copies, power cuts, changes by their provider",
    ),
    family("json", json::examine, "JSON of each command beside its schema in docs/schema"),
    family("report", report::examine, "the HTML report of a copy in Chromium, desktop and phone"),
    family(
        "page",
        page::examine,
        "the page of analyze in Chromium: charts, no scripts, hostile names, a million points",
    ),
    family("install", install::examine, "unit, manual, completions; package and static program in roots"),
    family("guides", guides::examine, "the pages of docs/guides, typed as they are printed"),
    family("sim", sim::examine, "simulated cuts, kills and lost connections"),
    family("libiscsi-tools", libiscsi_tools::examine, "iscsi-ls, iscsi-inq, iscsi-readcapacity16, iscsi-swp")
        .of_any_target(),
    family("qemu-img", qemu_img::examine, "a file system there and back; qemu-io patterns, digests, CHAP")
        .of_any_target(),
    family("tgt", tgt::examine, "our copy to and from tgt, with and without CHAP"),
    family("nbd", nbd::examine, "our client with qemu-nbd and nbdkit: holes, bitmaps, errors"),
    family("copy-matrix", copy_matrix::examine, "endpoint pairs times copy options, byte-compared"),
    family(
        "distance",
        distance::examine,
        "copies over 0, 50 and 200 ms, cut off, changed and counted by round trips",
    ),
    family("since", since::examine, "copy --since a clone or a snapshot, on xfs and btrfs"),
    family("kill", kill::examine, "signals and sudden death of either side"),
    family("mover", mover::examine, "copies cut at every step, on storage that fails or vanishes"),
    family("xcopy", xcopy::examine, "the target copies between its LUNs: counted, refused, aborted"),
    family("gateway", gateway::examine, "a target that serves a LUN of another one and reads ahead"),
    family("service", service::examine, "a server as its operator sees it: status, ctl, discovery, the log"),
    family(
        "analyze",
        analyze::examine,
        "captures to verdicts: times beside tshark's, every form of the result",
    ),
    family(
        "watch",
        watch::examine,
        "watch: ours, tgt and QEMU; lines, JSON, a terminal, no rights, a namespace",
    ),
    family(
        "net",
        net::examine,
        "the TCP/IP servers of net up: confined, killed, lied to, beside the kernel's TCP",
    ),
    family("sessions", sessions::examine, "many at once: memory, fairness, longest command"),
    family("torture", torture::examine, "acknowledged data under kills, cuts and power cuts"),
    family("bad-input", bad_input::examine, "garbage, truncated and mutated PDUs beside sessions")
        .of_any_target(),
    family("sealed", sealed::examine, "sealed sessions attacked on the way, at the door, in masses"),
    family("attack", attack::examine, "ways past the promises of docs/internals/trust.md"),
    family(
        "luks2",
        luks2::examine,
        "volumes of LUKS2 beside cryptsetup: every byte, keys, backups, refusals, cuts",
    ),
    family("fuzz", fuzz::examine, "coverage-guided fuzzing of every parser and of sessions"),
    family("mutants", mutants::examine, "defects that the simulator or torture must find").nightly(),
    family("seal-model", seal_model::examine, "the model of SEAL/1's handshake, checked by Verifpal")
        .nightly(),
    family("conformance", conformance::examine, "iscsi-test-cu on thin, removable and read-only LUNs")
        .of_any_target(),
    family("kernel", kernel::examine, "Linux's initiator (open-iscsi) and target (LIO), emulated")
        .of_any_target(),
    family("passthrough", passthrough::examine, "copies by a disk's own commands, emulated").nightly(),
    family("volumes", volumes::examine, "LVM, emulated: copy --since of thin volumes").nightly(),
    family("nfs", nfs::examine, "copy --offload where the Linux NFS server copies, emulated").nightly(),
    family("systemd", systemd::examine, "the package under systemd as process 1, emulated"),
    family("boot", boot::examine, "a machine boots from our LUN by iPXE and by OVMF"),
    family("foreign", foreign::examine, "ext4, xfs, SQLite and PostgreSQL on a disturbed LUN"),
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
