//! Messages off the data path, over UNIX sockets of type SOCK_SEQPACKET: JSON, and descriptors beside it in the order
//! that each message states. Written by the supervisor and read by servers, which trust it; written by applications and
//! read by the supervisor, which does not trust them.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// Of one message, without its descriptors.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;
/// Descriptors of one message.
pub const DESCRIPTORS_MAX: usize = 8;
/// What an application must speak; counts incompatible changes.
pub const VERSION: u32 = 1;

/// From the supervisor to `inet`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToInet {
    /// First message: memory of the state and of the counters (both writable), the own doorbell, the page that counts
    /// control messages (read-only). Answer `Ready`.
    Start { addresses: Vec<(IpAddr, u8)>, gateways: Vec<IpAddr>, clients_max: u32, secret: [u8; 16] },
    /// An interface: memory of `inet`, memory of the driver (read-only), frames (read-only), the driver's doorbell.
    Interface { interface: u8 },
    /// An application: memory of `inet`, memory of the application (read-only), its doorbell; then, unless it may read
    /// frames where the driver received them, memory to copy received bytes into.
    Client { client: u32 },
    /// Memory of an application, which `inet` never maps. Answer `Known`, or `Faulty` if it has too much.
    Region { client: u32, region: u32, generation: u32, bytes: u32 },
    /// The application is gone: reset its connections; answer `Drained` when no frame of it waits at a driver.
    ClientGone { client: u32 },
    /// Begin to work.
    Go,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromInet {
    /// Rights have been given up, but for those parts of the confinement that are `missing`.
    Ready {
        missing: Vec<String>,
    },
    /// The first driver has attached: from now on there are addresses and routes.
    Attached,
    Known {
        region: u32,
        generation: u32,
    },
    Drained {
        client: u32,
    },
    /// An application has broken the rules of its rings: disconnect it.
    Faulty {
        client: u32,
    },
    /// A driver has broken its rings: replace it. `epoch` is that of the last one that attached; said again from time to
    /// time until another one attaches.
    DriverFaulty {
        epoch: u32,
    },
}

/// From the supervisor to a driver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToNic {
    /// First message: the device (TAP, packet or wire socket), memory of the driver and memory of `inet` (read-only),
    /// frames, the own doorbell, the doorbell of `inet`, the page that counts control messages (read-only), memory of the
    /// counters. Answer `Ready`. Until `Go` the driver is a spare: it only maps.
    Start {
        device: Device,
        mac: [u8; 6],
    },
    /// An application: memory of the driver, memory of the application (read-only), its doorbell.
    Client {
        client: u32,
    },
    /// Memory of an application, read-only. Answer `Mapped`.
    Region {
        client: u32,
        region: u32,
        generation: u32,
        bytes: u32,
    },
    ClientGone {
        client: u32,
    },
    /// Attach to `inet` as the `epoch`th driver, and begin to work. `mtu` is that of the device at this moment.
    Go {
        epoch: u32,
        mtu: u16,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromNic {
    /// As of `inet`.
    Ready {
        missing: Vec<String>,
    },
    Mapped {
        region: u32,
        generation: u32,
    },
}

/// What is behind a driver's descriptor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// A TAP interface with virtio_net_hdr and offloads on.
    Tap,
    /// AF_PACKET with PACKET_VNET_HDR.
    Packet,
    /// SOCK_SEQPACKET to the driver of another stack, one message a frame, with what goes wrong on the way.
    Wire(Wire),
}

/// What a wire does to the frames that enter it here; the same seed does the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wire {
    pub delay_us: u64,
    /// 0 is unlimited.
    pub bits_per_s: u64,
    /// Shares from 0 to 1.
    pub loss: f64,
    pub reordering: f64,
    pub duplication: f64,
    pub seed: u64,
}

/// From an application to the supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromClient {
    /// First message.
    Hello { version: u32 },
    /// Memory to send from: a memfd, sealed against shrinking. It stays, and counts, until the application leaves: there is
    /// no message that gives it back.
    Region { bytes: u32 },
    /// Instead of `Hello`: answer the state of the servers.
    Status,
}

/// From the supervisor to an application.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToClient {
    /// Memory of the application and of `inet` (read-only), memory of the application and of the driver (read-only), what
    /// is received (read-only, `received_bytes`), the own doorbell, the doorbell of `inet`.
    Welcome {
        client: u32,
        addresses: Vec<(IpAddr, u8)>,
        received_bytes: u64,
    },
    Region {
        region: u32,
        generation: u32,
    },
    Refused {
        why: String,
    },
    Status(serde_json::Value),
}
