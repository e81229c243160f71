//! Reading what a device answers.
