//! iSCSI node: target daemon and initiator endpoint
