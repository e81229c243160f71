//! `--metrics`: counters for Prometheus over HTTP, and a health check.
//!
//! `GET /metrics` answers in the OpenMetrics text format, `GET /health` with 200, or 503 while the server drains. Labels are
//! target, LUN and class of commands, so that their number is bounded by the configuration; initiators are not labels.
//! Each connection has a thread and a request of at most [`EXCHANGE_MAX`]. Of more than [`CONNECTIONS_MAX`] the oldest
//! without a request is closed, so that silent connections do not delay a scrape.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use node::target::{Class, LunState, LunStatus, ServerHandle, ServerStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, NoLabelSet};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Registry, Unit};
use sha2::{Digest, Sha256};

use super::status::unix_seconds;
use crate::error::Failure;
use crate::trust::file::{self, Keeping};

/// Time for a request to arrive, and again for its response to be taken.
const EXCHANGE_MAX: Duration = Duration::from_secs(2);
/// Bound of connections at a time.
const CONNECTIONS_MAX: usize = 8;
const REQUEST_BYTES_MAX: usize = 8 << 10;
const HEADERS_MAX: usize = 32;
const TOKEN_BYTES_MAX: usize = 4 << 10;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Upper bounds of the intervals of service times, in microseconds; +Inf follows.
const BOUNDS_US: [u64; 13] =
    [50, 100, 200, 500, 1000, 2000, 5000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 10_000_000];

/// SHA-256 of the token: two digests are compared in a time that says nothing about the token.
pub(crate) type TokenDigest = [u8; 32];

#[derive(Debug)]
pub(super) struct Metrics {
    listener: TcpListener,
    token: Option<TokenDigest>,
    /// Oldest first.
    open: Mutex<Vec<Arc<Peer>>>,
}

#[derive(Debug)]
struct Peer {
    stream: TcpStream,
    /// Its request has arrived.
    is_answered: AtomicBool,
}

impl Metrics {
    pub(super) fn bind(address: SocketAddr, token_file: Option<&Path>) -> Result<Self, Failure> {
        let token = token(address, token_file)?;
        let listener = TcpListener::bind(address)
            .map_err(|error| Failure::failed("offer metrics on", address.to_string(), error))?;
        Ok(Self { listener, token, open: Mutex::default() })
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until the process ends.
    pub(super) fn serve(&self, handle: &ServerHandle) -> ! {
        let since = std::time::SystemTime::now();
        self.answer_all(&|| (handle.status(), unix_seconds(since)))
    }

    fn answer_all(&self, status: &(dyn Fn() -> (ServerStatus, u64) + Sync)) -> ! {
        std::thread::scope(|scope| {
            loop {
                let Ok((stream, _)) = self.listener.accept() else {
                    std::thread::sleep(ACCEPT_PAUSE);
                    continue;
                };
                let peer = Arc::new(Peer { stream, is_answered: AtomicBool::new(false) });
                if !self.admit(&peer) {
                    continue;
                }
                let talk = {
                    let peer = Arc::clone(&peer);
                    move || {
                        // The peer sees the end of the connection.
                        let _ = self.exchange(&peer, status);
                        self.dismiss(&peer);
                    }
                };
                let name = "metrics-answer".to_owned();
                if std::thread::Builder::new().name(name).spawn_scoped(scope, talk).is_err() {
                    self.dismiss(&peer);
                }
            }
        })
    }

    /// Adds a connection to the open ones; closes the oldest without a request if there are too many. False: all of them
    /// are being answered.
    fn admit(&self, peer: &Arc<Peer>) -> bool {
        let mut open = self.peers();
        if open.len() >= CONNECTIONS_MAX {
            let Some(oldest) = open.iter().position(|peer| !peer.is_answered.load(Ordering::Acquire)) else {
                return false;
            };
            // Ends the waiting read of its thread.
            let _ = open.remove(oldest).stream.shutdown(Shutdown::Both);
        }
        open.push(Arc::clone(peer));
        true
    }

    fn dismiss(&self, peer: &Arc<Peer>) {
        self.peers().retain(|open| !Arc::ptr_eq(open, peer));
    }

    /// The list is consistent after every statement: poisoning is ignored.
    fn peers(&self) -> MutexGuard<'_, Vec<Arc<Peer>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exchange(&self, peer: &Peer, status: &dyn Fn() -> (ServerStatus, u64)) -> io::Result<()> {
        let request = receive(&peer.stream, Instant::now() + EXCHANGE_MAX)?;
        peer.is_answered.store(true, Ordering::Release);
        let response = respond(&request, self.token.as_ref(), &mut || status());
        send(&peer.stream, response.as_bytes(), Instant::now() + EXCHANGE_MAX)
    }
}

/// Sends a response; a peer that takes it slowly gets what it has taken by `until`.
fn send(mut stream: &TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(bytes)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}

/// The time until a moment, which is not zero.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The token that requests at `address` must carry. Beyond loopback one is required.
pub(crate) fn token(address: SocketAddr, file: Option<&Path>) -> Result<Option<TokenDigest>, Failure> {
    if file.is_none() && !address.ip().to_canonical().is_loopback() {
        let cause =
            "everyone who can reach it could read the names of targets and storage, and what is transferred";
        return Err(Failure::refused("offer metrics on", address.to_string(), cause)
            .hint("--metrics-token-file FILE, or an address of loopback"));
    }
    file.map(read_token).transpose()
}

fn read_token(path: &Path) -> Result<TokenDigest, Failure> {
    let failed = |cause: &dyn std::fmt::Display| {
        Failure::usage("use the token", path.display().to_string(), cause)
            .hint("openssl rand -hex 32 > FILE; chmod 600 FILE")
    };
    let text = file::read(path, "the token of the metrics", Keeping::Secret, TOKEN_BYTES_MAX)?
        .map_err(|error| failed(&error))?;
    match text.trim_ascii() {
        [] => Err(failed(&"the file is empty")),
        token if token.iter().all(u8::is_ascii_graphic) => Ok(Sha256::digest(token).into()),
        _ => Err(failed(&"a token is one line of visible ASCII characters")),
    }
}

/// Reads a request up to the empty line behind its headers.
fn receive(mut stream: &TcpStream, until: Instant) -> io::Result<Vec<u8>> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|four| four == b"\r\n\r\n") && request.len() < REQUEST_BYTES_MAX {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut part)? {
            0 => break,
            count => request.extend_from_slice(&part[..count]),
        }
    }
    Ok(request)
}

/// The response to the bytes of a request. `status` returns the status and the time of the start.
fn respond(
    bytes: &[u8],
    token: Option<&TokenDigest>,
    status: &mut dyn FnMut() -> (ServerStatus, u64),
) -> String {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    if !matches!(request.parse(bytes), Ok(httparse::Status::Complete(_))) {
        return http("400 Bad Request", "", "not a request\n");
    }
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    if request.method != Some("GET") {
        return http("405 Method Not Allowed", "Allow: GET\r\n", "only GET\n");
    }
    if token.is_some_and(|token| !is_authorized(request.headers, token)) {
        return http("401 Unauthorized", "WWW-Authenticate: Bearer\r\n", "a bearer token is required\n");
    }
    match path {
        "/metrics" => {
            let (status, since) = status();
            http("200 OK", &format!("Content-Type: {CONTENT_TYPE}\r\n"), &text(status, since))
        }
        "/health" => match status().0.draining {
            true => http("503 Service Unavailable", "", "draining\n"),
            false => http("200 OK", "", "serving\n"),
        },
        _ => http("404 Not Found", "", "/metrics and /health\n"),
    }
}

/// For the fuzzer.
pub(crate) fn fuzzed(request: &[u8]) -> String {
    let idle = ServerStatus {
        key: None,
        next_key: None,
        addresses: Vec::new(),
        sessions: Vec::new(),
        luns: Vec::new(),
        connections: 0,
        refused: 0,
        sealing: node::SealPolicy::Off,
        draining: false,
    };
    respond(request, Some(&Sha256::digest("token").into()), &mut || (idle.clone(), 0))
}

fn is_authorized(headers: &[httparse::Header<'_>], token: &TokenDigest) -> bool {
    let mut given = headers.iter().filter(|header| header.name.eq_ignore_ascii_case("authorization"));
    given.any(|header| {
        let token_given = header.value.strip_prefix(b"Bearer ").unwrap_or_default().trim_ascii();
        TokenDigest::from(Sha256::digest(token_given)) == *token
    })
}

fn http(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

fn text(status: ServerStatus, since_unix_s: u64) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Snapshot { status, since_unix_s }));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).expect("writing to a string");
    text
}

/// The status of the server at one moment, as metrics.
#[derive(Debug)]
struct Snapshot {
    status: ServerStatus,
    since_unix_s: u64,
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.server(&mut encoder)?;
        self.process(&mut encoder)?;
        self.luns(&mut encoder)?;
        self.commands(&mut encoder)
    }
}

fn single(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    unit: Option<&Unit>,
    metric: &(impl EncodeMetric + TypedMetric),
) -> Result<(), std::fmt::Error> {
    metric.encode(encoder.encode_descriptor(name, help, unit, metric.metric_type())?)
}

impl Snapshot {
    fn server(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        encoder
            .encode_descriptor("hikyaku_build", "Version of the program", None, MetricType::Info)?
            .encode_info(&version)?;
        let Self { status, since_unix_s } = self;
        let gauges = [
            ("hikyaku_sessions", "Sessions that are logged in", status.sessions.len() as u64),
            ("hikyaku_connections", "Connections, logged in or not", status.connections as u64),
            ("hikyaku_draining", "1 while the server drains", u64::from(status.draining)),
        ];
        for (name, help, value) in gauges {
            single(encoder, (name, help), None, &ConstGauge::new(value as i64))?;
        }
        let refused = ("hikyaku_connections_refused", "Connections that came to no session");
        single(encoder, refused, None, &ConstCounter::new(status.refused))?;
        let start = ("process_start_time", "Start of the process since 1970");
        single(encoder, start, Some(&Unit::Seconds), &ConstGauge::new(*since_unix_s as i64))
    }

    fn process(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let usage = job::cpu::usage();
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        let cpu = seconds(usage.ru_utime) + seconds(usage.ru_stime);
        let name = ("process_cpu", "CPU time of the process, user and system");
        single(encoder, name, Some(&Unit::Seconds), &ConstCounter::new(cpu))
    }

    fn luns(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let luns = &self.status.luns;
        let about = ("hikyaku_lun_size", "Size of the LUN");
        let mut sizes = encoder.encode_descriptor(about.0, about.1, Some(&Unit::Bytes), MetricType::Gauge)?;
        for lun in luns {
            ConstGauge::new(lun.size_bytes as i64).encode(sizes.encode_family(&labels(lun, None))?)?;
        }
        let help = "1 for the state that the LUN is in";
        let mut states = encoder.encode_descriptor("hikyaku_lun_state", help, None, MetricType::Gauge)?;
        for lun in luns {
            for state in [LunState::Ready, LunState::FlushFailed, LunState::InDoubt] {
                let labels = labels(lun, Some(("state", state.name())));
                ConstGauge::new(i64::from(lun.state == state)).encode(states.encode_family(&labels)?)?;
            }
        }
        let help = "Commands that ended with MEDIUM ERROR, HARDWARE ERROR, DATA PROTECT or ABORTED COMMAND";
        let mut errors =
            encoder.encode_descriptor("hikyaku_command_errors", help, None, MetricType::Counter)?;
        for lun in luns {
            ConstCounter::new(lun.usage.errors).encode(errors.encode_family(&labels(lun, None))?)?;
        }
        let help = "Commands answered with BUSY or TASK SET FULL, which the initiator sends again";
        let mut retries =
            encoder.encode_descriptor("hikyaku_retries_requested", help, None, MetricType::Counter)?;
        for lun in luns {
            ConstCounter::new(lun.usage.refused).encode(retries.encode_family(&labels(lun, None))?)?;
        }
        Ok(())
    }

    fn commands(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let all = || {
            let luns = self.status.luns.iter();
            luns.flat_map(|lun| Class::ALL.into_iter().map(move |class| (lun, class)))
        };
        let of = |lun, class: Class| labels(lun, Some(("class", class.name())));
        let help = "Commands that got a response";
        let mut commands = encoder.encode_descriptor("hikyaku_commands", help, None, MetricType::Counter)?;
        for (lun, class) in all() {
            let count = ConstCounter::new(lun.usage.commands[class as usize]);
            count.encode(commands.encode_family(&of(lun, class))?)?;
        }
        let help = "Data of commands that succeeded";
        let unit = Some(&Unit::Bytes);
        let mut bytes = encoder.encode_descriptor("hikyaku_data", help, unit, MetricType::Counter)?;
        for (lun, class) in all() {
            let count = ConstCounter::new(lun.usage.bytes[class as usize]);
            count.encode(bytes.encode_family(&of(lun, class))?)?;
        }
        let help = "Time from a command's header to its response in the send queue; estimated from some of the commands";
        let unit = Some(&Unit::Seconds);
        let mut times =
            encoder.encode_descriptor("hikyaku_command_duration", help, unit, MetricType::Histogram)?;
        for (lun, class) in all() {
            let (sum, count, buckets) = histogram(lun, class);
            let labels = of(lun, class);
            times.encode_family(&labels)?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

type Labels = Vec<(&'static str, String)>;

fn labels(lun: &LunStatus, more: Option<(&'static str, &str)>) -> Labels {
    let mut labels = vec![("target", escaped(&lun.target)), ("lun", lun.lun.to_string())];
    labels.extend(more.map(|(name, value)| (name, escaped(value))));
    labels
}

/// A label's value with the escapes of the text format, which the library leaves to its caller.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

/// Sum in seconds, count, and the number within each interval by its upper bound in seconds.
fn histogram(lun: &LunStatus, class: Class) -> (f64, u64, Vec<(f64, u64)>) {
    let usage = &lun.usage;
    let mut buckets: Vec<(f64, u64)> = BOUNDS_US.iter().map(|bound| (*bound as f64 / 1e6, 0)).collect();
    buckets.push((f64::MAX, 0));
    let times = &usage.times_us[class as usize];
    for (time, count) in times {
        buckets[BOUNDS_US.partition_point(|bound| bound < time)].1 += count;
    }
    let count = times.iter().map(|(_, count)| count).sum();
    (usage.times_sum[class as usize].as_secs_f64(), count, buckets)
}

#[cfg(test)]
mod tests {
    use node::SealPolicy;
    use node::target::UsageStatus;

    use super::*;

    fn status() -> (ServerStatus, u64) {
        let usage = UsageStatus {
            commands: [30, 2, 0],
            bytes: [4096, 512, 0],
            errors: 1,
            refused: 3,
            times_us: [vec![(40, 10), (100, 5), (20_000_000, 1)], vec![(51, 2)], vec![]],
            times_sum: [Duration::from_millis(1500), Duration::ZERO, Duration::ZERO],
        };
        let lun = LunStatus {
            target: "iqn.2026-11.example:a\"b".into(),
            lun: 7,
            storage: "/a.img".into(),
            size_bytes: 1 << 20,
            block_size: 512,
            read_only: false,
            state: LunState::FlushFailed,
            usage,
        };
        let status = ServerStatus {
            key: None,
            next_key: None,
            addresses: Vec::new(),
            sessions: Vec::new(),
            luns: vec![lun],
            connections: 2,
            refused: 5,
            sealing: SealPolicy::Off,
            draining: false,
        };
        (status, 1000)
    }

    #[test]
    fn metrics_have_names_units_and_escaped_labels() {
        let (status, since) = status();
        let text = text(status, since);
        let labels = r#"target="iqn.2026-11.example:a\"b",lun="7""#;
        for line in [
            "hikyaku_sessions 0".to_owned(),
            "hikyaku_connections_refused_total 5".to_owned(),
            "process_start_time_seconds 1000".to_owned(),
            format!("hikyaku_lun_size_bytes{{{labels}}} 1048576"),
            format!("hikyaku_lun_state{{{labels},state=\"ready\"}} 0"),
            format!("hikyaku_lun_state{{{labels},state=\"flush-failed\"}} 1"),
            format!("hikyaku_command_errors_total{{{labels}}} 1"),
            format!("hikyaku_retries_requested_total{{{labels}}} 3"),
            format!("hikyaku_commands_total{{{labels},class=\"read\"}} 30"),
            format!("hikyaku_data_bytes_total{{{labels},class=\"write\"}} 512"),
            format!("hikyaku_command_duration_seconds_sum{{{labels},class=\"read\"}} 1.5"),
            format!("hikyaku_command_duration_seconds_count{{{labels},class=\"read\"}} 16"),
            format!("hikyaku_command_duration_seconds_bucket{{le=\"0.0001\",{labels},class=\"read\"}} 15"),
            format!("hikyaku_command_duration_seconds_bucket{{le=\"10.0\",{labels},class=\"read\"}} 15"),
            format!("hikyaku_command_duration_seconds_bucket{{le=\"+Inf\",{labels},class=\"read\"}} 16"),
            format!("hikyaku_command_duration_seconds_bucket{{le=\"0.00005\",{labels},class=\"write\"}} 0"),
        ] {
            assert!(text.lines().any(|found| found == line), "no {line} in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn a_slow_peer_is_cut_in_both_directions() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let limit = Duration::from_millis(200);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // A byte at a time, for longer than the limit, in each direction.
                for number in 0..24 {
                    let _ = if number < 12 { peer.write(b"G") } else { peer.read(&mut [0; 1]) };
                    std::thread::sleep(limit / 8);
                }
            });
            let started = Instant::now();
            receive(&stream, started + limit).unwrap_err();
            let response = vec![b'x'; 64 << 20];
            send(&stream, &response, Instant::now() + limit).unwrap_err();
            assert!(started.elapsed() < 25 * limit, "{:?}", started.elapsed());
        });
    }

    #[test]
    fn silent_connections_do_not_delay_a_scrape() {
        let metrics = Metrics::bind("127.0.0.1:0".parse().unwrap(), None).unwrap();
        let address = metrics.address().unwrap();
        // It ends with the process.
        std::thread::spawn(move || metrics.answer_all(&status));
        let started = Instant::now();
        let mut silent: Vec<_> =
            (0..2 * CONNECTIONS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        for _ in 0..2 {
            let mut scrape = TcpStream::connect(address).unwrap();
            scrape.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            let mut text = String::new();
            scrape.read_to_string(&mut text).unwrap();
            assert!(text.starts_with("HTTP/1.1 200 ") && text.ends_with("# EOF\n"), "{text}");
        }
        // The oldest were closed, the others still may send a request.
        assert!(matches!(silent[0].read(&mut [0]), Ok(0)));
        let youngest = silent.last_mut().unwrap();
        youngest.write_all(b"GET /health HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        youngest.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        assert!(started.elapsed() < EXCHANGE_MAX / 2, "{:?}", started.elapsed());
    }

    #[test]
    fn requests_are_answered_by_path_method_and_token() {
        let token: TokenDigest = Sha256::digest("t0ken").into();
        let answer = |request: &str, token| {
            respond(request.as_bytes(), token, &mut status).lines().next().unwrap_or_default().to_owned()
        };
        let with = |headers: &str| format!("GET /metrics HTTP/1.1\r\n{headers}\r\n");
        for (request, status) in [
            (with(""), 200),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n".to_owned(), 200),
            ("GET /health HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), 200),
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), 404),
            ("GET /../metrics HTTP/1.1\r\n\r\n".to_owned(), 404),
            ("POST /metrics HTTP/1.1\r\n\r\n".to_owned(), 405),
            ("GET /metrics HTTP/1.1\r\n".to_owned(), 400),
            ("\u{0}\u{1}".to_owned(), 400),
            (String::new(), 400),
            (with(&"A: b\r\n".repeat(HEADERS_MAX + 1)), 400),
        ] {
            assert!(answer(&request, None).starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}");
        }
        for (headers, status) in [
            ("", 401),
            ("Authorization: Bearer t0ken\r\n", 200),
            ("AUTHORIZATION: Bearer t0ken \r\n", 200),
            ("Authorization: Bearer t0ke\r\n", 401),
            ("Authorization: Basic t0ken\r\n", 401),
            ("Authorization: Bearer \r\n", 401),
        ] {
            assert!(answer(&with(headers), Some(&token)).contains(&status.to_string()), "{headers}");
        }
        let mut draining = || (ServerStatus { draining: true, ..status().0 }, 0);
        assert!(respond(b"GET /health HTTP/1.1\r\n\r\n", None, &mut draining).contains(" 503 "));
    }
}
