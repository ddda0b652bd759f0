//! Records to terminal and HTML. Both are made from the same contents; neither reads a clock,
//! a file or the network.

mod contents;
mod figures;
mod page;
mod plot;
mod table;
mod text;

pub use page::html;
pub use text::terminal;
