//! Records to terminal and HTML. Both are made from the same contents; neither reads a clock,
//! a file or the network.

mod chart;
mod contents;
mod figures;
mod forest;
mod page;
mod table;
mod text;

pub use page::html;
pub use text::terminal;
