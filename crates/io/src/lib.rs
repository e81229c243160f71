//! The completion loop: io_uring, sockets, files, timers
