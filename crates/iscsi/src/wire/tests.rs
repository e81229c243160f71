//! Every PDU parses back from what it emits; layouts are pinned by bytes written by hand from the RFC's figures.
