//! Records to terminal, JSON and HTML, and a server of pages for a folder of them. Pages and
//! text are made from the same contents; only the server reads files, and none but its folder's.

mod contents;
mod document;
mod figures;
mod page;
mod plot;
mod report;
pub mod serve;
mod table;
mod text;

pub use page::html;
pub use report::{ReadError, Report};
pub use text::terminal;
