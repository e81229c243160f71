//! Memory that payload lives in: regions, pools and spans
