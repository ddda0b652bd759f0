//! Decisions about connections that are taken from an app which knows nothing of the mesh: what an
//! address stands for, what a question for a name is answered with, which protocol is spoken, what is
//! left alone.

pub mod dns;
mod names;
mod recognise;
mod spared;

pub use names::{MESH_NAMES_LIMIT, Meaning, MeshNames, NAME_BYTES};
pub use recognise::{Evidence, LEARNED_LIMIT, Learned, Recognition, recognise};
pub use spared::{Alias, LeftAlone, Spared};
