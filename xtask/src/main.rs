//! The repository's own commands.

mod codegen;

fn main() -> anyhow::Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("codegen") => codegen::run(),
        _ => anyhow::bail!("usage: cargo xtask codegen"),
    }
}
