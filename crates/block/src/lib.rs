//! Endpoints (files, devices, memory) and the layers that wrap them
