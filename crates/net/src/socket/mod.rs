//! The library of applications: sockets shaped as those of `std::net`, and by area.
//!
//! [`Stack::connect`] joins the servers. [`TcpStream`] and [`TcpListener`] are used as those of std. By area nothing is
//! copied: [`Stack::alloc`] lends memory, [`TcpStream::send`] passes it to the servers by reference, [`Ticket::submitted`]
//! and [`Ticket::released`] wait for the two ends of a send; [`TcpStream::recv`] returns received bytes where they lie.
//!
//! ```no_run
//! use std::io::{Read as _, Write as _};
//!
//! use net::socket::{Stack, TcpStream};
//!
//! # fn main() -> std::io::Result<()> {
//! let stack = Stack::connect("/run/hikyaku-net.sock")?; // of: hikyaku net up --socket /run/hikyaku-net.sock
//! let mut stream = TcpStream::connect(&stack, "10.0.0.1:7")?;
//! stream.write_all(b"copied into an area")?;
//! let mut area = stack.alloc(1 << 20)?;
//! area.fill(7);
//! let ticket = stream.send(area, 0..1 << 20)?; // not copied: the driver reads it here
//! let area = ticket.released()?; // acknowledged: the memory is ours again
//! # drop(area);
//! while let Some(bytes) = stream.recv()? {
//!     println!("{} bytes", bytes.len()); // lie where the driver put them until they are dropped
//! }
//! # Ok(())
//! # }
//! ```

mod area;
mod attendant;
mod join;
mod listener;
mod stack;
mod state;
mod stream;

pub use area::{AREA_BYTES_MAX, SendArea};
pub use listener::TcpListener;
pub use stack::{Parts, Servers, Stack};
pub use stream::{ReceivedArea, SEND_BYTES_MAX, TcpStream, Ticket};

#[cfg(test)]
mod tests;
