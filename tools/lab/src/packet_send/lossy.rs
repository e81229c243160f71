//! A path that loses and reorders: our TCP and the kernel's CUBIC over the same one, as sender and as receiver.
//!
//! Each connection has a path of its own, on which the fate of the n-th segment is the same for both of a pair. Both
//! reach it through a router: ours from a TAP interface, the kernel's from a veth pair. Connections are slow and sleep,
//! so several pairs run at a time.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::near::{Measure, Measured, Near, Over, Payload};
use super::peer::{PORT, Peer};
use super::plan::Stack;
use super::servers::ServersUp;
use super::waiting::Waiting;
use crate::LabError;
use crate::part::{Part, Role};
use crate::stats::Spread;
use crate::wan::{ADDRESSES, INTERFACE, Namespace, Options as WanOptions, Settings, Wan};

pub(super) const LOSSY: &str = "a path that loses and reorders 1 % at 50 ms";
const RTT: Duration = Duration::from_millis(50);
/// Of segments, in both directions.
const LOSS: f64 = 0.01;
const REORDER: f64 = 0.01;
/// Bytes of one call.
const BYTES: usize = 64 << 10;
/// Pairs at a time.
const LANES: usize = 5;
/// Between an end and the router.
const ROUTER: Ipv4Addr = Ipv4Addr::new(10, 98, 5, 1);
const END: Ipv4Addr = Ipv4Addr::new(10, 98, 5, 2);
const CABLE: &str = "hkcable";

/// Connections of one direction over the same paths.
#[derive(Debug, Default)]
pub(super) struct Lossy {
    pub(super) sends: Pairs,
    pub(super) receives: Pairs,
}

/// MB/s of both of a pair, by seed.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    ours: Vec<f64>,
    kernel: Vec<f64>,
}

impl Lossy {
    pub(super) fn steps(pairs: usize) -> usize {
        2 * pairs.div_ceil(LANES)
    }

    /// Runs `pairs` pairs of `duration` in each direction.
    pub(super) fn run(
        program: &Path,
        pairs: usize,
        duration: Duration,
        next: &mut dyn FnMut(&str) -> Result<(), LabError>,
    ) -> Result<Self, LabError> {
        let mut lossy = Self::default();
        for (is_sender, to) in [(true, &mut lossy.sends), (false, &mut lossy.receives)] {
            let seeds: Vec<_> = (1..=pairs as u64).collect();
            for seeds in seeds.chunks(LANES) {
                next(LOSSY)?;
                let run = |seed, stack| connection(program, seed, stack, is_sender, duration);
                let both = std::thread::scope(|scope| {
                    let start = |&seed: &u64| {
                        [Stack::Three, Stack::Kernel].map(|stack| scope.spawn(move || run(seed, stack)))
                    };
                    let lanes: Vec<_> = seeds.iter().map(start).collect();
                    lanes
                        .into_iter()
                        .map(|lane| lane.map(|end| end.join().expect("a measurement")))
                        .collect::<Vec<_>>()
                });
                for [ours, kernel] in both {
                    to.ours.push(ours?);
                    to.kernel.push(kernel?);
                }
            }
        }
        Ok(lossy)
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for (pairs, name) in self.directions() {
            let [Some(ours), Some(kernel), Some(ratio)] = pairs.spreads() else { continue };
            text += &format!(
                "\n1 % of segments lost and 1 % reordered, round trip 50 ms, {name}: {} MB/s, the kernel's CUBIC {} MB/s; of {} pairs {} of the kernel's.\n",
                ours.show(),
                kernel.show(),
                pairs.ours.len(),
                ratio.show(),
            );
        }
        text
    }

    pub(super) fn objects(&self) -> Vec<Value> {
        let object = |(pairs, name): (&Pairs, &str)| {
            let [ours, kernel, ratio] = pairs.spreads();
            json!({
                "row": format!("{LOSSY}, {name}"),
                "runs": pairs.ours.len(),
                "mb_per_s": ours,
                "kernel_mb_per_s": kernel,
                "of_the_kernel": ratio,
            })
        };
        self.directions().into_iter().filter(|(pairs, _)| !pairs.ours.is_empty()).map(object).collect()
    }

    fn directions(&self) -> [(&Pairs, &'static str); 2] {
        [(&self.sends, "as sender"), (&self.receives, "as receiver")]
    }
}

impl Pairs {
    /// Ours, the kernel's, and the ratio of each pair.
    fn spreads(&self) -> [Option<Spread>; 3] {
        let ratios = self.ours.iter().zip(&self.kernel).map(|(ours, kernel)| ours / kernel);
        [Spread::of(self.ours.iter().copied()), Spread::of(self.kernel.iter().copied()), Spread::of(ratios)]
    }
}

/// MB/s of one connection over a path of its own.
fn connection(
    program: &Path,
    seed: u64,
    stack: Stack,
    is_sender: bool,
    duration: Duration,
) -> Result<f64, LabError> {
    let mut options = WanOptions::new(Settings { loss: LOSS, reorder: REORDER, ..Settings::new(RTT, None) })
        .ipv4("tcp_congestion_control", "cubic")
        .ipv4("ip_forward", "1");
    options.seed = seed;
    let wan = Wan::start(&options)?;
    let (router, far) = (wan.side(0), wan.side(1));
    far.ip(&format!("route add {END} dev {INTERFACE}"))?;
    let (_peer, ()) = Part::start("the peer", &Role::PacketPeer(Peer { namespace: far.path(), cpu: None }))?;
    let peer: Ipv4Addr = ADDRESSES[1].parse().expect("a constant");
    let peer = SocketAddr::V4(SocketAddrV4::new(peer, PORT));
    let ms = duration.as_millis() as u64;
    let measure = match is_sender {
        true => Measure::Out { bytes: BYTES, ms, payload: Payload::InPlace },
        false => Measure::In { bytes: BYTES, ms, by_area: true },
    };
    let near = |over| Near { over, cpu: None, waiting: Waiting::Block, measure };
    let take = |near| Part::start::<Measured>(LOSSY, &Role::PacketNear(near)).map(|(_, measured)| measured);
    let measured = match stack {
        Stack::Kernel => {
            let end = Namespace::new("lossy-end")?;
            router.ip(&format!("link add {CABLE} type veth peer name {CABLE} netns {}", end.name()))?;
            router.ip(&format!("addr add {ROUTER}/24 dev {CABLE}"))?;
            router.ip(&format!("link set {CABLE} up"))?;
            end.ip(&format!("addr add {END}/24 dev {CABLE}"))?;
            end.ip(&format!("link set {CABLE} up"))?;
            end.ip(&format!("route add default via {ROUTER}"))?;
            end.sysctl("net/ipv4/tcp_congestion_control", "cubic")?;
            end.sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
            take(near(Over::Kernel { namespace: end.path(), peer }))?
        }
        _ => {
            router.ip(&format!("tuntap add dev {CABLE} mode tap vnet_hdr"))?;
            router.ip(&format!("addr add {ROUTER}/24 dev {CABLE}"))?;
            router.ip(&format!("link set {CABLE} up"))?;
            let (nic, address, gateway) = (format!("tap:{CABLE}"), format!("{END}/24"), ROUTER.to_string());
            let options = ["--nic", &nic, "--address", &address, "--gateway", &gateway];
            let mut up = ServersUp::start(program, router, &options, [None, None])?;
            up.wait()?;
            take(near(Over::Servers { socket: up.socket(), peer }))?
        }
    };
    Ok(measured.streamed.gb_per_s() * 1e3)
}
