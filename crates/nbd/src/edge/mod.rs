//! I/O of the client: an export as a medium.
//!
//! `connection.rs` is the life of one connection (connect, negotiate, requests); `receive.rs` places received bytes;
//! `request.rs` translates block requests to commands; `endpoint.rs` queues requests and survives lost connections;
//! `status.rs` requests block status ahead of use; `dirty.rs` lists the ranges that a dirty bitmap marks.

mod connection;
mod dirty;
mod endpoint;
mod medium;
mod receive;
mod request;
mod status;

pub use dirty::dirty;
pub use medium::NbdMedium;
