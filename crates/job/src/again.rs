//! Command lines that go on with a copy or begin it anew, for hints and journals.

use mover::Origin;

use crate::hooks::Hooks;
use crate::shell;
use crate::since::Since;
use crate::{Job, Request};

/// The command line that resumes the copy from the journal `name`.
pub(crate) fn resume(job: &Job<'_>, name: &str) -> String {
    shell::line(&[&words(job, false)[..], &["--resume".to_owned(), name.to_owned()]].concat())
}

/// The command line that begins the copy anew, whatever journals there are.
pub(crate) fn anew(job: &Job<'_>) -> String {
    shell::line(&words(job, true)) + " --resume off"
}

/// What a journal records beside its label.
pub(crate) fn origin(job: &Job<'_>) -> Origin {
    let directory = std::env::current_dir().unwrap_or_default();
    let command = shell::script(&words(job, false));
    Origin { directory: directory.display().to_string(), command, part: part(job.request) }
}

/// Which part of the range the request copies, in words: a journal resumes only the same.
pub(crate) fn part(request: &Request) -> String {
    match &request.since {
        None => "all".to_owned(),
        Some(since) => format!("since {since}"),
    }
}

fn words(job: &Job<'_>, is_anew: bool) -> Vec<String> {
    let Request { plan, force, allow_in_use, allow_space, .. } = job.request;
    let mut words = vec!["hikyaku".to_owned(), "copy".to_owned()];
    words.push(job.source.words().to_owned());
    words.push(without_create(job.destination.words()));
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
    for (name, value) in [("--src-offset", plan.src_offset), ("--dst-offset", plan.dst_offset)] {
        if value > 0 {
            option(name, value.to_string());
        }
    }
    let depth = plan.depth.map(u64::from);
    let chunk = plan.chunk.map(u64::from);
    let rate = plan.rate.get().map(|rate| format!("{rate}B/s"));
    let text = |number: Option<u64>| number.map(|number| number.to_string());
    for (name, value) in
        [("--size", text(plan.size)), ("--rate", rate), ("--depth", text(depth)), ("--chunk", text(chunk))]
    {
        if let Some(value) = value {
            option(name, value);
        }
    }
    if !plan.sparse {
        option("--sparse", "off".to_owned());
    }
    if let Some(choice) = job.request.offload.word() {
        option("--offload", choice.to_owned());
    }
    if let Some(choice) = job.request.impact.word() {
        option("--impact", choice.to_owned());
    }
    if plan.verify {
        words.push("--verify".to_owned());
    }
    let mut option = |name: &str, value: String| words.extend([name.to_owned(), value]);
    if let Some(path) = &job.request.manifest {
        option("--manifest", path.display().to_string());
    }
    if job.request.snapshot {
        option("--snapshot", "auto".to_owned());
    }
    if let Some(choice) = job.request.remote_copy.word() {
        option("--remote-copy", choice.to_owned());
    }
    let Hooks { pre, post } = &job.request.hooks;
    for (name, command) in [("--pre", pre), ("--post", post)] {
        if let Some(command) = command {
            option(name, command.clone());
        }
    }
    // The journal contains the changes that a bitmap or a snapshot showed.
    if let Some(since) = job.request.since.as_ref().filter(|since| is_anew || **since == Since::Hash) {
        option("--since", since.to_string());
    }
    let allowed =
        [("in-use", *allow_in_use), ("sector-size", plan.allow_block_size), ("space", *allow_space)];
    let allowed: Vec<_> =
        allowed.iter().filter(|(_, is_allowed)| *is_allowed).map(|(name, _)| *name).collect();
    if !allowed.is_empty() {
        option("--allow", allowed.join(","));
    }
    // A resumed copy needs no --force for what its destination holds; there it would accept a source that has changed.
    if *force && is_anew {
        words.push("--force".to_owned());
    }
    words.extend(job.request.more.iter().cloned());
    words
}

/// An endpoint without its option `create`: where an earlier copy was interrupted, the file exists.
fn without_create(words: &str) -> String {
    // A doubled comma belongs to a path or a value; NUL occurs in no argument of a process.
    let parts = words.replace(",,", "\0");
    let kept = parts.split(',').filter(|part| *part != "create" && !part.starts_with("create="));
    kept.collect::<Vec<_>>().join(",").replace('\0', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Choice, Local, Quiet};

    #[test]
    fn commands_have_every_option_as_it_was_given() {
        let plan = mover::Plan {
            src_offset: 512,
            size: Some(1 << 20),
            rate: Some(1000).into(),
            depth: Some(3),
            chunk: Some(65536),
            sparse: false,
            verify: true,
            allow_block_size: true,
            ..mover::Plan::default()
        };
        let request = Request {
            plan,
            manifest: Some("m n".into()),
            since: Some(Since::Bitmap("b0".to_owned())),
            remote_copy: Choice::Off,
            offload: Choice::Require,
            impact: crate::Impact::None,
            snapshot: true,
            hooks: Hooks { pre: Some("a b".to_owned()), post: Some("c".to_owned()) },
            force: true,
            allow_in_use: true,
            allow_space: true,
            more: vec!["--report".to_owned(), "r.html".to_owned()],
            ..Request::default()
        };
        let host = Quiet::default();
        let address = |words| Box::new(Local::parse(words).unwrap());
        let job = Job::new(&host, &request, address("a,,b.img"), address("c.img,create,size=1M"));
        let common = "hikyaku copy 'a,,b.img' 'c.img,size=1M' --src-offset 512 --size 1048576 --rate 1000B/s --depth 3 \
                      --chunk 65536 --sparse off --offload require --impact none --verify --manifest 'm n' --snapshot auto \
                      --remote-copy off --pre 'a b' --post c";
        let allowed = "--allow 'in-use,sector-size,space'";
        let first = format!("{common} {allowed} --report r.html --resume x");
        assert_eq!(resume(&job, "x"), first);
        let second = format!("{common} --since bitmap:b0 {allowed} --force --report r.html --resume off");
        assert_eq!(anew(&job), second);
        assert_eq!(part(&request), "since bitmap:b0");
        let plain = Request::default();
        let job = Job::new(&host, &plain, address("a.img"), address("c.img"));
        assert_eq!(anew(&job), "hikyaku copy a.img c.img --resume off");
    }

    #[test]
    fn create_is_left_out_and_paths_with_commas_stay() {
        for (words, expected) in [
            ("b.img,create,size=1G", "b.img,size=1G"),
            ("b,,create.img,create=yes", "b,,create.img"),
            ("iscsi://h/iqn.x:y/0", "iscsi://h/iqn.x:y/0"),
        ] {
            assert_eq!(without_create(words), expected);
        }
    }
}
