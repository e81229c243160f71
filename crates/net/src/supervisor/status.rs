//! What `net status` shows, as JSON: `docs/schema/net-status.json`.

use serde_json::{Map, Value, json};

use super::child::Child;
use super::config::{Nic, show_mac};
use super::cost;
use super::memory::{Shared, progress};
use super::world::World;
use super::{Supervisor, now};
use crate::layout::{self, RingPlace};
use crate::nic::Counts;

impl Supervisor<'_> {
    pub(super) fn status(&self) -> Value {
        let config = self.config;
        let addresses: Vec<String> =
            config.addresses.iter().map(|(address, length)| format!("{address}/{length}")).collect();
        let mut status = json!({
            "schema": 1,
            "pid": std::process::id(),
            "version": env!("CARGO_PKG_VERSION"),
            "socket": config.socket.display().to_string(),
            "nic": match &config.nic {
                Nic::Tap(name) => format!("tap:{name}"),
                Nic::Packet(name) => format!("packet:{name}"),
                Nic::Wire(path, _) => format!("wire:{}", path.display()),
            },
            "mac": show_mac(config.mac),
            "mtu_bytes": self.link.mtu(),
            "addresses": addresses,
            "gateways": config.gateways.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "clients_max": config.clients_max,
            "is_up": self.state() == "up",
            "state": self.state(),
            "servers": self.servers(),
            "applications": self.applications(),
            "rings": self.world.as_ref().map(rings).unwrap_or_default(),
        });
        if let Some(world) = &self.world {
            add_counters(&mut status, world);
        }
        status
    }

    /// In one word what works, or why nothing does.
    fn state(&self) -> &'static str {
        match &self.world {
            None if self.link.opened().is_none() => "waiting_for_wire",
            Some(world) if world.is_up() => match world.driver {
                None => "no_driver",
                Some(_) if !self.link.is_joined() => "wire_ended",
                Some(_) if self.link.is_down() => "interface_down",
                Some(_) => "up",
            },
            None | Some(_) => "starting",
        }
    }

    fn servers(&self) -> Vec<Value> {
        let Some(world) = &self.world else { return Vec::new() };
        let now = now();
        let server = |name: &str, child: &Child, restarts: Option<u32>| {
            json!({
                "server": name,
                "pid": child.pid(),
                "up_s": now.since(child.started_at) as f64 / 1e6,
                "restarts": restarts,
                "is_ready": child.is_ready,
                "cpu_s": cost::cpu_s(child.pid()),
                "private_bytes": cost::private_bytes(child.pid()),
            })
        };
        let inet = server("inet", &world.inet, Some(self.inet_restarts));
        let driver = world.driver.as_ref();
        let driver = driver.map(|driver| server("nic", driver, Some(world.succession.restarts())));
        let spare = world.spare.as_ref().map(|spare| server("nic (spare)", spare, None));
        [Some(inet), driver, spare].into_iter().flatten().collect()
    }

    fn applications(&self) -> Vec<Value> {
        let Some(world) = &self.world else { return Vec::new() };
        let all = self.connections.all().filter_map(|connection| Some((connection.client()?, connection)));
        all.map(|(client, connection)| {
            let (regions, bytes) = world.clients.memory_of(client);
            json!({ "client": client, "pid": connection.pid, "regions": regions, "region_bytes": bytes })
        })
        .collect()
    }
}

/// Fill and total of each ring. A ring whose counters make no sense is left out.
fn rings(world: &World) -> Vec<Value> {
    let mut rings = Vec::new();
    let mut add = |client: Option<u32>, ring: &RingPlace, memories: [&Shared; 2]| {
        if let Some([published, consumed]) = progress(ring, memories) {
            rings.push(json!({
                "ring": ring.name,
                "client": client,
                "slots": ring.slots,
                "waiting": published - consumed,
                "total": published,
            }));
        }
    };
    for ring in &layout::driver::RINGS {
        add(None, ring, world.interface_memories());
    }
    for (client, application) in world.applications() {
        for ring in &layout::client::RINGS {
            add(Some(client), ring, [&application.requests, &application.completions]);
        }
        add(Some(client), &layout::direct::RING, [&application.returns, &application.direct]);
    }
    rings
}

/// Counters of `inet` and of its drivers since `inet` was started, and what follows from them.
fn add_counters(status: &mut Value, world: &World) {
    let inet: Map<String, Value> = world
        .inet_counters()
        .read()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.into()))
        .collect();
    let counts = world.nic_counts();
    let number = |name: &str| inet.get(name).and_then(Value::as_u64).unwrap_or_default();
    // Shares of numbers that a server wrote may be anything.
    let share = (number("direct_returns") > 0)
        .then(|| (counts.returned as f64 / number("direct_returns") as f64).clamp(0.0, 1.0));
    let dropped: u64 = inet
        .iter()
        .filter(|(name, _)| name.starts_with("dropped_"))
        .filter_map(|(_, value)| value.as_u64())
        .fold(0, u64::wrapping_add);
    status["returned_directly_share"] = json!(share);
    status["copied_bytes"] = json!(number("bytes_copied"));
    status["drops"] = json!({
        "inet": dropped,
        "syns": number("syns_dropped"),
        "half_open": number("half_open_dropped"),
        "orphans": number("orphans_reset"),
        "segments": number("segments_dropped"),
        "refused_by_device": counts.refused,
        "wrong_slots": counts.bad_frames.wrapping_add(counts.bad_fills),
        "not_received": counts.unreceived,
        "lost_on_wire": counts.lost,
    });
    status["inet"] = Value::Object(inet);
    status["driver"] = driver(&counts);
}

fn driver(counts: &Counts) -> Value {
    json!({
        "sent_frames": counts.sent_frames,
        "sent_bytes": counts.sent_bytes,
        "received_frames": counts.received_frames,
        "received_bytes": counts.received_bytes,
        "returned": counts.returned,
        "returns_skipped": counts.returns_skipped,
        "busy": counts.busy,
        "refused": counts.refused,
        "bad_frames": counts.bad_frames,
        "bad_fills": counts.bad_fills,
        "unreceived": counts.unreceived,
        "bad_checksums": counts.bad_checksums,
        "lost": counts.lost,
    })
}
