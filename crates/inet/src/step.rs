//! The steps of a send, for the experiment that takes one apart (`hikyaku lab packet-send`). Without the feature `lab` a
//! mark is nothing.

/// What begins. A name follows the paper's Table 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// The request is prepared, and is made visible: the hop to `inet`.
    RequestPublished,
    /// `inet` has taken the request out of its ring, and checks it.
    RequestTaken,
    /// TCP: the bytes are queued, then become a segment.
    Tcp,
    Ip,
    Ethernet,
    EthernetDone,
    /// Back in TCP.
    IpDone,
    /// The frame is described; its request to the driver is prepared.
    TcpDone,
    /// The frame is made visible: the hop to the driver.
    FramePublished,
    FrameTaken,
    /// The system call of the device.
    Device,
    DeviceDone,
    /// The direct return is made visible: the hop to the application.
    Returned,
    /// The application has taken it.
    ReturnTaken,
}

impl Step {
    pub const ALL: [Self; 14] = [
        Self::RequestPublished,
        Self::RequestTaken,
        Self::Tcp,
        Self::Ip,
        Self::Ethernet,
        Self::EthernetDone,
        Self::IpDone,
        Self::TcpDone,
        Self::FramePublished,
        Self::FrameTaken,
        Self::Device,
        Self::DeviceDone,
        Self::Returned,
        Self::ReturnTaken,
    ];
}

#[cfg(feature = "lab")]
mod hook {
    use std::sync::OnceLock;

    static HOOK: OnceLock<fn(super::Step)> = OnceLock::new();

    /// Calls `hook` at each step of this process from now on; the first hook stays.
    pub fn set(hook: fn(super::Step)) {
        let _ = HOOK.set(hook);
    }

    #[inline]
    pub fn mark(step: super::Step) {
        if let Some(hook) = HOOK.get() {
            hook(step);
        }
    }
}

#[cfg(feature = "lab")]
pub use hook::{mark, set};

#[cfg(not(feature = "lab"))]
#[inline(always)]
pub fn mark(_: Step) {}
