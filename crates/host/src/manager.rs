//! The table of devices in use, and whether a device name still belongs to the disk that was opened.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{LazyLock, Mutex, MutexGuard};

use crate::entry::Entry;
use crate::kernel::Kernel;
use crate::uevent::{Monitor, Received, Uevent};

/// Maximum number of messages read per call: a flood of uevents must not delay a copy.
const MESSAGES_MAX: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    Gone,
    TakenOver,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gone => "the device has gone",
            Self::TakenOver => "another disk has taken over the name of the one that was opened",
        })
    }
}

/// The devices in use by this process, by node name, read from sysfs when opened and again after a uevent.
#[derive(Debug)]
pub struct Devices {
    kernel: Kernel,
    monitor: Option<Monitor>,
    /// `None`: no device has the name now. The table is emptied when uevents were lost: the next check of a device reads it
    /// from sysfs again.
    entries: BTreeMap<String, Option<Entry>>,
}

impl Devices {
    /// An empty table. Without a monitor, [`Devices::check_cached`] reads sysfs at each call.
    pub fn new(kernel: Kernel, monitor: Option<Monitor>) -> Self {
        Self { kernel, monitor, entries: BTreeMap::new() }
    }

    pub fn shared() -> MutexGuard<'static, Self> {
        static DEVICES: LazyLock<Mutex<Devices>> = LazyLock::new(|| {
            let monitor = Monitor::new().inspect_err(|error| tracing::debug!(%error, "no uevents")).ok();
            Mutex::new(Devices::new(Kernel::default(), monitor))
        });
        DEVICES.lock().expect("no panic while locked")
    }

    /// Reads the device with this number from sysfs and records it for later uevents. `None`: sysfs does not show it.
    pub fn open(&mut self, number: u64) -> Option<Entry> {
        let entry = self.kernel.entry(number)?;
        self.entries.insert(entry.name.clone(), Some(entry.clone()));
        Some(entry)
    }

    /// Whether an opened disk still has its name, by the uevents received so far. Reads sysfs if more may wait, or if some
    /// were lost.
    pub fn check_cached(&mut self, opened: &Entry) -> Result<(), Lost> {
        if self.monitor.is_none() || !self.apply_waiting() || !self.entries.contains_key(&opened.name) {
            return self.check_probed(opened);
        }
        self.compare(opened)
    }

    /// Whether an opened disk still has its name, by sysfs: the absence of uevents is no evidence.
    pub fn check_probed(&mut self, opened: &Entry) -> Result<(), Lost> {
        self.update(&opened.name, opened.number);
        self.compare(opened)
    }

    fn compare(&self, opened: &Entry) -> Result<(), Lost> {
        let entry = self.entries.get(&opened.name).and_then(Option::as_ref).ok_or(Lost::Gone)?;
        let same = entry.number == opened.number && entry.diskseq == opened.diskseq;
        if same { Ok(()) } else { Err(Lost::TakenOver) }
    }

    /// Applies the waiting uevents. False if more may wait after `MESSAGES_MAX` messages.
    fn apply_waiting(&mut self) -> bool {
        let Some(monitor) = self.monitor.take() else { return true };
        let complete = self.apply_messages(std::iter::repeat_with(|| monitor.next()).take(MESSAGES_MAX));
        self.monitor = Some(monitor);
        complete
    }

    /// Applies messages up to [`Received::Nothing`]; false if there is none.
    pub(super) fn apply_messages(&mut self, messages: impl IntoIterator<Item = Received>) -> bool {
        for message in messages {
            match message {
                Received::Event(event) => self.apply(&event),
                Received::Other => {}
                // Any of the devices may have changed.
                Received::Overrun => self.entries.clear(),
                Received::Nothing => return true,
            }
        }
        false
    }

    pub fn apply(&mut self, event: &Uevent) {
        if self.entries.contains_key(&event.name) {
            self.update(&event.name, event.number);
        }
    }

    fn update(&mut self, name: &str, number: u64) {
        let entry = self.kernel.entry(number).filter(|entry| entry.name == name);
        self.entries.insert(name.to_owned(), entry);
    }
}
