//! From the events of one connection to its evidence: where the time of the data sender went.
//!
//! Drive [`Attribution`] with every event in the order of capture and with the distances as they become known, then ask
//! for the [`Evidence`]. Both directions are followed, each in the clock of the end that sends its data
//! (docs/internals/monitor.md says why); the one with more data is reported.

mod finish;
mod lane;
mod line;
mod load;
mod pace;
mod stops;
mod values;

use self::lane::Lane;
use super::{Evidence, Protocol};
use crate::event::{Distances, Event, Side, Vantage};

/// Follows one connection.
#[derive(Debug)]
pub struct Attribution {
    lanes: [Lane; 2],
    distances: Distances,
}

impl Default for Attribution {
    fn default() -> Self {
        Self::new()
    }
}

impl Attribution {
    #[must_use]
    pub fn new() -> Self {
        Self { lanes: [Lane::new(Side::Initiator), Lane::new(Side::Target)], distances: Distances::default() }
    }

    /// Round trips between the point of capture and the ends, as known now; they apply to later events.
    pub fn set_distances(&mut self, distances: Distances) {
        if distances == self.distances {
            return;
        }
        self.distances = distances;
        let (initiator, target) = (distances.initiator_ns.unwrap_or(0), distances.target_ns.unwrap_or(0));
        let rtt = initiator.saturating_add(target);
        self.lanes[0].set_distances(initiator, rtt);
        self.lanes[1].set_distances(target, rtt);
    }

    /// FirstBurstLength, bytes, if the login was seen.
    pub fn set_first_burst(&mut self, bytes: Option<u32>) {
        self.lanes[0].set_first_burst(bytes.map(u64::from));
    }

    pub fn handle(&mut self, event: &Event) {
        for lane in &mut self.lanes {
            lane.handle(event);
        }
    }

    /// Memory that is held, about: what the evidence does not need.
    pub(crate) fn held_bytes(&self) -> usize {
        self.lanes.iter().map(Lane::held_bytes).sum()
    }

    /// Where the capture was made, by the distances.
    #[must_use]
    pub fn vantage(&self) -> Vantage {
        let (Some(initiator), Some(target)) = (self.distances.initiator_ns, self.distances.target_ns) else {
            return Vantage::Unknown;
        };
        let rtt = initiator.saturating_add(target);
        if initiator <= rtt / 4 {
            Vantage::At(Side::Initiator)
        } else if target <= rtt / 4 {
            Vantage::At(Side::Target)
        } else {
            Vantage::Between
        }
    }

    /// The evidence of all that was seen; nothing may be handled after it. `protocol` is asked for the end that sent
    /// most data.
    pub fn finish(&mut self, protocol: impl FnOnce(Side) -> Option<Protocol>) -> Evidence {
        for lane in &mut self.lanes {
            lane.finish();
        }
        let [initiator, target] = &self.lanes;
        let lane = if initiator.weight() >= target.weight() { initiator } else { target };
        let sender = lane.sender();
        finish::evidence(lane, self.vantage(), self.distances, protocol(sender))
    }
}
