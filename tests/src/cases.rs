//! The cases of one family: listed before any of them runs, then run one at a time on request.
//!
//! A family is a function that calls [`Cases::check`] for each of its cases, in the same order with the same names
//! every time. It is called twice. The first call collects the names and runs no body, so all preparation belongs in a
//! body or in a [`Scene`]. The second call is a coroutine on its own thread: `check` blocks until a case is requested.
//! If the requested case is its own, `check` runs the body and sends the result; if it is a later one, `check` returns
//! immediately. Cases of a family therefore share the local variables of the function, and a case that runs alone
//! prepares only what it uses.

use std::cell::{Cell, OnceCell};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};
use rand::seq::SliceRandom;
use serde_json::{Map, Value};

use crate::{Context, Family, Tier};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub name: String,
    /// False if the seed leaves the case out of a sample.
    pub is_drawn: bool,
}

#[derive(Clone, Debug, Default)]
pub struct Remarks {
    pub notes: Vec<String>,
    pub facts: Map<String, Value>,
}

enum Mode {
    /// The first call: for each case its name, and the group and size of the sample that it belongs to.
    List(Vec<(String, Option<(String, usize)>)>),
    Serve {
        asks: Receiver<(usize, String)>,
        answers: Sender<Result<()>>,
        /// The requested case: requested and not yet answered.
        asked: Option<(usize, String)>,
        /// Number of `check` calls so far.
        next: usize,
        remarks: Arc<Mutex<Remarks>>,
    },
}

/// Names of cases that use nothing but the context, and their bodies.
pub type Rows<'a> = &'a [(&'a str, fn(&Context) -> Result<()>)];

/// Argument of a family's function besides the context.
pub struct Cases {
    mode: Mode,
}

/// The cases of `family`, and whether a sample with the context's seed contains them.
pub fn list(family: &Family, context: &Context) -> Result<Vec<Listed>> {
    let mut cases = Cases { mode: Mode::List(Vec::new()) };
    (family.examine)(context, &mut cases)?;
    let Mode::List(found) = cases.mode else { unreachable!("the mode does not change") };
    ensure!(!found.is_empty(), "the family {} has no cases", family.name);
    let mut groups: BTreeMap<&(String, usize), Vec<&str>> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for (name, group) in &found {
        ensure!(names.insert(name), "the family {} has two cases named {name}", family.name);
        if let Some(group) = group {
            let members = groups.entry(group).or_default();
            if !members.contains(&stem(name)) {
                members.push(stem(name));
            }
        }
    }
    let mut left_out = BTreeSet::new();
    for (group, mut members) in groups {
        members.shuffle(&mut context.rng(&format!("{}/{}", family.name, group.0)));
        left_out
            .extend(members.into_iter().skip(context.share.cases(group.1)).map(|member| (&group.0, member)));
    }
    let is_left_out = |name: &str, group: &Option<(String, usize)>| {
        group.as_ref().is_some_and(|(group, _)| left_out.contains(&(group, stem(name))))
    };
    let listed = found.iter().map(|(name, group)| Listed {
        name: name.clone(),
        is_drawn: context.tier == Tier::Full || !is_left_out(name, group),
    });
    Ok(listed.collect())
}

/// Cases whose names agree up to a slash are drawn together.
fn stem(name: &str) -> &str {
    name.split_once('/').map_or(name, |(stem, _)| stem)
}

impl Cases {
    pub fn check(&mut self, name: &str, body: impl FnOnce() -> Result<()>) {
        self.case(name, None, body);
    }

    /// [`Cases::check`] for each row.
    pub fn check_each(&mut self, context: &Context, rows: Rows<'_>) {
        for (name, body) in rows {
            self.check(name, || body(context));
        }
    }

    /// A case of a group. A sample contains `count` cases of the group, more or fewer by [`crate::Share`], drawn by its
    /// seed; if `count` is 0 only the full tier runs it. Cases whose names agree up to a slash are drawn together and count as one.
    pub fn check_some(&mut self, group: (&str, usize), name: &str, body: impl FnOnce() -> Result<()>) {
        self.case(name, Some((group.0.to_owned(), group.1)), body);
    }

    /// A case that judges the results of the cases before it in this run. If not all of them ran, it passes with a
    /// note.
    pub fn check_sum(&mut self, name: &str, has_all: bool, body: impl FnOnce() -> Result<()>) {
        let mut is_judged = true;
        self.check(name, || {
            is_judged = has_all;
            if has_all { body() } else { Ok(()) }
        });
        if !is_judged {
            self.note(format!("{name} was not judged: not all of the cases that it sums up were run"));
        }
    }

    fn case(&mut self, name: &str, group: Option<(String, usize)>, body: impl FnOnce() -> Result<()>) {
        match &mut self.mode {
            Mode::List(found) => found.push((name.to_owned(), group)),
            Mode::Serve { asks, answers, asked, next, .. } => {
                let index = *next;
                *next += 1;
                if asked.is_none() {
                    *asked = asks.recv().ok();
                }
                let Some((_, wanted)) = asked.take_if(|(wanted, _)| *wanted == index) else { return };
                let answer = if wanted == name {
                    run(body)
                } else {
                    Err(anyhow!("it was listed as {wanted} and is now called {name}"))
                };
                // The receiver waits for it.
                let _ = answers.send(answer);
            }
        }
    }

    pub fn note(&mut self, text: impl Into<String>) {
        if let Some(mut remarks) = self.remarks() {
            remarks.notes.push(text.into());
        }
    }

    pub fn fact(&mut self, name: &str, value: impl Into<Value>) {
        if let Some(mut remarks) = self.remarks() {
            remarks.facts.insert(name.to_owned(), value.into());
        }
    }

    fn remarks(&self) -> Option<MutexGuard<'_, Remarks>> {
        match &self.mode {
            Mode::List(_) => None,
            Mode::Serve { remarks, .. } => Some(lock(remarks)),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn run<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        bail!("panic: {text}")
    })
}

type Make<'a, T> = Box<dyn FnOnce() -> Result<T> + 'a>;

pub struct Scene<'a, T> {
    made: OnceCell<Result<T, String>>,
    make: Cell<Option<Make<'a, T>>>,
}

impl<'a, T> Scene<'a, T> {
    pub fn new(make: impl FnOnce() -> Result<T> + 'a) -> Self {
        Self { made: OnceCell::new(), make: Cell::new(Some(Box::new(make))) }
    }

    /// Creates the value on first use. If that fails, each case that uses the value fails.
    pub fn get(&self) -> Result<&T> {
        let made = self.made.get_or_init(|| {
            let make = self.make.take().expect("made once");
            run(make).map_err(|error| format!("{error:#}"))
        });
        made.as_ref().map_err(|text| anyhow!("what the case needs could not be prepared: {text}"))
    }

    pub fn get_mut(&mut self) -> Result<&mut T> {
        self.get()?;
        match self.made.get_mut() {
            Some(Ok(made)) => Ok(made),
            _ => unreachable!("just looked at"),
        }
    }

    pub fn into_made(self) -> Option<T> {
        self.made.into_inner()?.ok()
    }

    pub fn is_made(&self) -> bool {
        matches!(self.made.get(), Some(Ok(_)))
    }
}

/// The second call of a family's function, and the channels to it.
pub struct Running {
    asks: Option<Sender<(usize, String)>>,
    answers: Receiver<Result<()>>,
    thread: Option<JoinHandle<()>>,
    /// The first case that can still be requested.
    next: usize,
}

impl Running {
    fn start(family: &'static Family, context: &Arc<Context>, remarks: &Arc<Mutex<Remarks>>) -> Self {
        let (asks, asked) = channel();
        let (answers, answered) = channel();
        let (context, remarks) = (Arc::clone(context), Arc::clone(remarks));
        let thread = std::thread::spawn(move || {
            let replies = answers.clone();
            let mut cases =
                Cases { mode: Mode::Serve { asks: asked, answers, asked: None, next: 0, remarks } };
            let result = run(|| (family.examine)(&context, &mut cases));
            let Mode::Serve { asks, asked, .. } = cases.mode else {
                unreachable!("the mode does not change")
            };
            let text = result.err().map_or_else(
                || "the family ended without it".to_owned(),
                |error| format!("the family ended: {error:#}"),
            );
            for _ in asked.into_iter().chain(asks) {
                // The receiver waits for it.
                let _ = replies.send(Err(anyhow!("{text}")));
            }
        });
        Self { asks: Some(asks), answers: answered, thread: Some(thread), next: 0 }
    }

    fn ask(&mut self, index: usize, name: &str) -> Result<()> {
        self.next = index + 1;
        let asks = self.asks.as_ref().expect("until it is dropped");
        asks.send((index, name.to_owned())).map_err(|_| anyhow!("the family's thread has ended"))?;
        self.answers.recv().map_err(|_| anyhow!("the family's thread has ended"))?
    }
}

impl Drop for Running {
    /// Lets the function return, so that its thread drops its local values.
    fn drop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the function was already sent as a result.
            let _ = thread.join();
        }
    }
}

#[derive(Clone, Debug)]
pub struct Ended {
    pub case: String,
    pub failure: Option<String>,
    pub seconds: f64,
    /// The case passed in the run that is being resumed.
    pub is_resumed: bool,
}

/// A family in progress: requests one case after the other and stores the results.
pub struct Examination {
    pub family: &'static Family,
    context: Arc<Context>,
    running: Option<Running>,
    remarks: Arc<Mutex<Remarks>>,
    pub ended: Vec<Ended>,
}

impl Examination {
    pub fn new(family: &'static Family, context: &Arc<Context>) -> Self {
        let (context, remarks) = (Arc::clone(context), Arc::default());
        Self { family, context, running: None, remarks, ended: Vec::new() }
    }

    /// Runs the case with this number, whose name is listed as `name`.
    pub fn run(&mut self, index: usize, name: &str) -> Result<(), String> {
        let started = Instant::now();
        // The function has already passed this case: call it again.
        if self.running.as_ref().is_some_and(|running| running.next > index) {
            self.running = None;
        }
        let (family, context, remarks) = (self.family, &self.context, &self.remarks);
        let running = self.running.get_or_insert_with(|| Running::start(family, context, remarks));
        let result = running.ask(index, name).map_err(|error| format!("{error:#}"));
        let (case, failure) = (name.to_owned(), result.clone().err());
        self.ended.push(Ended { case, failure, seconds: started.elapsed().as_secs_f64(), is_resumed: false });
        result
    }

    /// Lets the function return, which completes its facts and notes.
    pub fn finish(&mut self) -> Remarks {
        self.running = None;
        lock(&self.remarks).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{Against, Share};

    fn examine(context: &Context, cases: &mut Cases) -> Result<()> {
        let count = Cell::new(0);
        let scene = Scene::new(|| {
            count.set(count.get() + 1);
            ensure!(context.seed != 13, "bad luck");
            Ok(7)
        });
        cases.check("plain", || Ok(()));
        for number in 0..9 {
            cases.check_some(("number", 2), &format!("number-{number}"), || {
                ensure!(*scene.get()? == 7 && count.get() == 1);
                Ok(())
            });
        }
        cases.check("fails", || bail!("no"));
        cases.check("panics", || panic!("aaah"));
        cases.fact("made", count.get());
        Ok(())
    }

    static FAMILY: Family = Family { name: "unit", about: "", examine, any_target: false, is_nightly: false };

    fn context(seed: u64, tier: Tier) -> Arc<Context> {
        Arc::new(Context::new(PathBuf::new(), seed, tier, Against::Ours).unwrap())
    }

    #[test]
    fn names_do_not_depend_on_the_seed_and_the_sample_does() {
        let names = |seed| -> Vec<_> {
            let listed = list(&FAMILY, &context(seed, Tier::Sample)).unwrap();
            assert_eq!(listed.iter().filter(|case| case.is_drawn).count(), 3 + 2);
            listed
        };
        let (one, other) = (names(1), names(2));
        assert_eq!(one.len(), 12);
        let plain = |cases: &[Listed]| cases.iter().map(|case| case.name.clone()).collect::<Vec<_>>();
        assert_eq!(plain(&one), plain(&other));
        assert!((3..40).any(|seed| names(seed) != one));
        assert!(list(&FAMILY, &context(1, Tier::Full)).unwrap().iter().all(|case| case.is_drawn));
    }

    #[test]
    fn a_share_changes_the_size_of_a_sample_and_leaves_no_group_empty() {
        for (share, numbers) in [(Share::Half, 1), (Share::Even, 2), (Share::Triple, 6)] {
            let context = Context { share, ..Arc::into_inner(context(1, Tier::Sample)).unwrap() };
            let listed = list(&FAMILY, &context).unwrap();
            assert_eq!(listed.iter().filter(|case| case.is_drawn).count(), 3 + numbers, "{share:?}");
            let amount = if share == Share::Triple { [6, 5] } else { [2, 2] };
            assert_eq!([context.amount(2, 9), context.amount(2, 5)], amount, "{share:?}");
        }
        assert_eq!([1, 0].map(|count| Share::Half.cases(count)), [1, 0]);
    }

    #[test]
    fn cases_that_agree_up_to_a_slash_are_drawn_together() {
        fn examine(_: &Context, cases: &mut Cases) -> Result<()> {
            for name in ["a/1", "a/2", "b/1", "b/2", "c/1"] {
                cases.check_some(("letter", 1), name, || Ok(()));
            }
            cases.check("a/always", || Ok(()));
            cases.check_some(("full", 0), "a/full", || Ok(()));
            Ok(())
        }
        let family = Family { examine, ..FAMILY };
        for seed in 0..9 {
            let listed = list(&family, &context(seed, Tier::Sample)).unwrap();
            let drawn: Vec<_> = listed.iter().filter(|case| case.is_drawn).map(|case| &*case.name).collect();
            let expected =
                [&["a/1", "a/2", "a/always"][..], &["b/1", "b/2", "a/always"], &["c/1", "a/always"]];
            assert!(expected.contains(&&drawn[..]), "{drawn:?}");
        }
    }

    #[test]
    fn each_case_runs_alone_in_order_and_out_of_order() {
        let listed = list(&FAMILY, &context(1, Tier::Full)).unwrap();
        let at = |name: &str| listed.iter().position(|case| case.name == name).unwrap();
        for order in
            [vec!["plain", "number-3", "number-4", "fails"], vec!["number-4", "plain", "fails", "number-3"]]
        {
            let mut examination = Examination::new(&FAMILY, &context(1, Tier::Full));
            for name in &order {
                let result = examination.run(at(name), name);
                assert_eq!(result.is_ok(), *name != "fails", "{name}: {result:?}");
                assert_eq!(examination.ended.last().unwrap().failure, result.err(), "{name}");
            }
            assert_eq!(examination.ended.len(), order.len());
        }
        let mut examination = Examination::new(&FAMILY, &context(1, Tier::Full));
        assert!(examination.run(at("panics"), "panics").unwrap_err().contains("aaah"));
        assert_eq!(examination.finish().facts["made"], 0, "nothing wanted the scene");
        assert!(examination.run(99, "beyond").unwrap_err().contains("ended without it"));
    }

    #[test]
    fn what_cannot_be_prepared_fails_the_cases_that_need_it_and_no_others() {
        let context = context(13, Tier::Full);
        let mut examination = Examination::new(&FAMILY, &context);
        assert!(examination.run(0, "plain").is_ok());
        assert!(examination.run(1, "number-0").unwrap_err().contains("bad luck"));
        assert!(examination.run(1, "number-0").is_err());
        assert!(examination.run(0, "other").unwrap_err().contains("is now called plain"));
    }
}
