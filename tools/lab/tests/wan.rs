//! The path between two namespaces, with TCP of the kernel over it. Needs root; says so otherwise.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use lab::wan::{ADDRESSES, Options, Settings, Tap, Wan, obstacle};

const PORT: u16 = 3260;
/// An ordinary machine is that late at most; far more than a wake-up takes.
const SLACK: Duration = Duration::from_millis(500);

fn start(options: &Options) -> Option<Wan> {
    if let Some(obstacle) = obstacle() {
        eprintln!("not tested: {obstacle}");
        return None;
    }
    Some(Wan::start(options).unwrap())
}

/// A connection from side 0 to side 1.
fn connect(wan: &Wan) -> [TcpStream; 2] {
    let listener = wan.side(1).within(|| TcpListener::bind((ADDRESSES[1], PORT))).unwrap().unwrap();
    let near = wan.side(0).within(|| TcpStream::connect((ADDRESSES[1], PORT))).unwrap().unwrap();
    near.set_nodelay(true).unwrap();
    let far = listener.accept().unwrap().0;
    for end in [&near, &far] {
        end.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    [near, far]
}

/// Sends `bytes` bytes from the first end; checks what arrives at the second.
fn transfer([mut near, mut far]: [TcpStream; 2], bytes: usize) {
    let sent: Vec<u8> = (0..bytes).map(|at| (at / 4 * 31 + at % 4) as u8).collect();
    let mut received = vec![0; bytes];
    std::thread::scope(|scope| {
        scope.spawn(|| near.write_all(&sent).unwrap());
        far.read_exact(&mut received).unwrap();
    });
    assert!(sent == received, "the bytes differ");
}

#[test]
fn a_round_trip_takes_the_delay_of_both_directions() {
    let Some(wan) = start(&Options::new(Settings::new(Duration::from_millis(60), None))) else { return };
    let [mut near, mut far] = connect(&wan);
    let echo = |near: &mut TcpStream, far: &mut TcpStream| {
        let begun = Instant::now();
        near.write_all(b"x").unwrap();
        far.read_exact(&mut [0]).unwrap();
        far.write_all(b"y").unwrap();
        near.read_exact(&mut [0]).unwrap();
        begun.elapsed()
    };
    let took = (0..5).map(|_| echo(&mut near, &mut far)).min().unwrap();
    assert!(took > Duration::from_millis(57) && took < SLACK, "{took:?}");
    wan.line().change(|settings| settings.delay = Duration::from_millis(2));
    let took = (0..5).map(|_| echo(&mut near, &mut far)).min().unwrap();
    assert!(took > Duration::from_millis(3) && took < Duration::from_millis(50), "{took:?}");
}

#[test]
fn bytes_survive_loss_reordering_and_duplication() {
    let damaging = Settings {
        loss: 0.005,
        reorder: 0.005,
        duplicate: 0.005,
        ..Settings::new(Duration::from_millis(4), Some(1e9))
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("between.pcap");
    let tap = Tap { snap_bytes: 64, ..Tap::new(&path) };
    let options = Options { tap: Some(tap), ..Options::new(damaging) };
    let Some(wan) = start(&options.ipv4("tcp_wmem", "4096 65536 8388608")) else { return };
    let settings = wan.side(0).within(|| std::fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap());
    assert_eq!(settings.unwrap().split_whitespace().last(), Some("8388608"));
    transfer(connect(&wan), 8 << 20);
    std::thread::sleep(Duration::from_millis(200));
    let counters = wan.line().counters(0);
    assert!(counters.lost > 0 && counters.reordered > 0 && counters.duplicated > 0, "{counters:?}");
    assert!(
        counters.segments > (8 << 20) / 1448 && counters.overflows + counters.refused == 0,
        "{counters:?}"
    );
    assert_eq!(wan.line().finish_tap().unwrap(), 0);
    let captured = std::fs::read(&path).unwrap();
    let (mut at, mut times, mut length) = (24, Vec::new(), 0);
    while let Some(header) = captured.get(at..at + 16) {
        let field = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        times.push((field(0), field(4)));
        assert_eq!(captured[at + 16] >> 4, 4, "no IPv4 packet");
        length += field(12) as usize;
        at += 16 + field(8) as usize;
    }
    assert!(at == captured.len() && times.is_sorted() && length > 8 << 20, "{length} bytes");
}

#[test]
fn nothing_passes_while_the_path_is_down() {
    let Some(wan) = start(&Options::new(Settings::new(Duration::from_millis(2), None))) else { return };
    let [mut near, mut far] = connect(&wan);
    far.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    wan.line().change(|settings| settings.down = true);
    near.write_all(b"x").unwrap();
    assert!(far.read_exact(&mut [0]).is_err());
    assert!(wan.line().counters(0).lost > 0);
    wan.line().change(|settings| settings.down = false);
    far.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    far.read_exact(&mut [0]).unwrap();
    wan.line().reset_counters();
    assert_eq!(wan.line().counters(0).lost, 0);
}

#[test]
fn namespaces_end_with_their_processes_and_those_of_a_killed_program_are_removed() {
    // No process has this number: it is beyond the kernel's greatest.
    let leftover = "hikyaku-wan-a-4194305-0";
    if obstacle().is_none() {
        assert!(Command::new("ip").args(["netns", "add", leftover]).status().unwrap().success());
    }
    let Some(wan) = start(&Options::new(Settings::new(Duration::ZERO, None))) else { return };
    let exists = |name: &str| Path::new("/run/netns").join(name).exists();
    assert!(!exists(leftover));
    let names = [0, 1].map(|side| wan.side(side).name().to_owned());
    assert!(names.iter().all(|name| exists(name)));
    let mut child = wan.side(0).command("sleep").arg("60").spawn().unwrap();
    // Until `ip` has entered the namespace and become the program.
    let program = format!("/proc/{}/comm", child.id());
    while std::fs::read_to_string(&program).unwrap().trim() != "sleep" {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(wan);
    assert!(!child.wait().unwrap().success());
    assert!(!names.iter().any(|name| exists(name)));
}
