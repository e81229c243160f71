//! EXTENDED COPY against the target: what is copied, which units a list may name, and what ends a copy.

mod support;

use std::sync::Arc;
use std::time::Duration;

use block::{Kind, Medium};
use iscsi::initiator::{Direction, Event};
use iscsi::wire::{TmFunction, TmResult};
use mover::{Control, Plan};
use node::target::{Access, AclEntry, LunConfig, TargetConfig};
use scsi::cdb::{self, Cdb};
use scsi::copy::{CopyList, Cscd, Segment};
use scsi::{Sense, Status};
use support::host::{Host, new_io};
use support::{Client, Guard, IQN, config, eventually, lun, medium};

const MIB: u64 = 1 << 20;
const FAILURE: Ended = Err((0xa, 0x0d, 0x01));
const NOT_REACHABLE: Ended = Err((0xa, 0x0d, 0x02));
const NO_DESCRIPTOR: Ended = Err((0xa, 0x08, 0x04));

/// Sense key, ASC and ASCQ; in place of the key the status, if there is no sense data.
type Ended = Result<(), (u8, u8, u8)>;

/// The CSCD descriptor of the LUN that [`lun`] creates for this number.
fn cscd(number: u16) -> Cscd {
    Cscd::naa(&(0x3000_0000_0000_0000 + u64::from(number)).to_be_bytes(), 512).unwrap()
}

/// Copies `blocks` blocks between the two ends, in as many segments as needed.
fn copy(ends: [Cscd; 2], from: u64, to: u64, blocks: u64) -> CopyList {
    let segments = (0..blocks).step_by(0xffff).map(|done| Segment {
        source: 0,
        destination: 1,
        destination_count: false,
        blocks: (blocks - done).min(0xffff) as u16,
        source_lba: from + done,
        destination_lba: to + done,
    });
    CopyList { list_id: Some(1), cscds: ends.into(), segments: segments.collect() }
}

fn submit(client: &mut Client, list: &CopyList) -> iscsi::machine::TaskId {
    let (cdb, list) = cdb::extended_copy(list);
    client.submit(0, cdb, Direction::Out, list)
}

fn end(client: &mut Client) -> (Ended, Option<Sense>) {
    let (outcome, _) = client.complete().unwrap();
    let sense = Sense::parse(&outcome.sense);
    let ended = match (outcome.status, &sense) {
        (0, _) => Ok(()),
        (2, Some(sense)) => Err((sense.key as u8, sense.asc, sense.ascq)),
        (status, _) => Err((status, 0, 0)),
    };
    (ended, sense)
}

fn run(client: &mut Client, list: &CopyList) -> Ended {
    loop {
        submit(client, list);
        match end(client).0 {
            Err((6, ..)) => {}
            other => return other,
        }
    }
}

fn good(client: &mut Client, lun: u16, cdb: Cdb) {
    assert_eq!(client.command(lun, cdb, Direction::None, &[]).unwrap().0, Status::Good as u8);
}

fn fill(medium: &Arc<dyn Medium>, seed: u64) {
    let mut io = new_io();
    let mut to = medium.attach(&mut io).unwrap();
    let size = to.capability().size_bytes;
    let mut from = support::medium(&format!("pattern:{size}:{seed}")).attach(&mut io).unwrap();
    mover::copy(&mut io, &mut *from, &mut *to, &Plan::default(), &mut |_| Control::Continue).unwrap();
}

fn bytes(medium: &Arc<dyn Medium>) -> Vec<u8> {
    let mut host = Host::attach(&**medium).unwrap();
    let size = host.endpoint.capability().size_bytes;
    let mut all = Vec::new();
    for offset in (0..size).step_by(MIB as usize) {
        let into = host.take((size - offset).min(MIB) as usize);
        host.perform(Kind::Read { offset, into: into.clone() }).unwrap();
        all.extend_from_slice(into.as_slice());
    }
    all
}

#[test]
fn segments_arrive_where_they_are_sent_and_nowhere_else() {
    let (from, to) = (medium("mem:70M"), medium("mem:80M"));
    fill(&from, 1);
    fill(&to, 2);
    let (source, mut expected) = (bytes(&from), bytes(&to));
    let server = Guard::start(vec![lun(0, from), lun(1, Arc::clone(&to))], Access::default());
    let mut client = Client::login(server.address(), "host", 1).unwrap();
    let mut list = copy([cscd(0), cscd(1)], 5, 4099, 130_000);
    // A segment that does not follow the last one, one of zero blocks, and one counted in blocks of the destination.
    let segment = |blocks, source_lba, destination_lba| Segment {
        blocks,
        source_lba,
        destination_lba,
        destination_count: true,
        ..list.segments[0]
    };
    let more = [segment(1, 9, 0), segment(0, 0, 0), segment(3000, 0, 1)];
    list.segments.extend(more);
    assert_eq!(run(&mut client, &list), Ok(()));
    for segment in &list.segments {
        let (at, to) = (segment.source_lba as usize * 512, segment.destination_lba as usize * 512);
        let length = usize::from(segment.blocks) * 512;
        expected[to..to + length].copy_from_slice(&source[at..at + length]);
    }
    assert!(bytes(&to) == expected);
}

#[test]
fn what_overlaps_is_moved_as_a_whole() {
    let blocks = 40 * MIB / 512;
    for (from, to, count) in [
        (0, 1, blocks - 1),
        (1, 0, blocks - 1),
        (0, 5000, blocks - 5000),
        (5000, 0, blocks - 5000),
        (100, 100, 5000),
        (0, blocks / 2, blocks / 2),
    ] {
        let disk = medium("mem:40M");
        fill(&disk, 3);
        let mut expected = bytes(&disk);
        let server = Guard::start(vec![lun(0, Arc::clone(&disk))], Access::default());
        let mut client = Client::login(server.address(), "host", 1).unwrap();
        assert_eq!(run(&mut client, &copy([cscd(0), cscd(0)], from, to, count)), Ok(()));
        let at = |lba: u64| lba as usize * 512;
        expected.copy_within(at(from)..at(from + count), at(to));
        assert!(bytes(&disk) == expected, "{count} blocks from {from} to {to}");
    }
}

#[test]
fn a_list_names_only_what_its_nexus_reaches_and_may_write() {
    let media: Vec<_> = (0..5).map(|_| medium("mem:1M")).collect();
    fill(&media[0], 4);
    let before: Vec<_> = media.iter().map(bytes).collect();
    let entry = |name: &str, luns: &[u16], read_only| AclEntry {
        initiator: Some(format!("iqn.2026-11.example:{name}")),
        peer: None,
        luns: Some(luns.to_vec()),
        read_only,
        chap: None,
    };
    let unit = |number: u16| lun(number, Arc::clone(&media[usize::from(number)]));
    let luns = vec![unit(0), unit(1), unit(2), LunConfig { read_only: true, ..unit(3) }];
    let initiators = vec![
        entry("host", &[0, 1, 3], false),
        entry("reader", &[0, 1], true),
        entry("other", &[0, 1, 2], false),
    ];
    let mut config = config(luns, Access { chap: Vec::new(), initiators });
    let iqn = format!("{IQN}-other");
    config.targets.push(TargetConfig { iqn, luns: vec![unit(4)], access: Access::default() });
    let server = Guard::start_with(config);
    let mut host = Client::login(server.address(), "host", 1).unwrap();
    let mut reader = Client::login(server.address(), "reader", 1).unwrap();
    let mut other = Client::login(server.address(), "other", 1).unwrap();
    for client in [&mut host, &mut other] {
        // Clears the unit attentions of those LUNs.
        good(client, 1, cdb::test_unit_ready());
    }
    let to = |destination: u16| copy([cscd(0), cscd(destination)], 0, 0, 8);
    let with = |change: fn(&mut CopyList)| {
        let mut list = to(1);
        change(&mut list);
        list
    };
    let vectors: [(&str, CopyList, Ended); 11] = [
        ("hidden from it", to(2), NOT_REACHABLE),
        ("a hidden source", copy([cscd(2), cscd(1)], 0, 0, 8), NOT_REACHABLE),
        ("of another target", to(4), NOT_REACHABLE),
        ("of nobody", to(77), NOT_REACHABLE),
        ("read-only", to(3), FAILURE),
        ("beyond the end", copy([cscd(0), cscd(1)], 0, 2041, 8), FAILURE),
        ("from beyond the end", copy([cscd(0), cscd(1)], 2041, 0, 8), FAILURE),
        ("no such descriptor", with(|list| list.segments[0].destination = 2), NO_DESCRIPTOR),
        ("the null device", with(|list| list.cscds[1].null = true), NO_DESCRIPTOR),
        ("a tape", with(|list| list.cscds[1].device_type = 1), Err((0xa, 0x0d, 0x03))),
        ("blocks of 4096", with(|list| list.cscds[1].block_bytes = 4096), Err((0x5, 0x26, 0x00))),
    ];
    for (name, list, expected) in vectors {
        assert_eq!(run(&mut host, &list), expected, "{name}");
        // As second segment: the first must not be copied either.
        let mut second = to(1);
        second.cscds.extend(list.cscds);
        let shifted = |id: u16| id + 2;
        let Segment { source, destination, .. } = list.segments[0];
        let (source, destination) = (shifted(source), shifted(destination));
        second.segments.push(Segment { source, destination, ..list.segments[0] });
        submit(&mut host, &second);
        let (ended, sense) = end(&mut host);
        assert_eq!((ended, sense.unwrap().command_specific), (expected, 1), "{name}, second");
    }
    assert_eq!(run(&mut reader, &to(1)), FAILURE, "a session that may only read");
    let after: Vec<_> = media.iter().map(bytes).collect();
    assert!(before == after, "what is refused changes nothing");
    assert_eq!(run(&mut other, &to(2)), Ok(()), "who sees it may");
    assert!(bytes(&media[2])[..4096] == before[0][..4096]);
}

/// A server with two units whose copy takes 15 s, and the destination.
fn slow() -> (Guard, Arc<dyn Medium>) {
    let (from, to) = (medium("pattern:60M:5,limit=4M/s"), medium("mem:60M"));
    (Guard::start(vec![lun(0, from), lun(1, Arc::clone(&to))], Access::default()), to)
}

/// A client whose copy of the whole unit is in progress.
fn begun(server: &Guard) -> (Client, iscsi::machine::TaskId) {
    let mut client = Client::login(server.address(), "host", 1).unwrap();
    for lun in [0, 1] {
        good(&mut client, lun, cdb::test_unit_ready());
    }
    let task = submit(&mut client, &copy([cscd(0), cscd(1)], 0, 0, 60 * MIB / 512));
    // A later command is answered: the copy has started, and does not delay others.
    client.submit(1, cdb::test_unit_ready(), Direction::None, Vec::new());
    assert_eq!(end(&mut client).0, Ok(()));
    (client, task)
}

/// No write to the medium happens any more, and its copy was not completed.
fn is_still(medium: &Arc<dyn Medium>) {
    let before = bytes(medium);
    assert!(before.ends_with(&[0; MIB as usize]), "the copy went on to its end");
    std::thread::sleep(Duration::from_millis(300));
    assert!(bytes(medium) == before, "something still writes");
}

#[test]
fn an_abort_is_answered_when_the_copy_has_stopped() {
    let (server, to) = slow();
    let (mut client, task) = begun(&server);
    client.machine.task_management(TmFunction::AbortTask, 0, Some(task)).unwrap();
    let mut failed = false;
    loop {
        match client.next_event().unwrap() {
            Event::Failed { task: ended, .. } => failed |= ended == task,
            Event::ManagementDone { result, .. } => break assert_eq!(result, TmResult::Complete),
            other => panic!("{other:?}"),
        }
    }
    assert!(failed, "and the task has ended before");
    is_still(&to);
    assert_eq!(run(&mut client, &copy([cscd(1), cscd(1)], 0, 8, 8)), Ok(()), "another may follow");
}

#[test]
fn a_reset_by_another_ends_a_copy() {
    let (server, to) = slow();
    let (mut client, _) = begun(&server);
    let mut other = Client::login(server.address(), "other", 2).unwrap();
    assert_eq!(other.manage(TmFunction::LogicalUnitReset, 0).unwrap(), TmResult::Complete);
    is_still(&to);
    client.submit(1, cdb::test_unit_ready(), Direction::None, Vec::new());
    assert_eq!(end(&mut client).0, Ok(()), "the session lives");
}

#[test]
fn a_copy_ends_with_its_session() {
    let (server, to) = slow();
    drop(begun(&server));
    eventually("the session ends", || server.handle().sessions().is_empty());
    is_still(&to);
}

#[test]
fn a_server_that_stops_stops_its_copies() {
    let (server, to) = slow();
    let client = begun(&server);
    drop(server);
    is_still(&to);
    drop(client);
}

/// A server with two units, and a client without a pending unit attention of the first.
fn ready(from: Arc<dyn Medium>, to: Arc<dyn Medium>) -> (Guard, Client) {
    let server = Guard::start(vec![lun(0, from), lun(1, to)], Access::default());
    let mut client = Client::login(server.address(), "host", 1).unwrap();
    good(&mut client, 0, cdb::test_unit_ready());
    (server, client)
}

#[test]
fn copies_beyond_the_bound_are_refused_and_the_others_made() {
    let (from, to) = (medium("mem:1M,delay=300ms"), medium("mem:1M"));
    let (_server, mut client) = ready(from, to);
    let list = CopyList { list_id: None, ..copy([cscd(0), cscd(1)], 0, 0, 8) };
    for _ in 0..100 {
        submit(&mut client, &list);
    }
    let ends: Vec<Ended> = (0..100).map(|_| end(&mut client).0).collect();
    let made = ends.iter().filter(|end| end.is_ok()).count();
    assert!((64..100).contains(&made), "{made} were made");
    let allowed = ends.iter().all(|end| [Ok(()), Err((Status::TaskSetFull as u8, 0, 0))].contains(end));
    assert!(allowed, "{ends:?}");
    assert_eq!(run(&mut client, &list), Ok(()));
}

#[test]
fn a_failure_of_the_storage_names_its_segment() {
    let (from, to) = (medium("mem:80M"), medium("mem:80M,fault=write-error@34M+1M"));
    let (_server, mut client) = ready(from, to);
    submit(&mut client, &copy([cscd(0), cscd(1)], 0, 0, 80 * MIB / 512));
    let (ended, sense) = end(&mut client);
    assert_eq!((ended, sense.unwrap().command_specific), (FAILURE, 1));
}
