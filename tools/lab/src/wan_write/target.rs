//! The target of this project over a file in memory: a part in a namespace.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use block::{OpenOptions, Spec};
use node::target::{Access, LocalUsers, LunConfig, Server, ServerConfig, TargetConfig};
use serde::{Deserialize, Serialize};

use super::writer::{Ready, enter};
use crate::part::{Orders, send};
use crate::{Attempted, LabError};

pub(super) const IQN: &str = "iqn.2026-11.example.hikyaku:lab";
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) namespace: PathBuf,
    pub(crate) address: SocketAddr,
    pub(crate) store: PathBuf,
}

impl Target {
    pub(crate) fn run(self, orders: Orders) -> Result<(), LabError> {
        enter(&self.namespace)?;
        let server = Server::start(self.config()?).attempted("start a target")?;
        send(&Ready { pid: std::process::id() })?;
        orders.serve(|_| Ok(()))?;
        server.handle().drain();
        server.wait().attempted("end the target")
    }

    fn config(&self) -> Result<ServerConfig, LabError> {
        let doing = format!("open {}", self.store.display());
        let spec = Spec::parse(&format!("file:{}", self.store.display())).attempted(&doing)?;
        let options = OpenOptions { writable: true, request_alignment: 512, allow_in_use: false };
        let medium = block::open(&spec, &options).attempted(&doing)?;
        let lun = LunConfig::new(0, medium, "lab", 0x3000_0000_0000_2009);
        Ok(ServerConfig {
            listen: vec![self.address],
            advertise: None,
            targets: vec![TargetConfig { iqn: IQN.to_owned(), luns: vec![lun], access: Access::default() }],
            drain_timeout: DRAIN_TIMEOUT,
            threads: None,
            sealing: None,
            local_users: LocalUsers::Any,
            tls: None,
        })
    }
}
