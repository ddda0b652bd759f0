//! The data plane: listeners, pools, balancing, sidecar and gateway.

pub mod mesh;
