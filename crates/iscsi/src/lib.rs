//! iSCSI (RFC 7143) protocol machines without I/O
