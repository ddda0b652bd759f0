//! `cargo xtask bpf`: the programs for the kernel, from their C sources: the forwarder's, those that
//! intercept an app's connections, and those that make and count packets for a measurement.
//!
//! Objects are checked in, so that building and using Tollway needs no C compiler. Beside each is a
//! record: the hashes of the sources and of the object, and the compiler's version, since another
//! version makes other bytes. Tests compare all three, and compile again if that version of clang
//! is installed.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::process::{self, find_program};

/// Programs that are one object: the crate whose they are, and the name of their source without its
/// ending. All C files of the crate's folder `bpf` are theirs.
#[derive(Clone, Copy)]
struct Programs {
    of: &'static str,
    name: &'static str,
}

const ALL: [Programs; 3] = [
    Programs { of: "fabric", name: "fabric.bpf" },
    Programs { of: "intercept", name: "intercept.bpf" },
    Programs { of: "load", name: "packets.bpf" },
];

/// Folders of kernel headers that depend on the machine, on Debian and Ubuntu; a compiler for BPF
/// does not search there by itself.
const MACHINE_HEADERS: [&str; 2] =
    ["/usr/include/x86_64-linux-gnu", "/usr/include/aarch64-linux-gnu"];

/// Sections that only the verifier's messages would use: half of the object.
const LEFT_OUT: [&str; 3] = [".BTF.ext", ".rel.BTF.ext", ".llvm_addrsig"];

/// Compiles the programs and writes objects and records.
///
/// # Errors
/// When clang or llvm-objcopy is missing, or a source does not compile.
pub(crate) fn run() -> Result<()> {
    for programs in ALL {
        let object = programs.object();
        programs.compile(&object)?;
        let record = Record {
            sources: hash_of_sources(&programs.folder())?,
            object: hash(&read(&object)?),
            compiler: compiler()?,
        };
        let text = record.text(programs.name);
        std::fs::write(programs.record(), text).context("write the record of the object")?;
        eprintln!("bpf: {} by clang {}", programs.name, record.compiler);
    }
    Ok(())
}

/// What an object was made of.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    /// SHA-256 over the names and contents of all sources.
    sources: String,
    /// SHA-256 of the object.
    object: String,
    /// The version that clang prints.
    compiler: String,
}

impl Record {
    fn text(&self, name: &str) -> String {
        format!(
            "# Written by `cargo xtask bpf`: what {name}.o was made of.\n\
             sources {}\nobject {}\nclang {}\n",
            self.sources, self.object, self.compiler
        )
    }
}

impl Programs {
    fn folder(self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(self.of).join("bpf")
    }

    fn object(self) -> PathBuf {
        self.folder().join(format!("{}.o", self.name))
    }

    fn record(self) -> PathBuf {
        self.folder().join(format!("{}.txt", self.name))
    }

    fn compile(self, object: &Path) -> Result<()> {
        for tool in ["clang", "llvm-objcopy"] {
            if find_program(tool).is_none() {
                bail!(
                    "`{tool}` is missing; `apt-get install clang llvm libbpf-dev` brings what it \
                     needs"
                );
            }
        }
        let folder = self.folder();
        let mut clang = Command::new("clang");
        clang.current_dir(&folder).args(["-target", "bpf", "-mcpu=v3", "-O2", "-g"]);
        clang.args(["-Wall", "-Wextra", "-Werror"]);
        // Names of files are in the object: from here on, wherever the tree is.
        let here = folder.canonicalize().context("find the sources")?;
        clang.arg(format!("-fdebug-prefix-map={}=.", here.display()));
        for headers in MACHINE_HEADERS.iter().filter(|folder| Path::new(folder).is_dir()) {
            clang.arg("-I").arg(headers);
        }
        let source = format!("{}.c", self.name);
        process::output(clang.args(["-c", &source, "-o"]).arg(object))?;
        let mut strip = Command::new("llvm-objcopy");
        strip.arg("--strip-debug");
        for section in LEFT_OUT {
            strip.args(["--remove-section", section]);
        }
        process::output(strip.arg(object)).map(drop)
    }
}

/// The version, as in `Debian clang version 14.0.6`: the part that decides what it makes.
fn compiler() -> Result<String> {
    let text = process::output(Command::new("clang").arg("--version"))?;
    let version =
        text.split("clang version ").nth(1).and_then(|rest| rest.split_whitespace().next());
    version.map(str::to_owned).context("`clang --version` names no version")
}

fn hash_of_sources(folder: &Path) -> Result<String> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()
        .context("list the sources")?;
    files.retain(|file| file.extension().is_some_and(|ending| ending == "c" || ending == "h"));
    files.sort();
    let mut all = Vec::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let text = read(&file)?;
        all.extend(format!("{name} {}\n", text.len()).into_bytes());
        all.extend(text);
    }
    Ok(hash(&all))
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Record {
        fn parse(text: &str) -> Result<Self> {
            let field = |name: &str| {
                let found =
                    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
                found.map(str::to_owned).with_context(|| format!("there is no line `{name} …`"))
            };
            Ok(Self {
                sources: field("sources")?,
                object: field("object")?,
                compiler: field("clang")?,
            })
        }
    }

    fn recorded(programs: Programs) -> Record {
        Record::parse(&std::fs::read_to_string(programs.record()).unwrap()).unwrap()
    }

    #[test]
    fn checked_in_objects_are_of_these_sources() {
        for programs in ALL {
            let (name, record) = (programs.name, recorded(programs));
            let stale = format!("{name}.o is out of date: run `cargo xtask bpf`");
            assert_eq!(record.sources, hash_of_sources(&programs.folder()).unwrap(), "{stale}");
            assert_eq!(record.object, hash(&read(&programs.object()).unwrap()), "{stale}");
        }
    }

    #[test]
    fn sources_compile_to_the_checked_in_objects() {
        tollway_testkit::need_tool!("clang");
        tollway_testkit::need_tool!("llvm-objcopy");
        if !Path::new("/usr/include/bpf/bpf_helpers.h").exists() {
            tollway_testkit::skip!("the headers of libbpf are missing (libbpf-dev)");
        }
        let fresh = tempfile::tempdir().unwrap();
        for programs in ALL {
            let object = fresh.path().join("object");
            // No warning, whichever version it is.
            programs.compile(&object).unwrap();
            let (record, found) = (recorded(programs), compiler().unwrap());
            if found != record.compiler {
                tollway_testkit::skip!(
                    "{}.o is by clang {}, here is {found}: that its bytes are those of the \
                     sources is not checked",
                    programs.name,
                    record.compiler
                );
            }
            assert_eq!(hash(&read(&object).unwrap()), record.object, "run `cargo xtask bpf`");
        }
    }

    #[test]
    fn record_is_read_as_it_is_written() {
        let record =
            Record { sources: "ab".into(), object: "cd".into(), compiler: "14.0.6".into() };
        assert_eq!(Record::parse(&record.text("some")).unwrap(), record);
        assert!(Record::parse("sources ab\n").is_err());
    }
}
