//! Fuzz targets: one function of bytes each, named after what it tests.
//!
//! A target reads its choices from the bytes ([`Source`]), drives one parser or machine with them, and panics when an
//! invariant does not hold. It does not depend on the fuzzer: `targets/` links each to libFuzzer, and the tests below
//! run the kept inputs of `corpus/` in any build. Read docs/internals/fuzz.md.

mod answers;
mod auth_volume;
mod capture;
mod edge;
mod flow;
mod heap;
mod inet_engine;
mod inet_parse;
mod initiator;
mod login;
mod luks2_header;
mod mapfile;
mod nbd;
mod outer;
mod pair;
mod record;
mod sealed;
mod service;
mod source;
mod spec;
mod stream;
mod target;
mod text;
mod unit;
mod watch;
mod wire;
mod words;

pub use source::Source;

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(pub use $name::$name;)*

        #[cfg(test)]
        const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name)),*];
    };
}

// In the order in which the tests draw random inputs.
targets!(
    answers,
    spec,
    wire,
    text,
    login,
    mapfile,
    nbd,
    outer,
    target,
    initiator,
    pair,
    record,
    sealed,
    stream,
    unit,
    service,
    watch,
    capture,
    flow,
    inet_parse,
    inet_engine,
    luks2_header,
    auth_volume,
);

#[cfg(test)]
mod tests;
