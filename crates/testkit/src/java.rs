//! Java programs with packages of Maven's registry: clients and servers that share no code with
//! ours.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{attempt, copy_files};
use crate::{TOOL_MISSING, cache};

/// Java with the classes of the sources in `project` and of what its `pom.xml` names. The packages
/// are installed once for each `pom.xml`, the classes compiled once for each set of sources, and
/// both are cached; the error is the reason of a skip.
pub fn java_project(project: &Path) -> Result<Command, String> {
    let tool = |name: &str| crate::tool(name).ok_or_else(|| format!("{TOOL_MISSING}{name}"));
    let (java, javac, mvn) = (tool("java")?, tool("javac")?, tool("mvn")?);
    let pins = std::fs::read(project.join("pom.xml")).map_err(|error| error.to_string())?;
    let installed = cache::folder("java", &pins);
    let packages = installed.join("packages");
    cache::install_once(&installed, || {
        copy_files(project, &installed, &["pom.xml"])?;
        bring(Command::new(mvn).current_dir(&installed), &installed.join("repository"), &packages)
    })
    .map_err(|reason| format!("{} cannot be installed: {reason}", project.display()))?;
    let everything = packages.join("*");
    let (sources, texts) = sources(project).map_err(|error| error.to_string())?;
    let classes = cache::folder("java-classes", (&pins, texts));
    cache::install_once(&classes, || {
        let mut compiler = Command::new(javac);
        compiler.arg("-d").arg(&classes).arg("-cp").arg(&everything).args(sources);
        attempt(&mut compiler).map_err(|reason| format!("javac: {reason}"))
    })?;
    let mut command = Command::new(java);
    // What runs for a moment is not worth a second compiler.
    command.arg("-XX:TieredStopAtLevel=1").arg("-cp");
    command.arg(format!("{}:{}", classes.display(), everything.display()));
    Ok(command)
}

/// The Java files in `project` and what they hold, in the order of their names.
fn sources(project: &Path) -> std::io::Result<(Vec<PathBuf>, Vec<Vec<u8>>)> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(project)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "java") {
            files.push(path);
        }
    }
    files.sort();
    let texts: std::io::Result<_> = files.iter().map(std::fs::read).collect();
    Ok((files, texts?))
}

/// Has Maven copy the packages of the `pom.xml` into one folder, and what it needs for that into
/// another.
fn bring(mvn: &mut Command, repository: &Path, packages: &Path) -> Result<(), String> {
    mvn.args(["--batch-mode", "--quiet", "dependency:copy-dependencies"])
        .arg(format!("-Dmaven.repo.local={}", repository.display()))
        .arg(format!("-DoutputDirectory={}", packages.display()))
        .arg("-DincludeScope=runtime");
    let output = mvn.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    // Maven prints what went wrong first, and where to read about it last.
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = printed.lines().find(|line| line.contains("ERROR"));
    Err(line.unwrap_or("no reason given").to_owned())
}
