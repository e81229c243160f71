//! The manual page hikyaku.toml(5), from a table of the keys that the parser accepts. A test compares the table with the
//! parser.

use std::fmt::Write as _;

use crate::places::PLACES;

/// A table of the file.
#[derive(Debug)]
pub(crate) struct Section {
    /// Its header as written in the file.
    pub(crate) header: &'static str,
    pub(crate) about: &'static str,
    pub(crate) keys: &'static [Key],
}

#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    /// The form of its value.
    pub(crate) value: &'static str,
    /// The value without the key; empty if the key must be there.
    pub(crate) default: &'static str,
    pub(crate) about: &'static str,
}

const fn key(name: &'static str, value: &'static str, default: &'static str, about: &'static str) -> Key {
    Key { name, value, default, about }
}

pub(crate) const SECTIONS: &[Section] = &[
    Section {
        header: "[client]",
        about: "For copy, compare, ls, info and every other command that opens a session. It is read from /etc/hikyaku/hikyaku.toml \
                and from the user's own file; neither can weaken the other.",
        keys: &[key(
            "seal",
            "\"require\"",
            "sealed where the target's key is known",
            "Every session must be sealed or use TLS; others are refused with exit status 4.",
        )],
    },
    Section {
        header: "[server]",
        about: "For hikyaku serve. The option of the command line with the same meaning has priority.",
        keys: &[
            key(
                "listen",
                "list of \"ADDRESS:PORT\"",
                "[\"127.0.0.1:3260\"]",
                "Addresses to listen on, IPv6 in brackets; port 0 takes any free port. Beyond loopback every target needs CHAP or \
                 peers' keys, or seal = \"off\" as a declared exception.",
            ),
            key(
                "advertise",
                "\"ADDRESS[:PORT]\"",
                "the address that the client used",
                "The address in answers to discovery, for a server behind address translation.",
            ),
            key(
                "drain-timeout",
                "duration, \"10s\"",
                "\"10s\"",
                "Longest time from the first SIGTERM to the end of the server.",
            ),
            key(
                "seal",
                "\"off\", \"offer\" or \"require\"",
                "\"require\" with peers, otherwise \"off\"",
                "Whether sessions are encrypted and authenticated by SEAL/1. offer also admits initiators that do not seal.",
            ),
            key(
                "identity",
                "path",
                "identity in the configuration directory",
                "The server's private key, made by hikyaku key new. Only its owner may be able to read it.",
            ),
            key(
                "peers",
                "path",
                "no peer",
                "TOML file with a table [[peer]] for each initiator that may log in sealed; its keys are listed below.",
            ),
            key(
                "tls-certificate",
                "path",
                "no TLS",
                "Certificate chain in PEM form, for standard TLS 1.3 around iSCSI. Needs tls-key, and no peers or seal = \"off\".",
            ),
            key(
                "tls-key",
                "path",
                "no TLS",
                "Private key of the certificate, PEM form, without a passphrase. Needs tls-certificate.",
            ),
            key(
                "metrics",
                "address with a port, \"127.0.0.1:9260\"",
                "no metrics",
                "Address of metrics for Prometheus (/metrics) and of a health check (/health). Beyond loopback it needs \
                 metrics-token-file.",
            ),
            key(
                "metrics-token-file",
                "path",
                "no token",
                "File with the bearer token that a request for metrics must carry: one line, readable by its owner only.",
            ),
            key(
                "allow-user",
                "list of names or numbers, or \"any\"",
                "[]",
                "Users of this host who may log in over loopback where neither CHAP nor a key is required, besides root and the \
                 server's own user.",
            ),
            key(
                "storage",
                "list of directories",
                "[]",
                "Directories in which a reload may add LUNs. The sandbox closes all others at the start.",
            ),
        ],
    },
    Section {
        header: "[[target]]",
        about: "One target; may be repeated. All targets are reachable at all listeners.",
        keys: &[
            key("iqn", "iSCSI name", "", "Its name: iqn.YYYY-MM.DOMAIN:TEXT, eui. or naa."),
            key("lun", "tables", "", "See [[target.lun]]; at least one."),
            key("portal", "tables", "[]", "See [[target.portal]]."),
            key("acl", "tables", "[]", "See [[target.acl]]."),
        ],
    },
    Section {
        header: "[[target.lun]]",
        about: "One logical unit of the target above it.",
        keys: &[
            key("lun", "number, 0 to 16383", "", "Its number, unique in the target."),
            key(
                "endpoint",
                "\"ENDPOINT[,option=value...]\"",
                "",
                "Its storage, as on the command line (hikyaku(1), Endpoints; options of a LUN: hikyaku-serve(1)). A comma in a \
                 path is doubled.",
            ),
            key(
                "serial",
                "1 to 64 visible ASCII characters",
                "random at first use, then kept in the state directory",
                "The serial number that initiators see.",
            ),
        ],
    },
    Section {
        header: "[[target.portal]]",
        about: "An address, written at the target instead of listen. All targets must have the same portals.",
        keys: &[
            key("address", "\"ADDRESS:PORT\"", "", "As in listen."),
            key("tpgt", "1", "1", "Target portal group tag; there is one group."),
        ],
    },
    Section {
        header: "[[target.acl]]",
        about: "Who may log in, to which LUNs. Without any rule everyone who reaches a listener may. A rule needs an initiator, a \
                peer or a chap-user. A rule with nothing but an account is valid for every initiator that proves it.",
        keys: &[
            key(
                "initiator",
                "iSCSI name",
                "any",
                "The initiator's name. Alone it is a filter: any host can claim a name.",
            ),
            key("peer", "name in the peers file", "any", "The initiator must prove this peer's key."),
            key(
                "chap-user",
                "text",
                "no CHAP",
                "CHAP name that the initiator must prove. Needs secret-file.",
            ),
            key(
                "secret-file",
                "path",
                "no CHAP",
                "File with the CHAP secret, one line, 12 characters or more, that only its owner can read. Spaces count. Needs chap-user.",
            ),
            key(
                "mutual-chap-user",
                "text",
                "one-way CHAP",
                "CHAP name with which the target proves itself. Needs mutual-secret-file and chap-user.",
            ),
            key("mutual-secret-file", "path", "one-way CHAP", "File with the secret of mutual-chap-user."),
            key("luns", "list of numbers", "all", "The LUNs that are visible."),
            key("mode", "\"rw\" or \"ro\"", "\"rw\"", "Whether writing is allowed."),
        ],
    },
];

/// Keys of a table `[[peer]]` in the file that `peers` names.
pub(crate) const PEER: Section = Section {
    header: "[[peer]]",
    about: "In the file that peers names: one initiator that may log in sealed.",
    keys: &[
        key("name", "text", "", "Its name in [[target.acl]] and in logs."),
        key(
            "public-key",
            "44 characters of base64",
            "",
            "Printed by hikyaku key public on the initiator's host.",
        ),
        key("initiator", "iSCSI name", "any", "The one name that this key may log in with."),
        key("luns", "list of numbers", "all", "The LUNs that are visible, in every target."),
        key(
            "psk-file",
            "path",
            "none",
            "File with a pre-shared key, 44 characters of base64, in addition to the key pair.",
        ),
    ],
};

/// The text for troff: backslashes, hyphens and control characters at the start of a line stay as they are.
pub(crate) fn escape(text: &str) -> String {
    let escaped = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = escaped.split('\n').map(|line| match line.as_bytes().first() {
        Some(b'.' | b'\'') => format!("\\&{line}"),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A section whose lines stay as they are.
pub(crate) fn verbatim(heading: &str, text: &str) -> String {
    format!(".SH {heading}\n.nf\n{}\n.fi\n", escape(text.trim_end()))
}

/// The section FILES, for this page and those of the commands.
pub(crate) fn files() -> String {
    let mut page = String::from(".SH FILES\n");
    for place in PLACES {
        write!(page, ".TP\n{}\n{}\n", escape(&place.text()), escape(place.about)).expect("a string");
    }
    page + "$XDG_CONFIG_HOME/hikyaku, $XDG_STATE_HOME/hikyaku and $XDG_RUNTIME_DIR/hikyaku come first where the variables are set;\n\
            .BR hikyaku\\-paths (1)\nprints the paths that apply.\n"
}

/// The page hikyaku.toml(5); `example` is the commented example.
pub(crate) fn page(example: &str) -> String {
    let mut page = format!(
        ".TH hikyaku.toml 5 \"\" \"hikyaku {}\" \"File Formats Manual\"\n\
         .SH NAME\nhikyaku.toml \\- configuration of hikyaku\n\
         .SH DESCRIPTION\nTargets for\n.BR hikyaku\\-serve (1)\nand rules for all sessions of this host, in TOML. An unknown key is an error \
         with its line. A relative path is relative to the directory of the file in which it stands. Sizes: K M G T are binary, kB MB GB TB \
         decimal; durations: ms, s, m, h.\n.PP\n.BR hikyaku\\-check (1)\nexamines a file,\n.B hikyaku config show\nprints it with all defaults, \
         SIGHUP makes a running server read it again. A file with a mistake changes nothing. \
         A file that is read while a program writes it may be valid and yet lack rules of its end: write another file, check it, and \
         rename it (mv) to hikyaku.toml. A reload that gives more rights than before is logged as a warning.\n",
        env!("CARGO_PKG_VERSION"),
    );
    for section in SECTIONS.iter().chain([&PEER]) {
        write!(page, ".SH \"{}\"\n{}\n", section.header, escape(section.about)).expect("a string");
        for Key { name, value, default, about } in section.keys {
            let default = match *default {
                "" => "Required.".to_owned(),
                default => format!("Default: {default}."),
            };
            let (name, value) = (escape(name), escape(value));
            let (about, default) = (escape(about), escape(&default));
            write!(page, ".TP\n\\fB{name}\\fR = {value}\n{about} {default}\n").expect("a string");
        }
    }
    page.push_str(&files());
    page.push_str(&verbatim("EXAMPLES", example));
    page + ".SH \"SEE ALSO\"\n.BR hikyaku (1),\n.BR hikyaku\\-serve (1),\n.BR hikyaku\\-check (1),\n.BR hikyaku\\-key (1)\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::context::Context;

    /// The names that the parser expects in a table with an unknown key.
    fn expected(message: &str) -> Vec<String> {
        let (_, names) = message.split_once("known here: ").unwrap_or_else(|| panic!("{message}"));
        let mut names: Vec<String> = names.split(", ").map(str::to_owned).collect();
        names.sort_unstable();
        names
    }

    fn documented(section: &Section) -> Vec<String> {
        let mut names: Vec<String> = section.keys.iter().map(|key| key.name.to_owned()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn every_key_of_the_parser_is_documented_and_no_other() {
        for section in SECTIONS {
            let parents = match section.header {
                "[[target.lun]]" | "[[target.portal]]" | "[[target.acl]]" => "[[target]]\n",
                _ => "",
            };
            let text = format!("{parents}{}\nno-such-key = 1\n", section.header);
            let (_, message) = Config::parse(&Context::default(), &text).expect_err(section.header);
            assert_eq!(expected(&message), documented(section), "{}: {message}", section.header);
        }
        let (_, message) = crate::trust::peers::names("[[peer]]\nno-such-key = 1\n").unwrap_err();
        assert_eq!(expected(&message), documented(&PEER), "{message}");
    }

    #[test]
    fn every_table_of_the_parser_is_documented() {
        let (_, message) = Config::parse(&Context::default(), "no-such-table = 1\n").unwrap_err();
        let top = SECTIONS.iter().map(|section| section.header.trim_matches(['[', ']']));
        let mut top: Vec<&str> = top.filter(|name| !name.contains('.')).collect();
        top.sort_unstable();
        assert_eq!(expected(&message), top);
    }

    #[test]
    fn the_page_names_each_key_once_under_its_table() {
        let page = page("# an example\n");
        for section in SECTIONS.iter().chain([&PEER]) {
            let (_, rest) = page.split_once(&format!(".SH \"{}\"\n", section.header)).unwrap();
            let body = rest.split("\n.SH ").next().unwrap();
            for key in section.keys {
                let entry = format!("\n\\fB{}\\fR = ", escape(key.name));
                assert_eq!(body.matches(&entry).count(), 1, "{} {}", section.header, key.name);
            }
        }
        assert!(page.contains("\n.SH FILES\n") && page.contains("\n.SH EXAMPLES\n.nf\n# an example\n.fi\n"));
    }

    #[test]
    fn troff_sees_text_only() {
        assert_eq!(escape(".so a\n'b\nc\\d --e"), "\\&.so a\n\\&'b\nc\\ed \\-\\-e");
    }
}
