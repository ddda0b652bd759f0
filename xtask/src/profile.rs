//! `cargo xtask profile`: the profile that release builds are compiled with. The program is built
//! with counters and does the work of the speed proof once; the counts are stored beside
//! `xtask/pgo/rustc`, which passes them to the compiler that made them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process;
use crate::workspace::Workspace;

/// The folder of the profile, and of the script that passes it to the compiler.
const FOLDER: &str = "xtask/pgo";
/// The variable by which `xtask/pgo/rustc` learns where the program writes its counts.
const INTO: &str = "TOLLWAY_PROFILE_INTO";
/// A profile of the whole program has megabytes; one of build scripts alone has a few thousand bytes.
const LEAST_BYTES: u64 = 500_000;
/// Experiments with the program's typical work: both protocols near by and at an edge, and one
/// stream of bytes.
const WORK: [&str; 5] = ["near", "fronts", "gateway", "duties", "bulk"];
/// Tollway, with and without its optional duties.
const SUBJECTS: &str = "tollway,tollway:front,tollway:duties,tollway:steered";

pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let compiler = Compiler::of_this_machine()?;
    let merge = compiler.merging_tool()?;
    let scratch = workspace.target.join("profile");
    let counts = scratch.join("counts");
    if counts.exists() {
        fs::remove_dir_all(&counts)
            .with_context(|| format!("could not remove {}", counts.display()))?;
    }
    let build = ["build", "--release", "-p", "tollway", "--target-dir"];
    process::run(process::cargo().args(build).arg(&scratch).env(INTO, &counts))?;
    for name in WORK {
        let scenario = workspace.root.join(format!("xtask/src/proof/speed/{name}.yaml"));
        let mut work = Command::new(scratch.join("release/tollway"));
        work.args(["lab", "run"]).arg(scenario).args(["--subjects", SUBJECTS]);
        process::run(work.args(["--blocks", "1", "--window-s", "3", "--no-repeats"]))?;
    }
    let folder = workspace.root.join(FOLDER);
    let profile = folder.join(format!("{}.profdata", compiler.commit));
    let made = scratch.join("made.profdata");
    // Functions that never ran are left out: a fifth of the size, and the same code.
    process::run(Command::new(merge).args(["merge", "--sparse", "-o"]).arg(&made).arg(&counts))?;
    let bytes = made.metadata().with_context(|| format!("no {}", made.display()))?.len();
    ensure!(
        bytes >= LEAST_BYTES,
        "the program has written no counts ({bytes} bytes are left of {}); the old profile stays",
        counts.display()
    );
    for old in profiles(&folder)? {
        fs::remove_file(&old).with_context(|| format!("could not remove {}", old.display()))?;
    }
    fs::copy(&made, &profile).with_context(|| format!("could not write {}", profile.display()))?;
    println!("{}: {bytes} bytes", profile.display());
    println!("cargo does not see that it is new: `cargo clean --release` before the next build");
    Ok(())
}

/// What a profile has to fit.
struct Compiler {
    commit: String,
    /// The number before the first dot of LLVM's version.
    llvm: String,
    sysroot: PathBuf,
}

impl Compiler {
    fn of_this_machine() -> Result<Self> {
        let rustc = || Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
        let printed = process::output(rustc().arg("-vV"))?;
        let said = |key: &str| -> Result<&str> {
            let mut lines = printed.lines().filter_map(|line| line.strip_prefix(key));
            lines.next().with_context(|| format!("`rustc -vV` says no `{key}`"))
        };
        let commit = said("commit-hash: ")?.to_owned();
        ensure!(
            commit.len() == 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "this rustc does not say which commit it was built from (`{commit}`), so that a \
             profile could not be recognised as fitting; rustup's toolchains do"
        );
        let llvm = said("LLVM version: ")?.split('.').next().unwrap_or_default().to_owned();
        let sysroot = process::output(rustc().args(["--print", "sysroot"]))?;
        Ok(Self { commit, llvm, sysroot: PathBuf::from(sysroot.trim()) })
    }

    /// `llvm-profdata` of the compiler's own LLVM, which alone reads and writes its format.
    fn merging_tool(&self) -> Result<PathBuf> {
        let llvm = &self.llvm;
        let targets = list(&self.sysroot.join("lib/rustlib")).into_iter();
        let own = targets.map(|target| target.join("bin/llvm-profdata"));
        let debian = PathBuf::from(format!("/usr/lib/llvm-{llvm}/bin/llvm-profdata"));
        let found = own.chain([debian]).find(|file| process::is_executable(file));
        let found = found.or_else(|| process::find_program(&format!("llvm-profdata-{llvm}")));
        found.with_context(|| {
            format!(
                "no llvm-profdata of LLVM {llvm}, which is this compiler's: `rustup component add \
                 llvm-tools`, or `apt-get install llvm-{llvm}`"
            )
        })
    }
}

fn profiles(folder: &Path) -> Result<Vec<PathBuf>> {
    ensure!(folder.is_dir(), "{} is missing", folder.display());
    let is_profile = |file: &PathBuf| file.extension().is_some_and(|end| end == "profdata");
    Ok(list(folder).into_iter().filter(is_profile).collect())
}

fn list(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
