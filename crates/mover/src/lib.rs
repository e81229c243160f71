//! Copy engine over two endpoints
