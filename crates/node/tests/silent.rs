//! A listener that accepts connections and sends nothing.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use block::{Medium, OpenError, wait_ready};
use io::Io;
use node::initiator::{IscsiMedium, Options, Url};

#[test]
fn a_login_that_is_not_answered_ends_after_the_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("iscsi://{}/iqn.2026-11.example:none/0", listener.local_addr().unwrap());
    let options = Options { timeout: Duration::from_secs(1), ..Options::new("iqn.2026-11.example:tester") };
    let mut io = Io::new(area::PoolLimits::default()).unwrap();
    let medium = IscsiMedium::new(Url::parse(&url).unwrap(), options, false).unwrap();
    let mut endpoint = medium.attach(&mut io).unwrap();
    let begun = Instant::now();
    let error = wait_ready(&mut io, &mut [&mut *endpoint]).unwrap_err();
    assert!(matches!(error, OpenError::Unreachable(_)), "{error:?}");
    // Not a measure of speed: the machine's own login timeout is 15 s.
    assert!(begun.elapsed() < Duration::from_secs(10));
}
