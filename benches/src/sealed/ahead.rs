//! One table of the groups measured with and without sealing ahead.

use std::fmt::Write as _;

use serde_json::Value;

use super::groups::Group;

/// The groups `ahead-*` as columns, one line for each suite: MB/s with and without sealing ahead.
pub(super) fn table(kept: &[Value], groups: &[Group], write: bool) -> String {
    let shown: Vec<(&Group, &Value)> = groups
        .iter()
        .filter(|group| group.name.starts_with("ahead-") && group.shape.write == write)
        .filter_map(|group| Some((group, kept.iter().find(|kept| kept["group"] == *group.name)?)))
        .collect();
    let Some((first, _)) = shown.first() else { return String::new() };
    let mut text = format!("\n| {}, MB/s sealed ahead / not ahead |", if write { "writes" } else { "reads" });
    for (group, _) in &shown {
        write!(text, " {} KiB |", group.shape.block >> 10).expect("a String takes everything");
    }
    text += &format!("\n|---|{}", "---|".repeat(shown.len()));
    for claim in &first.claims {
        write!(text, "\n| {} |", claim.row).expect("as before");
        for (_, kept) in &shown {
            let median = |name: &str| {
                let row = kept["rows"].as_array()?.iter().find(|row| row["row"] == name)?;
                row["mb_per_s"]["median"].as_f64()
            };
            let [with, without] = [&claim.row, &claim.peer].map(|name| median(name).unwrap_or(f64::NAN));
            write!(text, " {with:.0} / {without:.0}, {:.2} |", with / without).expect("as before");
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::groups::groups;

    #[test]
    fn groups_of_sealing_ahead_stand_side_by_side() {
        let row = |name: &str, median: f64| json!({ "row": name, "mb_per_s": { "median": median } });
        let kept = [
            json!({ "group": "ahead-read-32K-qd1", "rows": [row("gcm", 500.0), row("gcm, not ahead", 250.0)] }),
        ];
        let table = super::table(&kept, &groups(), false);
        assert!(table.contains("sealed ahead / not ahead | 32 KiB |\n"), "{table}");
        assert!(table.contains("\n| gcm | 500 / 250, 2.00 |\n"), "{table}");
        assert!(super::table(&kept, &groups(), true).is_empty());
    }
}
