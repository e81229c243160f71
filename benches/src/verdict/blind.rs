//! A blind run. First all cells are drawn and run: each leaves a directory with a number, and a label in another file.
//! Then the captures are asked about in that order, and the answers are written. Last the labels are read from their
//! file and compared.

use std::path::Path;

use anyhow::{Context as _, Result};
use rand::seq::SliceRandom as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Bench, GAIN_MIN, Judged, report};
use harness::verdict::{Answer, Limit, Setup, View, draw, record};
use harness::{evidence, random};

const LABELS: &str = "labels.json";
const ANSWERS: &str = "answers.json";
const WATCHED: &str = "watch.jsonl";

/// What is true of a numbered directory.
#[derive(Debug, Serialize, Deserialize)]
struct Label {
    number: usize,
    cell: String,
    limit: String,
    /// Further limits that are as true, by vantage.
    also: Vec<(String, Vec<String>)>,
    next: Option<String>,
    measured_mb_per_s: f64,
    cured_mb_per_s: Option<f64>,
    setup: Value,
}

pub(super) fn run(bench: &Bench<'_>, count: usize, seed: u64) -> Result<()> {
    let numbers = run_cells(bench, count, seed)?;
    println!("{} of {count} cells were run; asking", numbers.len());
    let answers = answer(bench, &numbers)?;
    let all = open_labels(bench.dir, &answers)?;
    report(&all);
    if bench.common.quick {
        println!("not kept: --quick");
        return Ok(());
    }
    let mut content = evidence::header("bench-verdict-blind");
    content.insert("seed".into(), json!(seed));
    if let Value::Object(figures) = record(&all) {
        content.extend(figures);
    }
    evidence::write("bench-verdict-blind", &content)
}

/// Runs drawn cells and those without their limits; returns the numbers of those that are in order.
fn run_cells(bench: &Bench<'_>, count: usize, seed: u64) -> Result<Vec<usize>> {
    let mut rng = random::seeded(seed);
    let cells: Vec<_> = (0..count).map(|_| draw(&mut rng)).collect();
    let mut numbers: Vec<usize> = (0..count).collect();
    numbers.shuffle(&mut rng);
    let mut labels = Vec::new();
    for (cell, &number) in cells.iter().zip(&numbers) {
        let dir = bench.dir.join(format!("{number:03}"));
        std::fs::create_dir_all(&dir)?;
        let ran = bench.run(&cell.setup, Some(&dir), number as u64).and_then(|measured| {
            let cured = cell.cured.as_ref().map(|setup| bench.run(setup, None, number as u64)).transpose()?;
            Ok((measured, cured.map(|cured| cured.mb_per_s)))
        });
        let (measured, cured) = match ran {
            Ok(ran) => ran,
            Err(error) => {
                println!("{number:03}: not measured: {error:#}");
                continue;
            }
        };
        if cured.is_some_and(|cured| cured < measured.mb_per_s * (1.0 + GAIN_MIN)) {
            println!("{number:03}: left out: without the limit it is no faster");
            continue;
        }
        std::fs::write(dir.join(WATCHED), &measured.watch)?;
        labels.push(Label {
            number,
            cell: cell.name.clone(),
            limit: cell.limit.name().to_owned(),
            also: View::ALL.map(|view| (view.name().to_owned(), names(&cell.as_true(view)))).into(),
            next: cell.cured.as_ref().map(|setup| Setup::natural_limit(setup).name().to_owned()),
            measured_mb_per_s: measured.mb_per_s,
            cured_mb_per_s: cured,
            setup: serde_json::to_value(&cell.setup)?,
        });
    }
    labels.sort_by_key(|label| label.number);
    std::fs::write(bench.dir.join(LABELS), serde_json::to_string_pretty(&labels)?)?;
    Ok(labels.iter().map(|label| label.number).collect())
}

fn names(limits: &[Limit]) -> Vec<String> {
    limits.iter().map(|limit| limit.name().to_owned()).collect()
}

type Answers = Vec<(usize, Vec<(View, Answer)>)>;

/// Asks about numbered directories, and writes the answers.
fn answer(bench: &Bench<'_>, numbers: &[usize]) -> Result<Answers> {
    let mut answers = Vec::new();
    for &number in numbers {
        let dir = bench.dir.join(format!("{number:03}"));
        let watch = std::fs::read_to_string(dir.join(WATCHED))?;
        answers.push((number, bench.ask(&dir, &watch)));
    }
    std::fs::write(bench.dir.join(ANSWERS), serde_json::to_string_pretty(&answers)?)?;
    Ok(answers)
}

fn open_labels(dir: &Path, answers: &Answers) -> Result<Vec<Judged>> {
    let path = dir.join(LABELS);
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let labels: Vec<Label> = serde_json::from_str(&text)?;
    let limit = |name: &String| Limit::parse(name).with_context(|| format!("no limit {name}"));
    let mut all = Vec::new();
    for label in &labels {
        println!("{:03} {}: {:.1} MB/s", label.number, label.cell, label.measured_mb_per_s);
        let found = answers.iter().filter(|(number, _)| *number == label.number).flat_map(|(_, found)| found);
        for (view, answer) in found {
            println!("    {} says {} at {:.2}", view.name(), answer.limit.name(), answer.confidence);
            let also = label.also.iter().find(|(name, _)| name == view.name()).map(|(_, limits)| limits);
            all.push(Judged {
                cell: format!("{:03} {}", label.number, label.cell),
                view: *view,
                truth: limit(&label.limit)?,
                also: also.into_iter().flatten().map(limit).collect::<Result<_>>()?,
                answer: answer.clone(),
                measured_mb_per_s: label.measured_mb_per_s,
                cured_mb_per_s: label.cured_mb_per_s,
                next: label.next.as_ref().map(limit).transpose()?,
            });
        }
    }
    Ok(all)
}
