//! Verdicts of loads whose limit is known by construction.

mod headers;
mod matrix;
mod paper;
mod predict;
mod samples;
mod simulator;
