//! Records to terminal, JSON and HTML.
