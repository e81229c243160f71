//! Every script of `testing/tcp-script` at [`inet::Engine`], under a clock that the player moves: with sequence numbers
//! that wrap and that do not, and with records that are copied to another address before each event.

mod script;

use std::process::ExitCode;

use libtest_mimic::{Arguments, Failed, Trial};
use tcp_script::{Script, Variation, differences, play, scripts};

/// The peer's initial sequence number and base of time stamps: far from their wrap, and some steps before it.
const NUMBERS: [(u32, u32); 2] = [(100_000, 5_000_000), (0xffff_fc00, 0xffff_fc00)];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let (scripts, known) = match (scripts(), differences::all()) {
        (Ok(scripts), Ok(known)) => (scripts, known),
        (Err(error), _) | (_, Err(error)) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let trials = scripts.into_iter().map(|script| {
        let known = known.clone();
        Trial::test(script.name.clone(), move || {
            differences::judge(&known, "engine", &script.name, every_way(&script)).map_err(Failed::from)
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn every_way(script: &Script) -> Result<(), String> {
    for &version in &script.versions {
        for (iss, ts_base) in NUMBERS {
            for is_moved in [false, true] {
                let variation = Variation { version, iss, ts_base };
                script::with_engine(script.settings, is_moved, |stack| play(script, &variation, stack))
                    .map_err(
                        |failed| if is_moved { format!("copied records: {failed}") } else { failed.0 },
                    )?;
            }
        }
    }
    Ok(())
}
