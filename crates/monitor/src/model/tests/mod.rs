//! Verdicts of loads whose limit is known by construction.

mod matrix;
mod paper;
mod predict;
mod samples;
mod simulator;
