//! See the function of this name in the library.
#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz::nbd(bytes));
