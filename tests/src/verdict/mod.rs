//! Connections whose limit is known because it was put there, to examine what `hikyaku analyze` and `hikyaku watch`
//! say about them.
//!
//! A [`Cell`] is a load, two peers, a path, and one [`Injection`]; its *cure* is the same without that. A [`Scene`]
//! runs it between two network namespaces, captures it at both ends and in the middle, and measures the rate by the
//! peers' own figures. [`analyze`] and [`last_of_watch`] get the answers; [`Score`] compares them with the truth.
//!
//! Nothing here uses the code that it examines: the programs are run as their users run them, and what they see tells
//! them nothing but packets and sockets: addresses, ports, names and files are the same for all cells.

mod ask;
mod cell;
mod draw;
mod inject;
mod programs;
mod scene;
mod score;

pub use ask::{Answer, View, analyze, last_of_watch};
pub use cell::{Burst, Cell, Injection, Limit, Load, Peers, Setup};
pub use draw::{CASES, Case, draw, make, matrix};
pub use programs::Programs;
pub use scene::{Captures, Measured, Scene, Take};
pub use score::{CONFIDENT, Judged, Mark, Score, confusion, record, show_confusion};
