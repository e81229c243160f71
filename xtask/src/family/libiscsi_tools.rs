//! libiscsi's command-line tools against the target: discovery, identity, capacity.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use crate::harness::files::empty_file;
use crate::harness::{Against, Cases, Context, Credentials, Disk, Served, program, run, scratch};

const LIMIT: Duration = Duration::from_secs(20);
const BYTES: u64 = 64 << 20;
/// VPD pages every disk of ours has (SPC-6 §7.7, SBC-4 §6.6).
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

fn portal(served: &Served) -> String {
    format!("iscsi://{}", served.url(0).portal)
}

fn run_cases(cases: &mut Cases, served: &mut Served) {
    let (first, second) = (served.url(0).clone(), served.url(1).clone());
    let portal = portal(served);
    cases.check("ls-lists-target", || {
        let text = tool("iscsi-ls", &[&portal])?;
        contains(&text, &format!("Target:{} Portal:{}", first.iqn, first.portal))
    });
    cases.check("ls-shows-luns", || {
        let text = tool("iscsi-ls", &["-s", &portal])?;
        for lun in [&first, &second] {
            let line = text.lines().find(|line| line.starts_with(&format!("Lun:{} ", lun.lun)));
            contains(line.with_context(|| format!("no LUN {} in:\n{text}", lun.lun))?, "DIRECT_ACCESS")?;
        }
        Ok(())
    });
    cases.check("inq-standard", || {
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
        let text = tool("iscsi-inq", &["-e", "1", "-c", "0", &first.to_string()])?;
        PAGES.iter().try_for_each(|(page, name)| contains(&text, &format!("Page:0x{page:02x} {name}")))
    });
    cases.check("inq-serial-differs", || {
        let serial = |url: String| tool("iscsi-inq", &["-e", "1", "-c", "128", &url]);
        let (a, b) = (serial(first.to_string())?, serial(second.to_string())?);
        contains(&a, "Unit Serial Number:")?;
        ensure!(a != b, "two LUNs with one serial number:\n{a}");
        Ok(())
    });
    cases.check("inq-designators-differ", || {
        let designators = |url: String| tool("iscsi-inq", &["-e", "1", "-c", "131", &url]);
        let (a, b) = (designators(first.to_string())?, designators(second.to_string())?);
        contains(&a, "DEVICE DESIGNATOR")?;
        ensure!(a != b, "two LUNs with one set of designators:\n{a}");
        Ok(())
    });
    cases.check("inq-block-limits", || {
        let text = tool("iscsi-inq", &["-e", "1", "-c", "176", &first.to_string()])?;
        contains(&text, "maximum transfer length:")
    });
    cases.check("inq-provisioning", || {
        let text = tool("iscsi-inq", &["-e", "1", "-c", "178", &first.to_string()])?;
        contains(&text, "lbpu:1")
    });
    cases.check("inq-unknown-page-refused", || {
        let output = run(program("iscsi-inq")?.args(["-e", "1", "-c", "85", &first.to_string()]), LIMIT)?;
        ensure!(output.code != Some(0), "page 0x55 was answered:\n{}", output.text());
        Ok(())
    });
    cases.check("inq-missing-lun", || {
        let mut missing = first.clone();
        missing.lun = 77;
        let output = run(program("iscsi-inq")?.arg(missing.to_string()), LIMIT)?;
        let absent = output.code != Some(0) || !output.stdout.contains("Qualifier:CONNECTED");
        ensure!(absent, "LUN 77 seems to exist:\n{}", output.text());
        Ok(())
    });
    for (url, block) in [(&first, 512), (&second, 4096)] {
        cases.check(&format!("capacity-{block}"), || {
            let text = tool("iscsi-readcapacity16", &[&url.to_string()])?;
            contains(&text, &format!("RETURNED LOGICAL BLOCK ADDRESS:{}\n", BYTES / block - 1))?;
            contains(&text, &format!("LOGICAL BLOCK LENGTH IN BYTES:{block}\n"))?;
            contains(&text, &format!("Total size:{BYTES}\n"))
        });
    }
    cases.check("thin-shown", || contains(&tool("iscsi-readcapacity16", &[&first.to_string()])?, "LBPME:1"));
    cases.check("software-write-protect", || {
        let url = first.to_string();
        contains(&tool("iscsi-swp", &[&url])?, "SWP:0")?;
        tool("iscsi-swp", &["-s", "on", &url])?;
        contains(&tool("iscsi-swp", &[&url])?, "SWP:1")?;
        tool("iscsi-swp", &["-s", "off", &url])?;
        contains(&tool("iscsi-swp", &[&url])?, "SWP:0")
    });
    cases.check("perf-reads", || {
        // It reads until its time is over; only that it runs and counts is checked here.
        let output =
            run(program("iscsi-perf")?.args(["-m", "32", "-b", "8", "-t", "1", &first.to_string()]), LIMIT)?;
        ensure!(output.text().contains("iops"), "{}", output.text());
        output.success().map(|_| ())
    });
}

pub(super) fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
    let dir = scratch()?;
    let (first, second) = (dir.path().join("a.img"), dir.path().join("b.img"));
    empty_file(&first, BYTES)?;
    empty_file(&second, BYTES)?;
    let mut big = Disk::file(&second);
    big.block_size = Some(4096);
    let disks = [Disk::file(&first), big];
    let mut served = context.serve(&disks, None)?;
    run_cases(cases, &mut served);
    cases.check("target-lives", || served.alive());
    drop(served);

    let credentials = Credentials::example();
    let mut served = context.serve(&disks[..1], Some(&credentials))?;
    let url = served.url(0).clone();
    cases.check("chap-right-secret", || {
        contains(&tool("iscsi-inq", &[&url.with(&credentials)])?, "DIRECT_ACCESS")
    });
    let wrong = Credentials { secret: "not-the-secret-1".into(), ..credentials.clone() };
    for (name, url) in [("chap-wrong-secret", url.with(&wrong)), ("chap-missing", url.to_string())] {
        cases.check(name, || {
            let output = run(program("iscsi-inq")?.arg(url), LIMIT)?;
            if output.code == Some(0) {
                bail!("let in:\n{}", output.text());
            }
            Ok(())
        });
    }
    cases.check("target-lives-chap", || served.alive());
    if context.against == Against::Tgt {
        cases.note("examined tgt");
    }
    Ok(())
}
