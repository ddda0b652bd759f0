//! Certificates, trust bundles, rotation and TLS configuration.
