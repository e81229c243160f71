//! A panic in the target's code ends the connection in which it happened, and no other.

mod support;

use std::net::TcpStream;
use std::sync::Arc;

use block::{Capability, Completion, Endpoint, Inspect, Kind, Medium, OpenError, Request, State};
use io::{Event as IoEvent, Io, Owner};
use iscsi::initiator::Direction;
use node::target::{Access, ServeError};
use scsi::cdb;
use support::{Broken, Client, Guard, eventually, lun, medium};

const DEFECT_LBA: u64 = 7;
const BLOCK: usize = 512;

/// Storage that panics at [`DEFECT_LBA`].
#[derive(Debug)]
struct Defective(Arc<dyn Medium>);

struct DefectiveEndpoint(Box<dyn Endpoint>);

impl Medium for Defective {
    fn attach(&self, io: &mut Io) -> Result<Box<dyn Endpoint>, OpenError> {
        Ok(Box::new(DefectiveEndpoint(self.0.attach(io)?)))
    }

    fn name(&self) -> String {
        "defective".into()
    }
}

impl Endpoint for DefectiveEndpoint {
    fn state(&self) -> State {
        self.0.state()
    }

    fn capability(&self) -> &Capability {
        self.0.capability()
    }

    fn submit(&mut self, io: &mut Io, request: Request, done: &mut Vec<Completion>) {
        if matches!(request.kind, Kind::Read { offset, .. } if offset == DEFECT_LBA * BLOCK as u64) {
            panic!("a deliberate defect");
        }
        self.0.submit(io, request, done);
    }

    fn on_event(&mut self, io: &mut Io, event: IoEvent, done: &mut Vec<Completion>) {
        self.0.on_event(io, event, done);
    }

    fn owners(&self, owners: &mut Vec<Owner>) {
        self.0.owners(owners);
    }

    fn inspect(&self) -> &dyn Inspect {
        self.0.inspect()
    }
}

/// Status and sense of a READ of one block.
fn read(client: &mut Client, unit: u16, lba: u64) -> Result<(u8, Vec<u8>), Broken> {
    loop {
        client.submit(unit, cdb::read_16(lba, 1, false), Direction::In, vec![0; BLOCK]);
        let (outcome, _) = client.complete()?;
        let attention = outcome.sense.get(2).is_some_and(|key| key & 0xF == 6);
        if outcome.status != 2 || !attention {
            return Ok((outcome.status, outcome.sense));
        }
    }
}

fn is_internal_failure((status, sense): &(u8, Vec<u8>)) -> bool {
    *status == 2 && sense[2] & 0xF == 4 && sense[12..14] == [0x44, 0]
}

#[test]
fn a_panic_ends_its_connection_and_fails_its_unit_until_it_is_opened_again() {
    let storage = medium("mem:1M");
    let luns = || vec![lun(0, Arc::new(Defective(Arc::clone(&storage)))), lun(1, medium("mem:1M"))];
    let mut guard = Guard::start(luns(), Access::default());
    let address = guard.address();
    let mut other = Client::login(address, "other", 2).unwrap();
    let mut victim = Client::login(address, "victim", 1).unwrap();
    for client in [&mut other, &mut victim] {
        assert_eq!(read(client, 0, 0).unwrap().0, 0);
    }
    assert!(read(&mut victim, 0, DEFECT_LBA).is_err(), "its connection is cut");
    eventually("its session is gone", || guard.handle().sessions().len() == 1);
    // The unit fails for all sessions; the other unit and session continue.
    assert!(is_internal_failure(&read(&mut other, 0, 0).unwrap()));
    assert_eq!(read(&mut other, 1, 0).unwrap().0, 0);
    let mut again = Client::login(address, "victim", 1).unwrap();
    assert!(is_internal_failure(&read(&mut again, 0, 0).unwrap()));
    assert_eq!(read(&mut again, 1, 0).unwrap().0, 0);
    again.logout().unwrap();
    other.logout().unwrap();
    let server = guard.0.take().unwrap();
    server.handle().drain();
    let ended = server.wait();
    let Err(ServeError::Unfinished(text)) = ended else { panic!("{ended:?}") };
    assert!(text.contains("a panic ended the connection") && text.contains("deliberate"), "{text}");
    // After a restart of the server the unit works.
    let server = Guard::start(luns(), Access::default());
    let mut client = Client::login(server.address(), "victim", 1).unwrap();
    assert_eq!(read(&mut client, 0, 0).unwrap().0, 0);
    client.logout().unwrap();
    drop(TcpStream::connect(server.address()).unwrap());
}
