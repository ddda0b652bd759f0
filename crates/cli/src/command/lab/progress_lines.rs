//! Progress on standard error: lines, and on a terminal one line that is written over.

use std::io::IsTerminal;

use tollway_lab::{Event, Progress};

/// Shows what an experiment does.
#[derive(Default)]
pub(crate) struct Screen {
    overwriting: bool,
}

impl Progress for Screen {
    fn report(&mut self, event: &Event<'_>) {
        let live = std::io::stderr().is_terminal();
        if std::mem::take(&mut self.overwriting) {
            eprint!("\r\x1b[2K");
        }
        match event {
            Event::Run { done, total, .. } if live => {
                eprint!("{event}");
                if done < total {
                    self.overwriting = true;
                } else {
                    eprintln!();
                }
            }
            Event::Step(_)
            | Event::Plan(_)
            | Event::Link { .. }
            | Event::Run { .. }
            | Event::Warning(_) => eprintln!("{event}"),
        }
    }
}
