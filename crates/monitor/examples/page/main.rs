//! Writes the page, figures and graphs of a made-up connection, to look at them:
//! `cargo run -p hikyaku-monitor --example page -- DIR [WRITES [LOSS_EVERY [unsampled]]]`.

mod case;

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;

use case::{Case, Plan};
use monitor::Side;
use monitor::view::{html, svg, xpl};

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number =
        |at: usize, otherwise: u64| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(otherwise);
    let dir = PathBuf::from(words.first().map_or(".", String::as_str));
    std::fs::create_dir_all(&dir)?;
    let create = |name: &str| File::create(dir.join(name)).map(BufWriter::new);
    let plan = Plan {
        writes: number(1, 6) as u32,
        loss_every: number(2, 0),
        is_sampled: words.len() < 4,
        ..Plan::default()
    };
    let case = Case::new(plan);
    let subject = case.subject();
    let mut page = create("page.html")?;
    html::write(&mut page, std::slice::from_ref(&subject), &[])?;
    page.flush()?;
    for figure in svg::figures(&subject) {
        std::fs::write(dir.join(format!("{}.svg", figure.name)), figure.text)?;
    }
    for side in [Side::Initiator, Side::Target] {
        let mut graph = create(&xpl::name(0, side))?;
        xpl::write(&mut graph, &subject, side)?;
        graph.flush()?;
    }
    let after = Case::new(Plan { cap: 4 << 20, ..plan });
    let mut page = create("compared.html")?;
    html::compare(&mut page, &subject, &after.subject(), [&[], &[]])?;
    page.flush()
}
