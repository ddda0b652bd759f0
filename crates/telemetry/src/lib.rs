//! Logs and every metric name of every part.
