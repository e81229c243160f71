//! libiscsi's command-line tools against the target: discovery, identity, capacity.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
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
    ensure!(text.contains(wanted), "no {wanted:?} in:\n{text}");
    Ok(())
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
        let paths = ["a.img", "b.img"].map(|name| dir.path().join(name));
        paths.iter().try_for_each(|path| empty_file(path, BYTES))?;
        let mut disks = paths.map(|path| Disk::file(&path));
        disks[1].block_size = Some(4096);
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
        let Open { first, .. } = open.get()?;
        let text = tool("iscsi-inq", &[&first.to_string()])?;
        for wanted in [
            "Peripheral Qualifier:CONNECTED",
            "Peripheral Device Type:DIRECT_ACCESS",
            "CmdQue:1",
            "ReponseDataFormat:2",
        ] {
            contains(&text, wanted)?;
        }
        for name in ["Vendor:", "Product:", "Revision:"] {
            let line =
                text.lines().find(|line| line.starts_with(name)).with_context(|| format!("no {name}"))?;
            ensure!(line.len() > name.len() && !line[name.len()..].trim().is_empty(), "{name} is empty");
        }
        Ok(())
    });
    cases.check("inq-supported-pages", || {
        let Open { first, .. } = open.get()?;
        let text = tool("iscsi-inq", &["-e", "1", "-c", "0", &first.to_string()])?;
        PAGES.iter().try_for_each(|(page, name)| contains(&text, &format!("Page:0x{page:02x} {name}")))
    });
    cases.check("inq-serial-differs", || {
        let Open { first, second, .. } = open.get()?;
        let serial = |url: String| tool("iscsi-inq", &["-e", "1", "-c", "128", &url]);
        let (a, b) = (serial(first.to_string())?, serial(second.to_string())?);
        contains(&a, "Unit Serial Number:")?;
        ensure!(a != b, "two LUNs with one serial number:\n{a}");
        Ok(())
    });
    cases.check("inq-designators-differ", || {
        let Open { first, second, .. } = open.get()?;
        let designators = |url: String| tool("iscsi-inq", &["-e", "1", "-c", "131", &url]);
        let (a, b) = (designators(first.to_string())?, designators(second.to_string())?);
        contains(&a, "DEVICE DESIGNATOR")?;
        ensure!(a != b, "two LUNs with one set of designators:\n{a}");
        Ok(())
    });
    cases.check("inq-block-limits", || {
        let Open { first, .. } = open.get()?;
        let text = tool("iscsi-inq", &["-e", "1", "-c", "176", &first.to_string()])?;
        contains(&text, "maximum transfer length:")
    });
    cases.check("inq-provisioning", || {
        let Open { first, .. } = open.get()?;
        let text = tool("iscsi-inq", &["-e", "1", "-c", "178", &first.to_string()])?;
        contains(&text, "lbpu:1")
    });
    cases.check("inq-unknown-page-refused", || {
        let Open { first, .. } = open.get()?;
        let output = run(program("iscsi-inq")?.args(["-e", "1", "-c", "85", &first.to_string()]), LIMIT)?;
        ensure!(output.code != Some(0), "page 0x55 was answered: {output}");
        Ok(())
    });
    cases.check("inq-missing-lun", || {
        let missing = Url { lun: 77, ..open.get()?.first.clone() };
        let output = run(program("iscsi-inq")?.arg(missing.to_string()), LIMIT)?;
        let absent = output.code != Some(0) || !output.stdout.contains("Qualifier:CONNECTED");
        ensure!(absent, "LUN 77 seems to exist: {output}");
        Ok(())
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
    cases.check("thin-shown", || {
        let Open { first, .. } = open.get()?;
        contains(&tool("iscsi-readcapacity16", &[&first.to_string()])?, "LBPME:1")
    });
    cases.check("software-write-protect", || {
        let Open { first, .. } = open.get()?;
        let url = first.to_string();
        contains(&tool("iscsi-swp", &[&url])?, "SWP:0")?;
        tool("iscsi-swp", &["-s", "on", &url])?;
        contains(&tool("iscsi-swp", &[&url])?, "SWP:1")?;
        tool("iscsi-swp", &["-s", "off", &url])?;
        contains(&tool("iscsi-swp", &[&url])?, "SWP:0")
    });
    cases.check("perf-reads", || {
        let Open { first, .. } = open.get()?;
        // The tool reads until its time is over; the check is only that it runs and counts.
        let output =
            run(program("iscsi-perf")?.args(["-m", "32", "-b", "8", "-t", "1", &first.to_string()]), LIMIT)?;
        ensure!(output.text().contains("iops"), "{output}");
        output.success().map(|_| ())
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
        let path = dir.path().join("a.img");
        empty_file(&path, BYTES)?;
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
            if output.code == Some(0) {
                bail!("let in: {output}");
            }
            Ok(())
        });
    }
    cases.check("target-lives-chap", || closed.get_mut()?.served.alive());
    if context.against == Against::Tgt {
        cases.note("examined tgt");
    }
    Ok(())
}
