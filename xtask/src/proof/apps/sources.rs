//! What others wrote: which commit of which repository, and that a folder has it unchanged. Nothing
//! is fetched: the folder is one that the user names.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process;

/// A repository at a commit.
pub(super) struct Source {
    pub(super) repository: &'static str,
    pub(super) commit: &'static str,
    /// The variable that names a folder with its files.
    pub(super) variable: &'static str,
    /// The folders that are used, and git's names of what is in them.
    pub(super) trees: &'static [(&'static str, &'static str)],
    /// Files beside those.
    files: &'static [&'static str],
}

pub(super) const PYTHON_SDK: Source = Source {
    repository: "dapr/python-sdk",
    commit: "e4ad1818079c5089814e4d1610b585286d28b98f",
    variable: "TOLLWAY_PYTHON_SDK",
    trees: &[
        ("dapr", "943d3951275cbd3bfc614e23ebbe17a78a84d2b7"),
        ("tests", "597301f9ed916748521be2645fbed774a96547aa"),
        ("examples/demo_actor", "49a8fa578979e129fc09aeb9e0b7bec3e33b1c54"),
    ],
    files: &["pyproject.toml"],
};

pub(super) const QUICKSTART_FILES: Source = Source {
    repository: "dapr/quickstarts",
    commit: "56eb3ae3a4cc1783f2d65a6525deb51065fe0151",
    variable: "TOLLWAY_QUICKSTARTS",
    trees: &[
        ("service_invocation/python", "87cca098e150af2849a3e5cdd0f667d6a195ba1b"),
        ("service_invocation/javascript", "9b6e772cda12f35aee0cb38e913b571516012bb0"),
        ("service_invocation/resources", "f91401d4b66190ccf04b9d086dda44f02c368c71"),
        ("state_management/python", "c48d6691a31dd2133e3365d00f2857a5bfeed149"),
        ("state_management/javascript", "079f774069c52c9949c0d2c7ff60fe285a122721"),
        ("state_management/resources", "fb7484f7cf64d91807ef50d119e7edf0ab2105bb"),
        ("tutorials/hello-world/node", "e1d3efc7264586e415fa53149f3b123d18ce1e2f"),
        ("tutorials/hello-world/python", "c6866e94445ec7a60b2ff21a0fdc9cbf610eca55"),
    ],
    files: &[],
};

impl Source {
    /// A copy below `work`, which is made at the first call.
    ///
    /// # Errors
    /// No folder is named, or its files are not those of the commit.
    pub(super) fn copy(&self, work: &Path) -> Result<PathBuf> {
        let to = work.join(self.repository);
        if to.is_dir() {
            return Ok(to);
        }
        let Self { repository, commit, variable, .. } = self;
        let from = std::env::var_os(variable).map(PathBuf::from).with_context(|| {
            format!("{variable} names no folder; check {repository} out at {commit} and name it")
        })?;
        let scratch = tempfile::tempdir().context("cannot make a temporary folder")?;
        for (folder, name) in self.trees {
            let found = tree(scratch.path(), &from.join(folder))?;
            ensure!(
                found == *name,
                "{folder} in {} is not that of {repository} at {commit}; check it out anew",
                from.display()
            );
        }
        let entries =
            self.trees.iter().map(|(folder, _)| *folder).chain(self.files.iter().copied());
        for entry in entries {
            let at = to.join(entry);
            let above = at.parent().unwrap_or(&to);
            std::fs::create_dir_all(above)
                .with_context(|| format!("cannot make {}", above.display()))?;
            process::run(Command::new("cp").arg("-r").arg(from.join(entry)).arg(above))?;
        }
        Ok(to)
    }
}

/// Git's name of what is in a folder.
fn tree(scratch: &Path, folder: &Path) -> Result<String> {
    let repository = tempfile::tempdir_in(scratch).context("cannot make a temporary folder")?;
    let git = |words: &[&str]| {
        let mut git = Command::new("git");
        git.args(["-c", "core.autocrlf=false", "-c", "core.attributesFile=/dev/null"]);
        git.arg("--git-dir").arg(repository.path()).args(words);
        process::output(&mut git)
    };
    git(&["init", "--quiet", "--bare"])?;
    let mut add = Command::new("git");
    add.args(["-c", "core.autocrlf=false", "-c", "core.bare=false", "--git-dir"]);
    add.arg(repository.path()).arg("--work-tree").arg(folder).args(["add", "-f", "."]);
    process::output(add.current_dir(folder))?;
    Ok(git(&["write-tree"])?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_makes_another_tree() {
        let (scratch, folder) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = folder.path().join("a");
        std::fs::write(&file, "hello\n").unwrap();
        std::fs::write(folder.path().join(".gitignore"), "a\n").unwrap();
        let before = tree(scratch.path(), folder.path()).unwrap();
        assert_eq!((before.len(), &before), (40, &tree(scratch.path(), folder.path()).unwrap()));
        std::fs::write(&file, "hello!\n").unwrap();
        assert_ne!(tree(scratch.path(), folder.path()).unwrap(), before);
    }
}
