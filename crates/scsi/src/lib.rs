//! SCSI device server without I/O
