//! Bars: bounds that measured figures must meet.

use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Bar {
    pub(super) what: String,
    pub(super) value: f64,
    pub(super) bound: Bound,
}

impl Bar {
    pub(super) fn at_least(what: impl Into<String>, value: f64, least: f64) -> Self {
        Self { what: what.into(), value, bound: Bound::AtLeast(least) }
    }

    pub(super) fn at_most(what: impl Into<String>, value: f64, most: f64) -> Self {
        Self { what: what.into(), value, bound: Bound::AtMost(most) }
    }

    /// A figure that is NaN because it could not be measured fails.
    pub(super) fn is_met(&self) -> bool {
        match self.bound {
            Bound::AtLeast(bound) => self.value >= bound,
            Bound::AtMost(bound) => self.value <= bound,
        }
    }

    pub(super) fn show(&self) -> String {
        match self.bound {
            Bound::AtLeast(bound) => format!("{} at least {bound}", self.what),
            Bound::AtMost(bound) => format!("{} at most {bound}", self.what),
        }
    }

    pub(super) fn object(&self) -> Value {
        json!({ "bar": self.show(), "value": self.value, "met": self.is_met() })
    }
}

/// `met`, or the failed bars and the differences.
pub(super) fn verdict(bars: &[Bar]) -> String {
    let short = bars.iter().filter(|bar| !bar.is_met()).map(|Bar { what, value, bound }| {
        let digits = if value.abs() < 10.0 { 2 } else { 0 };
        let (Bound::AtLeast(bound) | Bound::AtMost(bound)) = bound;
        format!("{what} {value:.digits$}, bar {bound}")
    });
    let short: Vec<String> = short.collect();
    if short.is_empty() { "met".to_owned() } else { format!("short: {}", short.join("; ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_name_what_falls_short() {
        let speed = |value| Bar::at_least("ratio", value, 3.0);
        let cpu = |value| Bar::at_most("CPU ratio", value, 0.6);
        assert_eq!(verdict(&[speed(3.0), cpu(0.6)]), "met");
        assert_eq!(verdict(&[speed(2.654), cpu(0.4)]), "short: ratio 2.65, bar 3");
        assert_eq!(verdict(&[speed(2.0), cpu(0.7)]), "short: ratio 2.00, bar 3; CPU ratio 0.70, bar 0.6");
        assert!(!speed(f64::NAN).is_met() && !cpu(f64::NAN).is_met());
        assert_eq!(cpu(0.1).show(), "CPU ratio at most 0.6");
    }
}
