//! `cargo xtask bench verdict`: what `analyze` and `watch` say about connections whose limit was put there.
//!
//! Every cell is captured at both ends and in the middle, and watched at the data sender; then it is run again without
//! its limit. A verdict is right if it names the limit that was injected, wrong if it names another; `unknown` is
//! neither. The record keeps each limit with its own commit and date. The injection and the answers share no code: see `tests/src/verdict`.

mod blind;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;

use super::bars::{self, Bar};
use super::{Common, Spread, filter_rows};
use harness::verdict::{
    Answer, Captures, Cell, Judged, Limit, Measured, Programs, Scene, Score, Setup, Take, View, analyze,
    last_of_watch, matrix, record, show_confusion,
};
use harness::{Context, scratch};

/// Long enough for the first verdict of `watch`.
const SECONDS: f64 = 6.5;
const SECONDS_QUICK: f64 = 2.0;
const WARM_SECONDS: f64 = 0.7;
/// A limit counts as one only if the rate without it is higher by this share.
const GAIN_MIN: f64 = 0.1;
const PAUSE: Duration = Duration::from_millis(100);

/// Options of this benchmark alone.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Own {
    /// Draw this many cells; answers are written before the labels are opened
    #[arg(long, value_name = "N")]
    blind: Option<usize>,
    /// Seed of what is drawn
    #[arg(long, default_value_t = 1, requires = "blind")]
    seed: u64,
    /// Keep the captures, and a blind run's answers and labels, in this directory
    #[arg(long, value_name = "DIR")]
    captures: Option<PathBuf>,
}

pub(super) fn run_table(common: &Common, own: &Own, context: &Context) -> Result<()> {
    let programs = Programs::compile()?;
    let temporary = scratch()?;
    let dir = own.captures.as_deref().unwrap_or(temporary.path());
    std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    let bench = Bench { common, context, programs: &programs, dir };
    if let Some(count) = own.blind {
        return blind::run(&bench, count, own.seed);
    }
    let cells = filter_rows(matrix(), common.rows.as_deref(), |cell| cell.name.clone())?;
    let mut all = Vec::new();
    for limit in Limit::ALL {
        let of_limit: Vec<_> = cells.iter().enumerate().filter(|(_, cell)| cell.limit == limit).collect();
        let (count, first) = (of_limit.len(), all.len());
        for (index, cell) in of_limit {
            // A cell that cannot be run is no reason to lose the others.
            match bench.cell(index, cell) {
                Ok(judged) => all.extend(judged),
                Err(error) => println!("{}: not measured: {error:#}", cell.name),
            }
        }
        let is_whole = count > 0 && count == matrix().iter().filter(|cell| cell.limit == limit).count();
        if is_whole && !common.quick {
            keep(common, limit, &all[first..])?;
        }
    }
    report(&all);
    Ok(())
}

/// Records all cells of a limit, in place of what was measured earlier.
fn keep(common: &Common, limit: Limit, all: &[Judged]) -> Result<()> {
    let mut measured = record(all);
    measured["group"] = json!(limit.name());
    measured["reps"] = json!(common.reps);
    super::record::keep("bench-verdict", measured, &Limit::ALL.map(Limit::name)).map(drop)
}

struct Bench<'a> {
    common: &'a Common,
    context: &'a Context,
    programs: &'a Programs,
    dir: &'a Path,
}

/// A run and what was answered about it.
struct Run {
    measured: Measured,
    answers: Vec<(View, Answer)>,
}

impl Bench<'_> {
    fn take<'a>(&self, captures: Option<&'a Path>, seed: u64) -> Take<'a> {
        let seconds = if self.common.quick { SECONDS_QUICK } else { SECONDS };
        Take { seconds, warm_seconds: WARM_SECONDS, captures, has_watch: captures.is_some(), seed }
    }

    fn run(&self, setup: &Setup, captures: Option<&Path>, seed: u64) -> Result<Measured> {
        std::thread::sleep(PAUSE);
        let take = self.take(captures, seed);
        Scene::start(self.context, self.programs, setup, &take)?.measure(&take)
    }

    /// Asks about the captures in `dir`, and reads what `watch` said. A question without an answer is left out.
    fn ask(&self, dir: &Path, watch: &str) -> Vec<(View, Answer)> {
        let captures = Captures::within(dir);
        let files = [
            (View::Initiator, captures.initiator),
            (View::Between, captures.between),
            (View::Target, captures.target),
        ];
        let mut answers = Vec::new();
        for (view, file) in files {
            match analyze(self.context, &file) {
                Ok(answer) => answers.push((view, answer)),
                Err(error) => println!("{}: {error:#}", file.display()),
            }
        }
        answers.extend(last_of_watch(watch).map(|answer| (View::Watch, answer)));
        answers
    }

    /// Runs a cell and its cure in turns. Answers are taken of the run whose rate is the median.
    fn cell(&self, index: usize, cell: &Cell) -> Result<Vec<Judged>> {
        let reps = if self.common.quick { 1 } else { self.common.reps };
        let (mut runs, mut cured) = (Vec::new(), Vec::new());
        for rep in 0..reps {
            // Neutral names: a path must not tell the cause.
            let dir = self.dir.join(format!("{index:03}-{rep}"));
            std::fs::create_dir_all(&dir)?;
            let measured = self.run(&cell.setup, Some(&dir), rep as u64)?;
            let answers = self.ask(&dir, &measured.watch);
            runs.push(Run { measured, answers });
            if let Some(setup) = &cell.cured {
                cured.push(self.run(setup, None, rep as u64)?.mb_per_s);
            }
        }
        let cured = (!cured.is_empty()).then(|| Spread::of(&cured).median);
        runs.sort_by(|a, b| a.measured.mb_per_s.total_cmp(&b.measured.mb_per_s));
        let middle = runs.swap_remove(runs.len() / 2);
        show(cell, &middle, cured);
        let rate = middle.measured.mb_per_s;
        if cured.is_some_and(|cured| cured < rate * (1.0 + GAIN_MIN)) {
            println!("{}: left out: without the limit it is no faster", cell.name);
            return Ok(Vec::new());
        }
        Ok(judge(cell, &middle, cured))
    }
}

fn judge(cell: &Cell, run: &Run, cured: Option<f64>) -> Vec<Judged> {
    let rate = run.measured.mb_per_s;
    let judged = |(view, answer): &(View, Answer)| Judged::new(cell, *view, answer.clone(), rate, cured);
    run.answers.iter().map(judged).collect()
}

fn show(cell: &Cell, run: &Run, cured: Option<f64>) {
    let cured = cured.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}"));
    let say = |(view, answer): &(View, Answer)| {
        let expected = answer.expected_mb_per_s.map_or_else(String::new, |rate| format!(" {rate:.1}"));
        format!("{} {} {:.2}{expected}", view.name(), answer.limit.name(), answer.confidence)
    };
    let said: Vec<_> = run.answers.iter().map(say).collect();
    let (rate, late) = (run.measured.mb_per_s, run.measured.late_max_ms);
    println!("{:42} {rate:6.1} -> {cured:>5} MB/s, late {late:.0} ms; {}", cell.name, said.join("; "));
}

fn report(all: &[Judged]) {
    println!("\n{}\n{}", Score::table(all), show_confusion(all));
    println!("{}", bars::verdict(&bars_of(all)));
}

fn bars_of(all: &[Judged]) -> Vec<Bar> {
    let score = Score::of(all.iter());
    vec![
        Bar::at_least("share of right verdicts", score.right, 0.95),
        Bar::at_most("wrong verdicts at confidence 0.8 or more", score.confidently_wrong as f64, 0.0),
        Bar::at_most("share of unknown", score.unknown, 0.03),
        Bar::at_least("share of gains foreseen within 15 %", score.gain_foreseen.unwrap_or(f64::NAN), 0.9),
        Bar::at_least("share of next limits foreseen", score.next_foreseen.unwrap_or(f64::NAN), 0.9),
        Bar::at_least("share of rates within 10 %", score.rate_alike.unwrap_or(f64::NAN), 0.95),
    ]
}
