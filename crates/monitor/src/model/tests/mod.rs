//! Verdicts of loads whose limit is known by construction.

mod headers;
mod matrix;
mod paper;
mod samples;
mod simulator;
