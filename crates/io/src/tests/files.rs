//! Parts of files that are sent by reference to their pages.

use rustix::fs::{MemfdFlags, memfd_create};

use super::*;

on_both_back_ends! {
    parts_of_files_are_sent_between_headers_as_the_peer_takes_them,
    a_file_that_shrinks_ends_a_send,
    a_peer_that_leaves_ends_a_send_that_waits,
}

const FILE_BYTES: usize = 3 << 20;

/// A file in memory whose bytes tell their place.
fn file() -> (Rc<OwnedFd>, Vec<u8>) {
    let mut file = File::from(memfd_create("pages", MemfdFlags::CLOEXEC).unwrap());
    let bytes: Vec<u8> = (0..FILE_BYTES as u32).map(|at| (at / 251) as u8).collect();
    file.write_all(&bytes).unwrap();
    (Rc::new(file.into()), bytes)
}

fn connected() -> (Handle, TcpStream) {
    let Listener { socket, address } = listen(([127, 0, 0, 1], 0).into(), 1).unwrap();
    let far = TcpStream::connect(address).unwrap();
    let near = OwnedFd::from(TcpListener::from(socket).accept().unwrap().0);
    settle(&near, false);
    assert!(send_by_reference(&near));
    (Rc::new(near), far)
}

/// Sends until an error.
fn send_all(io: &mut Io, token: Token, socket: &Handle, outgoing: Box<Outgoing>) -> io::Result<()> {
    io.send(token, socket, outgoing);
    loop {
        let event = next(io);
        let count = event.bytes()?;
        let Item::Outgoing(mut outgoing) = event.item else { panic!("a send returns its queue") };
        outgoing.advance(count);
        if outgoing.is_empty() {
            return Ok(());
        }
        io.send(event.token, socket, outgoing);
    }
}

fn parts_of_files_are_sent_between_headers_as_the_peer_takes_them(kind: Kind) {
    let (mut io, owner) = io(kind);
    let (file, bytes) = file();
    let stored = Span::of_file(file, FILE_BYTES);
    let (socket, mut peer) = connected();
    let memory = io.pool().take(10_000).unwrap();
    memory.fill(0, &[9; 10_000]);
    let mut outgoing = Box::<Outgoing>::default();
    let mut expected = Vec::new();
    for part in 0..40 {
        let (start, length) = (part * 70_001, 65_536 + part);
        outgoing.bytes(&[part as u8; 48]);
        expected.extend([part as u8; 48]);
        outgoing.span(stored.slice(start, length));
        expected.extend(&bytes[start..start + length]);
        if part % 3 == 0 {
            outgoing.span(memory.slice(part, 5000));
            expected.extend([9; 5000]);
        }
    }
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // The socket fills up first.
        std::thread::sleep(Duration::from_millis(20));
        peer.read_to_end(&mut bytes).unwrap();
        bytes
    });
    send_all(&mut io, Token { owner, key: 5 }, &socket, outgoing).unwrap();
    drop(socket);
    assert!(reader.join().unwrap() == expected);
    assert_eq!(io.in_flight(), 0);
}

fn a_file_that_shrinks_ends_a_send(kind: Kind) {
    let (mut io, owner) = io(kind);
    let (file, bytes) = file();
    let (socket, mut peer) = connected();
    let mut outgoing = Box::<Outgoing>::default();
    outgoing.bytes(&[1; 48]);
    outgoing.span(Span::of_file(Rc::clone(&file), FILE_BYTES).slice(4096, 100_000));
    rustix::fs::ftruncate(&file, 50_000).unwrap();
    let error = send_all(&mut io, Token { owner, key: 5 }, &socket, outgoing).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "as for a mapping of the file");
    drop(socket);
    let mut received = Vec::new();
    peer.read_to_end(&mut received).unwrap();
    assert!(received[48..] == bytes[4096..50_000], "what was left of it");
}

fn a_peer_that_leaves_ends_a_send_that_waits(kind: Kind) {
    let (mut io, owner) = io(kind);
    let (socket, peer) = connected();
    let mut outgoing = Box::<Outgoing>::default();
    for _ in 0..20 {
        outgoing.span(Span::of_file(file().0, FILE_BYTES));
    }
    let reader = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        drop(peer);
    });
    let error = send_all(&mut io, Token { owner, key: 5 }, &socket, outgoing).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET)), "{error}");
    reader.join().unwrap();
}
