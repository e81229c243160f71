//! The table of devices, and whether a name still means what it meant.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{LazyLock, Mutex, MutexGuard};

use super::entry::Entry;
use super::kernel::Kernel;
use super::uevent::{Heard, Monitor, Uevent};

/// Messages looked at before an answer is given; a flood of them does not keep a copy from its work.
const MESSAGES_MAX: usize = 4096;

/// What became of a disk that was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lost {
    /// No device has the name.
    Gone,
    /// Another disk has it.
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

/// The devices in use by this process, by node name: read when they are opened, and again when the kernel says that something
/// happened to them.
#[derive(Debug)]
pub struct Devices {
    kernel: Kernel,
    monitor: Option<Monitor>,
    /// `None`: the name is nobody's now.
    entries: BTreeMap<String, Option<Entry>>,
}

impl Devices {
    /// None in use yet. Without a monitor, [`Devices::heard`] looks each time.
    pub fn new(kernel: Kernel, monitor: Option<Monitor>) -> Self {
        Self { kernel, monitor, entries: BTreeMap::new() }
    }

    /// The table of this process.
    pub fn shared() -> MutexGuard<'static, Self> {
        static DEVICES: LazyLock<Mutex<Devices>> = LazyLock::new(|| {
            let monitor = Monitor::new().inspect_err(|error| tracing::debug!(%error, "no uevents")).ok();
            Mutex::new(Devices::new(Kernel::default(), monitor))
        });
        DEVICES.lock().expect("nobody panics with the table")
    }

    /// The device with this number, looked at now and listened for from now on. `None` where sysfs does not show it.
    pub fn open(&mut self, number: u64) -> Option<Entry> {
        let entry = self.kernel.entry(number)?;
        self.entries.insert(entry.name.clone(), Some(entry.clone()));
        Some(entry)
    }

    /// Whether a disk that was opened still has its name, as far as was heard.
    pub fn heard(&mut self, opened: &Entry) -> Result<(), Lost> {
        if self.monitor.is_none() || !self.listen() {
            return self.look(opened);
        }
        self.compare(opened)
    }

    /// Whether a disk that was opened still has its name: sysfs is asked, since silence proves nothing.
    pub fn look(&mut self, opened: &Entry) -> Result<(), Lost> {
        self.update(&opened.name, opened.number);
        self.compare(opened)
    }

    fn compare(&self, opened: &Entry) -> Result<(), Lost> {
        let entry = self.entries.get(&opened.name).and_then(Option::as_ref).ok_or(Lost::Gone)?;
        let same = entry.number == opened.number && entry.diskseq == opened.diskseq;
        if same { Ok(()) } else { Err(Lost::TakenOver) }
    }

    /// Takes in all that was said. False: some of it was lost.
    fn listen(&mut self) -> bool {
        let mut events = Vec::new();
        let complete = self.monitor.as_ref().is_none_or(|monitor| {
            (0..MESSAGES_MAX).any(|_| match monitor.next() {
                Heard::Event(event) => {
                    events.push(event);
                    false
                }
                Heard::Other => false,
                Heard::Nothing => true,
                Heard::Overrun => false,
            })
        });
        events.iter().for_each(|event| self.apply(event));
        complete
    }

    /// Something happened to a device. What it is, is read.
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
