//! The clock of leases: it goes on while the machine sleeps, and nobody sets it.

pub(crate) use tollway_net::boot_time as now;
