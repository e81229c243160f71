//! Servers, drivers and applications of two machines in one process.

mod common;
mod hostile;
mod sockets;
