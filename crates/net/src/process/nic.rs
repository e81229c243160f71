//! The process of a driver: first as a spare, which maps what its predecessor has mapped, then at work.

use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use area::ring::{Mapped, Words as _};
use area::{Doorbell, PAGE_BYTES, Region, Ringer};
use inet::{Link, Time};
use rustix::event::PollFlags;
use zerocopy::{FromZeros, IntoBytes};

use super::{Doing, Fault, NIC_USER, News, Pulse, Supervisor, exactly, isolate};
use crate::control::{FromNic, ToNic};
use crate::layout::{self, Channel};
use crate::nic::{Counts, Device, Driver, Maps};
use crate::wait::{LOOPS, Next, Turn, Waiter, is_core_shared, now};

/// The driver's counts, then its pulse.
pub(crate) const COUNTERS_BYTES: usize = PAGE_BYTES + Pulse::BYTES;
const _: () = assert!(size_of::<Counts>() <= PAGE_BYTES && size_of::<Counts>().is_multiple_of(8));

/// Serves until the supervisor ends, or until something is wrong. To be called first in a process.
pub fn run() -> Result<Infallible, Fault> {
    let mut supervisor = Supervisor::new()?;
    let (message, descriptors) = supervisor.wait()?;
    let ToNic::Start { device: kind, mac } = message else { return Err(Fault::Unexpected) };
    let (device, bell, mut maps, counters) = {
        let [device, own, inet, frames, bell, inet_bell, news, counters] = exactly(descriptors)?;
        supervisor.news = Some(News::map(news.as_fd(), false).map_err(Fault::Memory)?);
        let (own_bytes, inet_bytes) = (layout::driver::NIC_BYTES, layout::driver::INET_BYTES);
        let channel =
            Channel::map(own.as_fd(), own_bytes, inet.as_fd(), inet_bytes).map_err(Fault::Memory)?;
        let inet_bell = Ringer::from_descriptor(inet_bell);
        let maps = Maps::new(channel, frames.as_fd(), inet_bell).map_err(Fault::Memory)?;
        let counters = Region::shared(counters.as_fd(), COUNTERS_BYTES, true).map_err(Fault::Memory)?;
        (device, bell, maps, Arc::new(counters))
    };
    // Looks at files of the system: before they are out of reach.
    let is_shared = is_core_shared(LOOPS);
    let waiter = Waiter::new(is_shared).map_err(Fault::Wait)?;
    let missing = isolate(NIC_USER, true);
    supervisor.send(&FromNic::Ready { missing })?;
    let (epoch, mtu) = loop {
        let (message, descriptors) = supervisor.wait()?;
        if let ToNic::Go { epoch, mtu } = message {
            break (epoch, mtu);
        }
        on_message(&mut maps, &supervisor, &message, descriptors)?;
    };
    let link = Link { mac, mtu, segments: true };
    let mut driver = Driver::new(maps, Device::new(device, &kind, mtu), link, epoch);
    // Its predecessor may have died asleep.
    driver.disarm();
    Nic {
        supervisor,
        driver,
        waiter,
        bell: Doorbell::from_descriptor(bell),
        counts: Mapped::new(Arc::clone(&counters), 0, size_of::<Counts>()),
        pulse: Pulse::new(counters, PAGE_BYTES),
    }
    .serve()
}

struct Nic {
    supervisor: Supervisor,
    driver: Driver,
    waiter: Waiter,
    bell: Doorbell,
    counts: Mapped,
    pulse: Pulse,
}

impl Nic {
    fn serve(&mut self) -> Result<Infallible, Fault> {
        loop {
            self.pulse.turn();
            if self.supervisor.has_news() {
                while let Some((message, descriptors)) = self.supervisor.take()? {
                    on_message(self.driver.maps(), &self.supervisor, &message, descriptors)?;
                }
            }
            let turn = if self.driver.turn()? { Turn::Handed } else { Turn::Nothing };
            if turn == Turn::Handed {
                write(&self.counts, &self.driver.counts());
            }
            if self.waiter.after(turn) == Next::Look || !self.driver.arm()? {
                continue;
            }
            if !self.supervisor.has_news() {
                self.sleep()?;
            }
            self.driver.disarm();
            self.bell.silence();
        }
    }

    fn sleep(&mut self) -> Result<(), Fault> {
        write(&self.counts, &self.driver.counts());
        let interest = self.driver.interest();
        let (bell, device) = ((self.bell.as_fd(), PollFlags::IN), (self.driver.as_fd(), interest));
        let sources = if interest.is_empty() { &[bell][..] } else { &[bell, device] };
        let deadline = self.driver.deadline().map_or(Time::NEVER, time_of);
        self.pulse.set(Doing::Sleeping { receives: interest.contains(PollFlags::IN) });
        let slept = self.waiter.sleep(sources, deadline);
        self.pulse.set(Doing::Turning);
        slept.map_err(Fault::Wait)
    }
}

fn on_message(
    maps: &mut Maps,
    supervisor: &Supervisor,
    message: &ToNic,
    descriptors: Vec<OwnedFd>,
) -> Result<(), Fault> {
    match *message {
        ToNic::Client { client } => {
            let [own, theirs, bell] = exactly(descriptors)?;
            let (own_bytes, their_bytes) = (layout::direct::NIC_BYTES, layout::direct::CLIENT_BYTES);
            let channel =
                Channel::map(own.as_fd(), own_bytes, theirs.as_fd(), their_bytes).map_err(Fault::Memory)?;
            maps.add_client(client, channel, Ringer::from_descriptor(bell)).map_err(Fault::Memory)
        }
        ToNic::Region { client, region, generation, bytes } => {
            let [memory] = exactly(descriptors)?;
            maps.add_region(client, region, generation, memory.as_fd(), bytes).map_err(Fault::Memory)?;
            supervisor.send(&FromNic::Mapped { region, generation })
        }
        ToNic::ClientGone { client } => {
            maps.remove_client(client);
            Ok(())
        }
        ToNic::Start { .. } | ToNic::Go { .. } => Err(Fault::Unexpected),
    }
}

/// A moment of the clock of `Instant`, which is CLOCK_MONOTONIC too, as a time of [`now`].
fn time_of(at: Instant) -> Time {
    now().after(at.saturating_duration_since(Instant::now()).as_micros() as u64)
}

fn write(page: &Mapped, counts: &Counts) {
    for (word, bytes) in counts.as_bytes().chunks_exact(8).enumerate() {
        page.store(word, u64::from_ne_bytes(bytes.try_into().expect("eight bytes")), Ordering::Relaxed);
    }
}

/// The counts of a driver, from the supervisor's view of its memory.
pub(crate) fn read(page: &Mapped) -> Counts {
    let mut counts = Counts::new_zeroed();
    for (word, bytes) in counts.as_mut_bytes().chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&page.load(word, Ordering::Relaxed).to_ne_bytes());
    }
    counts
}

/// Of two drivers together. Numbers of a driver may be anything, so they wrap.
pub(crate) fn sum(one: &Counts, other: &Counts) -> Counts {
    let mut sum = Counts::new_zeroed();
    let words = one.as_bytes().chunks_exact(8).zip(other.as_bytes().chunks_exact(8));
    for (to, (one, other)) in sum.as_mut_bytes().chunks_exact_mut(8).zip(words) {
        let [one, other] = [one, other].map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
        to.copy_from_slice(&one.wrapping_add(other).to_ne_bytes());
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_pass_through_the_page() {
        let region = Arc::new(Region::new(COUNTERS_BYTES, false).unwrap());
        let page = Mapped::new(region, 0, size_of::<Counts>());
        let counts = Counts { sent_frames: 1, returned: 5, lost: u64::MAX, ..Counts::default() };
        write(&page, &counts);
        assert_eq!(read(&page), counts);
        let other = Counts { returned: 2, lost: 2, ..Counts::default() };
        assert_eq!(
            sum(&counts, &other),
            Counts { sent_frames: 1, returned: 7, lost: 1, ..Counts::default() }
        );
    }

    #[test]
    fn a_moment_to_come_is_as_far_away_on_both_clocks() {
        let at = time_of(Instant::now() + std::time::Duration::from_millis(50));
        assert!((40_000..=50_001).contains(&at.since(now())), "{at:?}");
        assert!(time_of(Instant::now()).since(now()) <= 1);
    }
}
