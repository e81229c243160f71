//! Faults of links.

use std::time::Duration;

use crate::net::Weather;
use crate::random::Random;
use crate::world::Context;

pub(crate) fn weather(random: &mut Random) -> Weather {
    let (low, high) = random.pick(&[(5, 50), (100, 1000), (1000, 30_000), (40_000, 60_000)]);
    Weather {
        latency: low..high,
        fragments: random.pick(&[2, 8, 100]),
        capacity: random.pick(&[2000, 64 << 10, 1 << 20]),
        refused_until: Duration::ZERO,
        doomed: 0,
    }
}

/// Causes one fault of a link, or of all later links.
pub(crate) fn inject(context: &Context, random: &mut Random) {
    let kind = random.within(0..10);
    let time = Duration::from_micros(random.magnitude(100..20_000_000));
    context.net(|net| {
        let links = net.live_links();
        let link = match links.len() {
            0 => None,
            count => Some(links[random.within(0..count as u64) as usize]),
        };
        match (kind, link) {
            (0, _) | (_, None) => net.weather.refused_until = net.now + time.min(Duration::from_secs(3)),
            (1, _) => net.weather.doomed = random.within(1..4) as u32,
            (2 | 3, Some(link)) => net.stall(link, random.within(0..2) as usize, time),
            (4 | 5, Some(link)) => {
                let bytes = random.magnitude(1..100_000);
                net.reset_after(link, random.within(0..2) as usize, bytes);
            }
            (_, Some(link)) => {
                let gather = Duration::from_micros(random.magnitude(1..500_000));
                // Near the time at which the initiator reconnects, or any.
                let back = Duration::from_micros(random.within(80_000..400_000));
                let late = if random.one_in(3) { time } else { back };
                net.half_kill_after(link, gather, !random.one_in(4), late);
            }
        }
    });
}
