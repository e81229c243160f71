//! libiscsi's command-line tools against the target: discovery, identity, capacity.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::files::empty_file;
use crate::{Against, Cases, Context, Credentials, Disk, Scene, Served, Url, program, run, scratch};

const LIMIT: Duration = Duration::from_secs(20);
const BYTES: u64 = 64 << 20;
/// VPD pages of every disk of `hikyaku serve` (SPC-6 §7.7, SBC-4 §6.6).
const PAGES: [(u32, &str); 6] = [
    (0x00, "SUPPORTED_VPD_PAGES"),
    (0x80, "UNIT_SERIAL_NUMBER"),
    (0x83, "DEVICE_IDENTIFICATION"),
    (0xb0, "BLOCK_LIMITS"),
    (0xb1, "BLOCK_DEVICE_CHARACTERISTICS"),
    (0xb2, "LOGICAL_BLOCK_PROVISIONING"),
];

fn tool(name: &str, arguments: &[&str]) -> Result<String> {
    Ok(run(program(name)?.args(arguments), LIMIT)?.success()?.stdout)
}

fn contains(text: &str, wanted: &str) -> Result<()> {
    demand!(text.contains(wanted), "no {wanted:?} in:\n{text}")
}

struct Open {
    served: Served,
    portal: String,
    first: Url,
    second: Url,
    _dir: TempDir,
}

impl Open {
    fn new(context: &Context) -> Result<Self> {
        let dir = scratch()?;
        let a = Disk::file(&empty_file(dir.path().join("a.img"), BYTES)?);
        let b = Disk::file(&empty_file(dir.path().join("b.img"), BYTES)?);
        let disks = [a, Disk { block_size: Some(4096), ..b }];
        let served = context.serve(&disks, None)?;
        let [first, second] = [0, 1].map(|lun| served.url(lun).clone());
        Ok(Self { portal: format!("iscsi://{}", first.portal), served, first, second, _dir: dir })
    }
}

fn identity_cases(cases: &mut Cases, open: &Scene<'_, Open>) {
    cases.check("ls-lists-target", || {
        let Open { portal, first, .. } = open.get()?;
        let text = tool("iscsi-ls", &[portal])?;
        contains(&text, &format!("Target:{} Portal:{}", first.iqn, first.portal))
    });
    cases.check("ls-shows-luns", || {
        let Open { portal, first, second, .. } = open.get()?;
        let text = tool("iscsi-ls", &["-s", portal])?;
        for lun in [first, second] {
            let line = text.lines().find(|line| line.starts_with(&format!("Lun:{} ", lun.lun)));
            contains(line.with_context(|| format!("no LUN {} in:\n{text}", lun.lun))?, "DIRECT_ACCESS")?;
        }
        Ok(())
    });
    cases.check("inq-standard", || {
        let text = tool("iscsi-inq", &[&open.get()?.first.to_string()])?;
        for wanted in [
            "Peripheral Qualifier:CONNECTED",
            "Peripheral Device Type:DIRECT_ACCESS",
            "CmdQue:1",
            "ReponseDataFormat:2",
        ] {
            contains(&text, wanted)?;
        }
        for name in ["Vendor:", "Product:", "Revision:"] {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            let value = value.with_context(|| format!("no {name}"))?;
            ensure!(!value.trim().is_empty(), "{name} is empty");
        }
        Ok(())
    });
    let page = |code: &str, url: &Url| tool("iscsi-inq", &["-e", "1", "-c", code, &url.to_string()]);
    cases.check("inq-supported-pages", || {
        let text = page("0", &open.get()?.first)?;
        PAGES.iter().try_for_each(|(page, name)| contains(&text, &format!("Page:0x{page:02x} {name}")))
    });
    for (name, code, wanted) in [
        ("inq-serial-differs", "128", "Unit Serial Number:"),
        ("inq-designators-differ", "131", "DEVICE DESIGNATOR"),
    ] {
        cases.check(name, || {
            let (a, b) = (page(code, &open.get()?.first)?, page(code, &open.get()?.second)?);
            contains(&a, wanted)?;
            demand!(a != b, "two LUNs with one identity:\n{a}")
        });
    }
    for (name, code, wanted) in
        [("inq-block-limits", "176", "maximum transfer length:"), ("inq-provisioning", "178", "lbpu:1")]
    {
        cases.check(name, || contains(&page(code, &open.get()?.first)?, wanted));
    }
    cases.check("inq-unknown-page-refused", || {
        let Open { first, .. } = open.get()?;
        let output = run(program("iscsi-inq")?.args(["-e", "1", "-c", "85", &first.to_string()]), LIMIT)?;
        demand!(output.code != Some(0), "page 0x55 was answered: {output}")
    });
    cases.check("inq-missing-lun", || {
        let missing = Url { lun: 77, ..open.get()?.first.clone() };
        let output = run(program("iscsi-inq")?.arg(missing.to_string()), LIMIT)?;
        let absent = output.code != Some(0) || !output.stdout.contains("Qualifier:CONNECTED");
        demand!(absent, "LUN 77 seems to exist: {output}")
    });
}

fn capacity_cases(cases: &mut Cases, open: &Scene<'_, Open>) {
    for block in [512, 4096] {
        cases.check(&format!("capacity-{block}"), || {
            let Open { first, second, .. } = open.get()?;
            let url = if block == 512 { first } else { second };
            let text = tool("iscsi-readcapacity16", &[&url.to_string()])?;
            contains(&text, &format!("RETURNED LOGICAL BLOCK ADDRESS:{}\n", BYTES / block - 1))?;
            contains(&text, &format!("LOGICAL BLOCK LENGTH IN BYTES:{block}\n"))?;
            contains(&text, &format!("Total size:{BYTES}\n"))
        });
    }
    let first = || anyhow::Ok(open.get()?.first.to_string());
    cases.check("thin-shown", || contains(&tool("iscsi-readcapacity16", &[&first()?])?, "LBPME:1"));
    cases.check("software-write-protect", || {
        let url = first()?;
        contains(&tool("iscsi-swp", &[&url])?, "SWP:0")?;
        for (state, wanted) in [("on", "SWP:1"), ("off", "SWP:0")] {
            tool("iscsi-swp", &["-s", state, &url])?;
            contains(&tool("iscsi-swp", &[&url])?, wanted)?;
        }
        Ok(())
    });
    cases.check("perf-reads", || {
        // The tool reads until its time is over; the check is only that it runs and counts.
        let mut perf = program("iscsi-perf")?;
        perf.args(["-m", "32", "-b", "8", "-t", "1", &first()?]);
        contains(&run(&mut perf, LIMIT)?.success()?.text(), "iops")
    });
}

struct Closed {
    served: Served,
    credentials: Credentials,
    _dir: TempDir,
}

impl Closed {
    fn new(context: &Context) -> Result<Self> {
        let dir = scratch()?;
        let path = empty_file(dir.path().join("a.img"), BYTES)?;
        let credentials = Credentials::example();
        let served = context.serve(&[Disk::file(&path)], Some(&credentials))?;
        Ok(Self { served, credentials, _dir: dir })
    }
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let mut open = Scene::new(|| Open::new(context));
    identity_cases(cases, &open);
    capacity_cases(cases, &open);
    cases.check("target-lives", || open.get_mut()?.served.alive());
    drop(open);
    let mut closed = Scene::new(|| Closed::new(context));
    cases.check("chap-right-secret", || {
        let Closed { served, credentials, .. } = closed.get()?;
        contains(&tool("iscsi-inq", &[&served.url(0).with(credentials)])?, "DIRECT_ACCESS")
    });
    for (name, is_missing) in [("chap-wrong-secret", false), ("chap-missing", true)] {
        cases.check(name, || {
            let Closed { served, credentials, .. } = closed.get()?;
            let wrong = Credentials { secret: "not-the-secret-1".into(), ..credentials.clone() };
            let url = if is_missing { served.url(0).to_string() } else { served.url(0).with(&wrong) };
            let output = run(program("iscsi-inq")?.arg(url), LIMIT)?;
            demand!(output.code != Some(0), "let in: {output}")
        });
    }
    cases.check("target-lives-chap", || closed.get_mut()?.served.alive());
    if context.against == Against::Tgt {
        cases.note("examined tgt");
    }
    Ok(())
}
