//! Running servers of this user, which hold the storage and the ports that `check --deep` would open.

use std::net::SocketAddr;
use std::path::Path;

use serde_json::Value;

use crate::control::Request;
use crate::control::client;
use crate::error::Failure;

/// The status of each running server that answers.
pub(super) struct Running(Vec<Value>);

impl Running {
    pub(super) fn find() -> Self {
        let servers = client::find().processes.into_iter().filter(|process| process.command == "serve");
        Self(servers.filter_map(|server| server.ask(&Request::Status {}).ok()).collect())
    }

    /// The server of the configuration `file`.
    pub(super) fn of(&self, file: &Path) -> Option<&Value> {
        let wanted = file.canonicalize().ok()?;
        let is_it = |server: &&Value| {
            let path = server["configuration"].as_str().map(Path::new);
            // A relative path is one of that process's working directory.
            path.map(|path| Path::new("/proc").join(server["pid"].to_string()).join("cwd").join(path))
                .and_then(|path| path.canonicalize().ok())
                .is_some_and(|path| path == wanted)
        };
        self.0.iter().find(is_it)
    }

    /// The failure to listen on `address`, with the process that does.
    pub(super) fn who_listens(&self, address: SocketAddr, failure: Failure) -> Failure {
        let holder = self.0.iter().find(|server| listens(server, address));
        let hint = match holder {
            Some(server) => format!("{}, a hikyaku server, listens there: hikyaku status", process(server)),
            None => format!("ss -ltnp 'sport = :{}' names the process that listens there", address.port()),
        };
        failure.hint(hint)
    }
}

pub(super) fn process(server: &Value) -> String {
    format!("process {}", server["pid"])
}

/// Whether a server listens on this address, or on all addresses with this port.
pub(super) fn listens(server: &Value, address: SocketAddr) -> bool {
    let listen = server["listen"].as_array().into_iter().flatten().filter_map(Value::as_str);
    listen.filter_map(|text| text.parse::<SocketAddr>().ok()).any(|other| {
        let overlaps =
            other.ip() == address.ip() || other.ip().is_unspecified() || address.ip().is_unspecified();
        other.port() == address.port() && overlaps
    })
}

pub(super) fn serves(server: &Value, iqn: &str, lun: u16) -> bool {
    let mut luns = server["luns"].as_array().into_iter().flatten();
    luns.any(|other| other["target"] == iqn && other["lun"] == lun)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_holds_its_addresses_and_luns() {
        let server = json!({
            "listen": ["0.0.0.0:3260", "[::1]:3261"],
            "luns": [{ "target": "iqn.2026-11.example:a", "lun": 1 }],
        });
        for (address, expected) in
            [("127.0.0.1:3260", true), ("127.0.0.1:3261", false), ("[::1]:3261", true), ("[::]:3261", true)]
        {
            assert_eq!(listens(&server, address.parse().unwrap()), expected, "{address}");
        }
        assert!(serves(&server, "iqn.2026-11.example:a", 1) && !serves(&server, "iqn.2026-11.example:a", 0));
    }
}
