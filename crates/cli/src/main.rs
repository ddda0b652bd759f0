//! The `tollway` binary: parse, call, print.

fn main() {}
