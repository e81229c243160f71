//! What reaches a running server beside iSCSI: requests at its control socket and for its metrics, and what an earlier
//! process has left to it.

use hikyaku::fuzz::{control_request, heritage, metrics_response};

use crate::Source;

/// The first byte selects the kind of input.
pub fn service(bytes: &[u8]) {
    let mut source = Source::new(bytes);
    match source.byte() % 3 {
        0 => {
            let _ = control_request(source.rest());
        }
        1 => {
            let request = source.rest();
            let response = metrics_response(request);
            let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())), "{head}");
            let authorized = request.windows(5).any(|text| text == b"token");
            assert!(authorized || !head.starts_with("HTTP/1.1 200 "), "no token is needed");
        }
        _ => {
            let _ = heritage(source.rest());
        }
    }
}
