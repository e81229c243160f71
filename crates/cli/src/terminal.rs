//! Lines that are typed at the terminal without echo.
//!
//! Ctrl-C at a prompt, and a signal from elsewhere, end the process. The terminal is restored before: [`exit`] and [`Silence`] hold
//! one lock while they change it, so a prompt that begins while the process ends does not silence the terminal again.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rpassword::ConfigBuilder;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

const TERMINAL: &str = "/dev/tty";
/// What Ctrl-C sends where the terminal makes no signal of it.
const CTRL_C: u8 = 0x03;

/// The terminal of a prompt, with its modes from before.
static SILENCED: Mutex<Option<(File, Termios)>> = Mutex::new(None);

fn silenced() -> MutexGuard<'static, Option<(File, Termios)>> {
    SILENCED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn restore(silenced: &mut Option<(File, Termios)>) {
    if let Some((terminal, modes)) = silenced.take() {
        // A terminal that is gone has no modes.
        let _ = tcsetattr(&terminal, OptionalActions::Now, &modes);
    }
}

/// Ends the process. If a prompt waits for a line, the terminal has its modes of before.
pub(crate) fn exit(code: i32) -> ! {
    // Held until the process is gone.
    let mut silenced = silenced();
    restore(&mut silenced);
    std::process::exit(code)
}

/// While it lives the terminal shows nothing of what is typed, and passes each byte on at once.
struct Silence;

impl Silence {
    fn new(terminal: File) -> io::Result<Self> {
        let mut silenced = silenced();
        let modes = tcgetattr(&terminal)?;
        let mut silent = modes.clone();
        silent.local_modes -= LocalModes::ECHO | LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG;
        silent.special_codes[SpecialCodeIndex::VMIN] = 1;
        silent.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(&terminal, OptionalActions::Now, &silent)?;
        *silenced = Some((terminal, modes));
        Ok(Self)
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        restore(&mut silenced());
    }
}

/// The bytes of the terminal; Ctrl-C ends the process.
struct Typed(File);

impl Read for Typed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.0.read(buffer)?;
        if buffer[..count].contains(&CTRL_C) {
            // The shell's prompt begins a line.
            let _ = io::Write::write_all(&mut &self.0, b"\n");
            exit(128 + libc::SIGINT);
        }
        Ok(count)
    }
}

/// Prints `prompt` and reads a line, both at the terminal of this process.
pub(crate) fn ask(prompt: &str) -> io::Result<Zeroizing<Vec<u8>>> {
    let terminal = OpenOptions::new().read(true).write(true).open(TERMINAL)?;
    let silence = Silence::new(terminal.try_clone()?)?;
    let mut output = terminal.try_clone()?;
    let config =
        ConfigBuilder::new().input_reader(Typed(terminal)).output_writer(output.try_clone()?).build();
    let line = rpassword::prompt_password_with_config(prompt, config);
    io::Write::write_all(&mut output, b"\n")?;
    drop(silence);
    Ok(Zeroizing::new(line?.into_bytes()))
}
