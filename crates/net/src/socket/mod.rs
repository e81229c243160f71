//! The library of applications: sockets shaped as those of `std::net`, and by area.
//!
//! [`Stack::connect`] joins the servers. [`TcpStream`] and [`TcpListener`] are used as those of std. By area nothing is
//! copied: [`Stack::alloc`] lends memory, [`TcpStream::send`] passes it to the servers by reference, [`Ticket::submitted`]
//! and [`Ticket::released`] wait for the two ends of a send; [`TcpStream::recv`] returns received bytes where they lie.

mod area;
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
