//! Text of packets and users within HTML, SVG, JSON and xplot files.

use std::fmt::Write as _;

/// Whether a character controls its surroundings: control characters, marks that reorder or hide text, and line ends of
/// Unicode, which end a line of JavaScript.
fn acts(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{2069}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
        // Noncharacters, invalid in XML.
        || matches!(c as u32 & 0xffff, 0xfffe | 0xffff)
}

/// Text as a line for any program: characters that [`acts`] finds as `\u{1b}`.
pub(super) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if acts(c) {
            let _ = write!(out, "\\u{{{:x}}}", c as u32);
        } else {
            out.push(c);
        }
    }
    out
}

/// Text for content and quoted attributes of HTML and XML.
pub(super) fn markup(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in plain(text).chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}

/// JSON text for a `script` element: only ASCII, and nothing that could end the element or begin a comment.
pub(super) fn script(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut units = [0; 2];
    for c in json.chars() {
        // These occur in strings alone, where an escape means the same.
        if matches!(c, '<' | '>' | '&' | '\u{7f}'..) {
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str =
        "iqn</script><img src=x onerror='a\"b'>&amp;\u{202e}gpj\u{0}\n\u{2028}\u{e0041}\u{ffff}\u{5d0}";

    #[test]
    fn no_name_leaves_its_place() {
        let html = markup(HOSTILE);
        assert!(
            !html.contains(['<', '>', '"', '\'', '\u{202e}', '\n', '\0', '\u{2028}', '\u{ffff}']),
            "{html}"
        );
        assert!(html.starts_with("iqn&lt;/script&gt;") && html.contains("&amp;amp;\\u{202e}gpj\\u{0}\\u{a}"));
        assert!(
            html.ends_with("\\u{2028}\\u{e0041}\\u{ffff}\u{5d0}"),
            "letters of any language remain: {html}"
        );
        assert_eq!(plain("a\nb\u{1b}[31m"), "a\\u{a}b\\u{1b}[31m");
    }

    #[test]
    fn json_keeps_its_meaning_within_a_script() {
        let value = serde_json::json!({ HOSTILE: [HOSTILE, "\u{1f980}"] });
        let text = script(&value.to_string());
        assert!(text.is_ascii() && !text.contains(['<', '>', '&']), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
