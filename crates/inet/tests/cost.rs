//! What a segment costs the engine. `cargo test --release -p hikyaku-inet --test cost -- --ignored --nocapture`

use std::hint::black_box;
use std::time::Instant;

use inet::{
    Arrived, Capacity, ConnectionId, Endpoint, Engine, Event, HEADER_BYTES, Link, Options, Owned, PayloadRef,
    Settings, Time, Transmit, VNET_BYTES,
};

/// Without optimisation it is no measurement: only that it runs.
const ROUNDS: u32 = if cfg!(debug_assertions) { 10_000 } else { 1_000_000 };
const IP: usize = 14;
const TCP: usize = 34;

struct End {
    engine: Engine<'static>,
    free: Vec<u32>,
    sent: u64,
}

impl End {
    fn new(number: u8) -> Self {
        let owned = Box::leak(Box::new(Owned::new(&Capacity::default())));
        let addresses = vec![(format!("10.0.0.{number}").parse().unwrap(), 24)];
        let settings = Settings { addresses, gateways: Vec::new(), secret: [number; 16] };
        let mut engine = Engine::new(owned.memory(), &settings, Time::ZERO);
        engine.on_attached(0, Link { mac: [2, 0, 0, 0, 0, number], mtu: 1500, segments: true }, Time::ZERO);
        Self { engine, free: (0..1024).collect(), sent: 0 }
    }

    fn receive(&mut self, header: &[u8], length: u32, segment_bytes: u16, now: Time) {
        let frame = self.free.pop().expect("frames are given back");
        let arrived = Arrived { interface: 0, frame, header, length, is_checked: true, segment_bytes };
        self.engine.on_frame(&arrived, now);
        while let Some(frame) = self.engine.poll_free() {
            self.free.push(frame);
        }
    }

    fn transmit(&mut self, header: &mut [u8; HEADER_BYTES], now: Time) -> Option<Transmit> {
        let transmit = self.engine.poll_transmit(header, now)?;
        self.sent += 1;
        self.engine.on_transmitted(0, self.sent, now);
        Some(transmit)
    }
}

/// Carries frames both ways until there are none.
fn pump(ends: &mut [End; 2], now: Time) {
    let mut header = [0; HEADER_BYTES];
    while let Some(from) = (0..2).find(|&from| {
        let Some(transmit) = ends[from].transmit(&mut header, now) else { return false };
        let frame = header[VNET_BYTES..][..usize::from(transmit.header_bytes)].to_vec();
        let length = frame.len() as u32;
        ends[1 - from].receive(&frame, length, 0, now);
        true
    }) {
        black_box(from);
    }
}

fn connected() -> ([End; 2], ConnectionId, ConnectionId) {
    let mut ends = [End::new(1), End::new(2)];
    let at = |text: &str| Endpoint::from(text.parse::<std::net::SocketAddr>().unwrap());
    let (any, server) = (at("0.0.0.0:0"), at("10.0.0.2:80"));
    let options = Options { no_delay: true, ..Options::default() };
    let listener = ends[1].engine.listen(0, server, 8, options).unwrap();
    let client = ends[0].engine.connect(0, any, server, options, Time::ZERO).unwrap();
    pump(&mut ends, Time(1000));
    assert_eq!(ends[0].engine.poll_event(0), Some(Event::Connected { connection: client }));
    assert_eq!(ends[1].engine.poll_event(0), Some(Event::Incoming { listener }));
    let server = ends[1].engine.accept(listener).unwrap();
    (ends, client, server)
}

fn put(header: &mut [u8], at: usize, value: u32) {
    header[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

fn get(header: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(header[at..at + 4].try_into().unwrap())
}

/// A frame of `payload` bytes with the header of another one.
fn with_payload(header: &[u8], payload: u32) -> Vec<u8> {
    let mut header = header.to_vec();
    let length = (header.len() - IP) as u32 + payload;
    header[IP + 2..IP + 4].copy_from_slice(&(length as u16).to_be_bytes());
    header[IP + 10..IP + 12].fill(0);
    let sum: u32 = header[IP..TCP].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    header[IP + 10..IP + 12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    header
}

#[test]
#[ignore = "measures"]
fn a_send_of_256_bytes_until_it_is_released() {
    let (mut ends, client, server) = connected();
    let mut header = [0; HEADER_BYTES];
    // A segment of the server's, whose header serves as ACK.
    ends[1].engine.send(server, 1, &[PayloadRef { length: 1, ..PayloadRef::default() }], Time(2000)).unwrap();
    let transmit = ends[1].transmit(&mut header, Time(2000)).unwrap();
    let mut ack = with_payload(&header[VNET_BYTES..][..usize::from(transmit.header_bytes)], 0);
    ack[TCP + 13] = 0x10;
    let end = &mut ends[0];
    let start = Instant::now();
    for round in 1..=ROUNDS {
        let now = Time(2000 + u64::from(round) * 10);
        let payload = PayloadRef { region: 1, generation: 1, offset: round % 4096 * 256, length: 256 };
        end.engine.send(client, round.into(), &[payload], now).unwrap();
        let transmit = end.transmit(&mut header, now).unwrap();
        black_box(&transmit);
        assert!(end.transmit(&mut header, now).is_none());
        let seq = get(&header, VNET_BYTES + TCP + 4);
        put(&mut ack, TCP + 8, seq.wrapping_add(256));
        let timestamp = get(&header, VNET_BYTES + TCP + 24);
        put(&mut ack, TCP + 28, timestamp);
        let length = ack.len() as u32;
        end.receive(&ack, length, 0, now);
        let released = Event::Released { connection: client, ticket: round.into() };
        assert_eq!(end.engine.poll_event(0), Some(released));
        black_box(end.engine.poll_timeout());
    }
    println!("send of 256 B, frame, ACK, release: {} ns", start.elapsed().as_nanos() / u128::from(ROUNDS));
}

fn receives(payload: u32, segment_bytes: u16) {
    let (mut ends, _, server) = connected();
    let mut header = [0; HEADER_BYTES];
    ends[1].engine.send(server, 1, &[PayloadRef { length: 1, ..PayloadRef::default() }], Time(2000)).unwrap();
    let transmit = ends[1].transmit(&mut header, Time(2000)).unwrap();
    let mut data = with_payload(&header[VNET_BYTES..][..usize::from(transmit.header_bytes)], payload);
    let first = get(&data, TCP + 4);
    let end = &mut ends[0];
    let mut acks = 0;
    let start = Instant::now();
    for round in 0..ROUNDS {
        let now = Time(2000 + u64::from(round) * 10);
        put(&mut data, TCP + 4, first.wrapping_add(round.wrapping_mul(payload)));
        let length = data.len() as u32 + payload;
        end.receive(&data, length, segment_bytes, now);
        let Some(Event::Received { frame, .. }) = end.engine.poll_event(0) else { panic!("round {round}") };
        end.engine.release(0, frame, now).unwrap();
        while end.transmit(&mut header, now).is_some() {
            acks += 1;
        }
        black_box(end.engine.poll_timeout());
    }
    let each = start.elapsed().as_nanos() / u128::from(ROUNDS);
    println!("receive of {payload} B, delivery, release, ACKs ({acks}): {each} ns");
}

#[test]
#[ignore = "measures"]
fn a_received_segment() {
    receives(1448, 0);
}

#[test]
#[ignore = "measures"]
fn a_received_frame_of_64_kib() {
    receives(65_160, 1448);
}
