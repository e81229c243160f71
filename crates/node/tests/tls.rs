//! TLS around iSCSI, over real sockets: data of all sizes, certificates that must be rejected, cut connections.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use block::{Kind, OpenError};
use mover::Plan;
use node::initiator::{DigestPolicy, Options, Url, discover, list_luns};
use node::target::{Access, ServerConfig};
use node::{TlsIdentity, TlsTrust};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use support::host::{Host, new_io, options};
use support::{Client, Guard, IQN, config, lun, medium};

/// Certificates as files, deleted on drop.
struct Papers {
    dir: tempfile::TempDir,
}

impl Papers {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// A self-signed certificate, and the identity of a target with it.
    fn self_signed(&self, params: &CertificateParams) -> (PathBuf, TlsIdentity) {
        let key = KeyPair::generate().unwrap();
        let certificate = self.file("self.pem", &params.self_signed(&key).unwrap().pem());
        let identity = TlsIdentity::load(&certificate, &self.file("self.key", &key.serialize_pem()));
        (certificate, identity.unwrap())
    }

    /// The certificate of an authority, and the identity of a target with a certificate that it signed for `name`.
    fn signed(&self, name: &str) -> (PathBuf, TlsIdentity) {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params(name).signed_by(&key, &authority).unwrap();
        let identity = TlsIdentity::load(
            &self.file("leaf.pem", &certificate.pem()),
            &self.file("leaf.key", &key.serialize_pem()),
        );
        (self.file("authority.pem", &authority.pem()), identity.unwrap())
    }
}

fn params(name: &str) -> CertificateParams {
    CertificateParams::new([name.to_owned()]).unwrap()
}

fn serve(identity: TlsIdentity) -> Guard {
    let luns = vec![lun(0, medium("mem:40M"))];
    Guard::start_with(ServerConfig { tls: Some(identity), ..config(luns, Access::default()) })
}

/// A target with a certificate of an authority, whose certificate is the second.
fn signed() -> (Papers, PathBuf, Guard) {
    let papers = Papers::new();
    let (authority, identity) = papers.signed("127.0.0.1");
    (papers, authority, serve(identity))
}

/// A target with a self-signed certificate, which is the second.
fn self_signed() -> (Papers, PathBuf, Guard) {
    let papers = Papers::new();
    let (certificate, identity) = papers.self_signed(&params("127.0.0.1"));
    (papers, certificate, serve(identity))
}

fn trusting(file: &Path) -> Options {
    Options { tls: Some(TlsTrust::load(file).unwrap()), ..options() }
}

fn try_open(address: SocketAddr, options: Options) -> Result<(), OpenError> {
    Host::open(address, 0, options).map(Host::close)
}

#[test]
fn data_goes_there_and_back_in_all_sizes() {
    let (_papers, authority, server) = signed();
    for (seed, digests) in [(1u8, false), (2, true)] {
        let digest = if digests { DigestPolicy::Require } else { DigestPolicy::Off };
        let options = Options { header_digest: digest, data_digest: digest, ..trusting(&authority) };
        let mut host = Host::open(server.address(), 0, options).unwrap();
        let size = host.endpoint.capability().size_bytes;
        let mut source = medium(&format!("pattern:{size}:{seed}")).attach(&mut host.io).unwrap();
        let plan = Plan { verify: true, ..Plan::default() };
        let mut go_on = |_: &mover::Progress| mover::Control::Continue;
        let report = mover::copy(&mut host.io, &mut *source, &mut *host.endpoint, &plan, &mut go_on).unwrap();
        assert!(report.verified);
        for length in [512, 4096, (16 << 10) - 512, 16 << 10, (16 << 10) + 512, 100 << 10, 1 << 20, 4 << 20] {
            let offset = 7 * 512;
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8 ^ seed).collect();
            let span = host.take(length);
            span.fill(0, &bytes);
            host.perform(Kind::Write { offset, from: span, durable: false }).unwrap();
            let into = host.take(length);
            into.zero(0, length);
            host.perform(Kind::Read { offset, into: into.clone() }).unwrap();
            assert!(into.as_slice() == bytes, "{length} bytes");
        }
        assert_eq!(host.endpoint.inspect().losses(), 0);
        host.close();
    }
}

#[test]
fn discovery_goes_through_tls_too() {
    let (_papers, authority, server) = signed();
    let portal = Url::parse(&format!("iscsi://{}", server.address())).unwrap();
    let trusting = trusting(&authority);
    let targets = discover(&mut new_io(), &portal, &trusting).unwrap();
    assert_eq!(targets[0].name, IQN);
    let target = Url { target: Some(IQN.to_owned()), ..portal.clone() };
    assert_eq!(list_luns(&mut new_io(), &target, &trusting).unwrap().0.len(), 1);
    assert!(matches!(discover(&mut new_io(), &portal, &options()), Err(OpenError::Unreachable(_))));
}

fn assert_untrusted(server: &Guard, file: &Path) {
    let error = try_open(server.address(), trusting(file)).unwrap_err();
    let told = error.to_string();
    assert!(matches!(error, OpenError::Certificate(_)) && told.contains("not trusted"), "{told}");
}

#[test]
fn a_certificate_of_another_authority_is_not_trusted() {
    let (ours, theirs) = (Papers::new(), Papers::new());
    let (authority, _) = ours.signed("127.0.0.1");
    let (_, identity) = theirs.signed("127.0.0.1");
    assert_untrusted(&serve(identity), &authority);
}

#[test]
fn a_certificate_for_another_host_is_not_trusted() {
    let papers = Papers::new();
    let (authority, identity) = papers.signed("elsewhere.example");
    assert_untrusted(&serve(identity), &authority);
}

#[test]
fn a_certificate_that_signed_itself_is_trusted_where_it_was_given() {
    let (papers, others) = (Papers::new(), Papers::new());
    let mut authority = params("any.example");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // As `openssl req -x509` generates them, and with correct extensions.
    for params in [authority, params("any.example")] {
        let (certificate, identity) = papers.self_signed(&params);
        let (other, _) = others.self_signed(&params);
        let server = serve(identity);
        try_open(server.address(), trusting(&certificate)).unwrap();
        assert_untrusted(&server, &other);
    }
}

#[test]
fn a_certificate_that_has_expired_is_not_trusted_even_where_it_was_given() {
    let papers = Papers::new();
    for is_ca in [IsCa::NoCa, IsCa::Ca(BasicConstraints::Unconstrained)] {
        let mut params = params("127.0.0.1");
        (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        params.is_ca = is_ca;
        let (certificate, identity) = papers.self_signed(&params);
        assert_untrusted(&serve(identity), &certificate);
    }
}

#[test]
fn who_does_not_speak_tls_is_turned_away() {
    let (_papers, certificate, server) = self_signed();
    assert!(Client::login(server.address(), "plain", 1).is_err());
    assert!(matches!(try_open(server.address(), options()), Err(OpenError::Unreachable(_))));
    // The target continues to serve others.
    try_open(server.address(), trusting(&certificate)).unwrap();
    // A TLS initiator against a target without TLS.
    let server = Guard::of("mem:1M");
    let error = try_open(server.address(), trusting(&certificate)).unwrap_err();
    assert!(matches!(error, OpenError::Unreachable(_)) && error.to_string().contains("TLS"), "{error}");
}

/// Garbage with every first byte, and a malformed record.
#[test]
fn garbage_ends_the_connection_and_nothing_else() {
    let (_papers, certificate, server) = self_signed();
    for first in 0..=255 {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut garbage = vec![first; 600];
        garbage[1..5].copy_from_slice(&[3, 3, 0, 200]);
        stream.write_all(&garbage).unwrap();
        // The connection ends, whatever the answer is.
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    try_open(server.address(), trusting(&certificate)).unwrap();
}

/// Relays one connection, and cuts it after `bytes` bytes from the target. Returns the bytes relayed.
fn relay_until(target: SocketAddr, bytes: usize) -> (SocketAddr, std::thread::JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = TcpStream::connect(target).unwrap();
        std::thread::scope(|scope| {
            let up = scope.spawn(|| {
                let (mut seen, mut chunk) = (Vec::new(), [0; 4096]);
                while let Ok(count @ 1..) = (&client).read(&mut chunk) {
                    seen.extend_from_slice(&chunk[..count]);
                    if (&server).write_all(&chunk[..count]).is_err() {
                        break;
                    }
                }
                let _ = server.shutdown(Shutdown::Write);
                seen
            });
            let (mut seen, mut chunk) = (Vec::new(), [0; 512]);
            while seen.len() < bytes
                && let Ok(count @ 1..) = (&server).read(&mut chunk)
            {
                seen.extend_from_slice(&chunk[..count]);
                if (&client).write_all(&chunk[..count]).is_err() {
                    break;
                }
            }
            // An orderly TCP close, as an attacker could forge it.
            let _ = client.shutdown(Shutdown::Write);
            let _ = server.shutdown(Shutdown::Read);
            seen.extend(up.join().unwrap());
            seen
        })
    });
    (address, thread)
}

#[test]
fn an_end_without_close_notify_is_a_lost_connection() {
    let (_papers, certificate, server) = self_signed();
    for (bytes, reason) in [(100, "during the TLS handshake"), (2500, "the peer did not end TLS")] {
        let (address, relay) = relay_until(server.address(), bytes);
        let target = Url::parse(&format!("iscsi://{address}/{IQN}")).unwrap();
        let error = list_luns(&mut new_io(), &target, &trusting(&certificate)).unwrap_err();
        assert!(matches!(error, OpenError::Unreachable(_)) && error.to_string().contains(reason), "{error}");
        relay.join().unwrap();
    }
}

#[test]
fn nothing_of_the_data_is_seen_on_the_way() {
    let canary = b"the plaintext canary sings where no cipher is";
    let papers = Papers::new();
    let (certificate, identity) = papers.self_signed(&params("127.0.0.1"));
    let plain_server = Guard::of("mem:40M");
    for (server, options, heard) in
        [(serve(identity), trusting(&certificate), false), (plain_server, options(), true)]
    {
        let (address, relay) = relay_until(server.address(), usize::MAX);
        let mut host = Host::open(address, 0, options).unwrap();
        let span = host.take(64 << 10);
        span.zero(0, 64 << 10);
        span.fill(20_000, canary);
        host.perform(Kind::Write { offset: 0, from: span.clone(), durable: false }).unwrap();
        host.perform(Kind::Read { offset: 0, into: span }).unwrap();
        host.close();
        let seen = relay.join().unwrap();
        assert!(seen.len() > 128 << 10);
        assert_eq!(seen.windows(canary.len()).any(|window| window == canary), heard);
    }
}
