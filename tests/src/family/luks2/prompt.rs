//! Passphrases that are typed, and prompts that are interrupted: the terminal shows what is typed afterwards.

use anyhow::{Context as _, Result, ensure};

use super::desk::{BYTES, CHEAP, Desk, LIMIT, VOLUME};
use crate::terminal::Terminal;
use crate::{Cases, Context, program, run, wait_until};

/// Prompts that are interrupted. A race between two threads of a process is lost in some of them.
const TRIES: usize = 20;

/// A prompt waits at a command line; a key or a signal ends it.
struct Interruption {
    name: &'static str,
    line: &'static str,
    signal: Option<&'static str>,
    code: i32,
}

const INTERRUPTIONS: &[Interruption] = &[
    Interruption { name: "ctrl-c", line: "info x.img,volume=luks2", signal: None, code: 130 },
    Interruption {
        name: "ctrl-c-of-serve",
        line: "serve x.img,volume=luks2 --listen 127.0.0.1:0",
        signal: None,
        code: 130,
    },
    Interruption {
        name: "ctrl-c-of-passwd",
        line: "volume passwd x.img --password-file pw",
        signal: None,
        code: 130,
    },
    Interruption { name: "sigterm", line: "info x.img,volume=luks2", signal: Some("-TERM"), code: 143 },
];

fn terminal(desk: &Desk, name: &str, script: &str) -> Result<Terminal> {
    let socket = format!("luks2-{name}-{}", std::process::id());
    Terminal::start(socket, &desk.path(""), script)
}

fn interrupted(context: &Context, of: &Interruption) -> Result<()> {
    let desk = Desk::new(context)?;
    desk.format("x.img", BYTES, "")?;
    // `stty` prints "echo" or "-echo" among the modes.
    let script = format!(
        "for n in $(seq {TRIES}); do clear; {} {}; echo \"ended $n: $? $(stty -a | grep -o -- '[ -]echo ')\"; sleep 0.3; done; sleep 60",
        context.hikyaku.display(),
        of.line
    );
    let terminal = terminal(&desk, of.name, &script)?;
    for number in 1..=TRIES {
        let ended = format!("ended {number}: ");
        let before = number.checked_sub(1).map(|number| format!("ended {number}: ")).unwrap_or_default();
        wait_until(LIMIT, || {
            let screen = terminal.screen()?;
            Ok(screen.contains("assphrase for x.img") && !screen.contains(&before))
        })
        .with_context(|| format!("prompt {number}"))?;
        match of.signal {
            Some(signal) => {
                let pid = terminal.process()?.to_string();
                run(program("kill")?.args([signal, &pid]), LIMIT)?.success()?;
            }
            None => terminal.press("C-c")?,
        }
        let screen = terminal.shows(&[&ended])?;
        let expected = format!("{ended}{}  echo", of.code);
        ensure!(screen.contains(&expected), "try {number}: no {expected:?} in\n{screen}");
    }
    Ok(())
}

/// What is typed opens a volume, and is not shown.
fn typed(context: &Context) -> Result<()> {
    let desk = Desk::new(context)?;
    desk.format("x.img", BYTES, "")?;
    let line = format!(
        "{} volume passwd x.img --password-file pw {CHEAP}; echo ended $?; sleep 60",
        context.hikyaku.display()
    );
    let terminal = terminal(&desk, "typed", &line)?;
    terminal.shows(&["New passphrase for x.img:"])?;
    // Two letters more, which are deleted.
    for key in ["Tr0ub4dor&3xy", "BSpace", "BSpace", "Enter"] {
        terminal.press(key)?;
    }
    terminal.shows(&["Repeat the new passphrase:"])?;
    for key in ["Tr0ub4dor&3", "Enter"] {
        terminal.press(key)?;
    }
    let screen = terminal.shows(&["ended 0"])?;
    ensure!(!screen.contains("Tr0ub"), "what was typed is shown:\n{screen}");
    desk.opens_with("x.img", &["new"])?;
    desk.try_ours(&format!("info x.img,{VOLUME}"))?.expect(4).map(drop)
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    for of in INTERRUPTIONS {
        cases.check(&format!("prompt-{}", of.name), || interrupted(context, of));
    }
    cases.check("prompt-typed", || typed(context));
}
