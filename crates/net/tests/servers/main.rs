//! Servers, drivers and applications of two machines in one process.

mod beside;
mod common;
mod driver;
mod hostile;
mod sockets;
