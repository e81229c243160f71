//! The kernel's initiator over a path with a delay, observed by `watch --json` inside the emulated machine
//! (`tests/kernel-lab/send-buffer.sh`): open-iscsi's SO_SNDBUF limits it, and no longer does with
//! `node.conn[0].tcp.window_size` = 0. Part of the family `kernel`; full runs only.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::FULL_ONLY;
use super::guest::with_program;
use super::kernel::script;
use crate::process::tail;
use crate::{Cases, Context, Scene, run, scratch};

const LIMIT: Duration = Duration::from_secs(400);
/// Each way. A round trip of 200 ms lets 1 MiB in flight carry 5 MB/s, which the emulated processor can exceed.
const DELAY_MS: u32 = 100;
const SECONDS_EACH: u32 = 10;
/// SO_SNDBUF of open-iscsi, doubled by the kernel.
const FIXED_BYTES: f64 = 1048576.0;

/// What the guest printed.
struct Observed {
    text: String,
}

impl Observed {
    fn new(context: &Context) -> Result<Self> {
        let dir = scratch()?;
        let mut command = with_program(context, dir.path())?;
        command.arg(script(context, "send-buffer.sh"));
        command.args([format!("DELAY_MS={DELAY_MS}"), format!("SECONDS_EACH={SECONDS_EACH}")]);
        let output = run(&mut command, LIMIT)?;
        let text = output.text().replace('\r', "");
        ensure!(text.lines().any(|line| line.trim() == "DONE"), "{}", tail(&text, 3000));
        Ok(Self { text })
    }

    fn lines<'a>(&'a self, beginning: &'a str) -> impl Iterator<Item = &'a str> {
        self.text.lines().filter_map(move |line| line.strip_prefix(beginning))
    }

    /// Objects of `watch --json` in a case.
    fn objects(&self, case: &str) -> Result<Vec<Value>> {
        let beginning = format!("WATCH {case} ");
        let parse = |line: &str| serde_json::from_str(line).with_context(|| line.to_owned());
        let objects: Vec<Value> = self.lines(&beginning).map(parse).collect::<Result<_>>()?;
        ensure!(objects.len() >= 3, "only {} lines of {case}:\n{}", objects.len(), tail(&self.text, 3000));
        Ok(objects)
    }

    /// The greatest value of a field of the samples.
    fn most(&self, case: &str, field: &str) -> Result<f64> {
        let objects = self.objects(case)?;
        let values = objects.iter().filter_map(|object| object["sample"][field].as_f64());
        values.reduce(f64::max).with_context(|| format!("no sample of {case} has {field}"))
    }

    fn rate(&self, case: &str) -> Result<f64> {
        let rate = self.lines("RATE ").find_map(|line| line.strip_prefix(case)?.trim().parse().ok());
        rate.with_context(|| format!("no RATE {case}:\n{}", tail(&self.text, 3000)))
    }

    /// The limits that `watch` named in a case, in order.
    fn limits(&self, case: &str) -> Result<Vec<String>> {
        let limit = |object: &Value| object["verdict"]["limit"].as_str().map(str::to_owned);
        Ok(self.objects(case)?.iter().filter_map(limit).collect())
    }
}

fn kernel_session_is_found(observed: &Observed) -> Result<()> {
    for case in ["fixed", "freed"] {
        let wanted = format!("iqn.2026-11.org.example:{case}");
        let objects = observed.objects(case)?;
        let is_it = |object: &Value| object["session"]["kernel_session"]["target"] == wanted.as_str();
        ensure!(objects.iter().any(is_it), "no object has the kernel's session {wanted}: {}", objects[0]);
    }
    Ok(())
}

fn buffer_is_seen(observed: &Observed) -> Result<()> {
    let (cap, queue) =
        (observed.most("fixed", "send_buffer_bytes")?, observed.most("fixed", "send_queue_bytes")?);
    demand!(cap == FIXED_BYTES && queue >= 0.8 * cap, "{queue} of {cap} bytes in the send queue")
}

fn setting_frees_it(observed: &Observed) -> Result<()> {
    let cap = observed.most("freed", "send_buffer_bytes")?;
    let in_flight = observed.most("freed", "waiting_ack_bytes")?;
    demand!(
        cap > 1.5 * FIXED_BYTES && in_flight > FIXED_BYTES,
        "{in_flight} bytes in flight of a send buffer of {cap}"
    )
}

/// Whether `watch` names the send buffer in most of its verdicts of the first case, and in no more than half of the
/// second's.
fn limit_is_named(observed: &Observed) -> Result<()> {
    let (fixed, freed) = (observed.limits("fixed")?, observed.limits("freed")?);
    ensure!(!fixed.is_empty() && !freed.is_empty(), "{} and {} verdicts", fixed.len(), freed.len());
    let share = |limits: &[String]| {
        let named = limits.iter().filter(|limit| *limit == "send_buffer").count();
        named as f64 / limits.len().max(1) as f64
    };
    let (fixed, freed) = (share(&fixed), share(&freed));
    demand!(fixed > 0.5 && freed <= 0.5, "send_buffer in {fixed} of the verdicts before, {freed} after")
}

pub(super) fn examine(context: &Context, cases: &mut Cases) {
    let observed = Scene::new(|| Observed::new(context));
    cases.check_some(FULL_ONLY, "send-buffer/kernel-session", || kernel_session_is_found(observed.get()?));
    cases.check_some(FULL_ONLY, "send-buffer/seen", || buffer_is_seen(observed.get()?));
    cases.check_some(FULL_ONLY, "send-buffer/freed", || setting_frees_it(observed.get()?));
    cases.check_some(FULL_ONLY, "send-buffer/named", || limit_is_named(observed.get()?));
    cases.check_some(FULL_ONLY, "send-buffer/faster", || {
        let observed = observed.get()?;
        let (fixed, freed) = (observed.rate("fixed")?, observed.rate("freed")?);
        demand!(freed > 1.1 * fixed, "{fixed} bytes/s before, {freed} after")
    });
}
