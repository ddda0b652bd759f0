//! The control plane: registry, discovery, certificate authority, peering.
