//! What moves the bytes: an export as a medium.
//!
//! `connection.rs` is one connection's life (connect, negotiate, requests); `receive.rs` puts what arrives where it
//! belongs; `request.rs` makes commands of block requests; `endpoint.rs` queues requests and survives lost connections;
//! `status.rs` knows what lies ahead; `dirty.rs` lists what a dirty bitmap marks.

mod connection;
mod dirty;
mod endpoint;
mod medium;
mod receive;
mod request;
mod status;

pub use dirty::dirty;
pub use medium::NbdMedium;
