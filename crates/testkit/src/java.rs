//! Programs of Java with packages of Maven's registry, which nobody here wrote.

use std::path::Path;
use std::process::Command;

use crate::TOOL_MISSING;
use crate::program::{alone, attempt, is_copied};

/// Java with the classes of the sources in `project` and of what its `pom.xml` names: that is brought
/// into `folder` once and again when the file changes, the sources are compiled each time. The reason
/// if that cannot be.
pub fn java_project(project: &Path, folder: &Path) -> Result<Command, String> {
    let tool = |name: &str| crate::tool(name).ok_or_else(|| format!("{TOOL_MISSING}{name}"));
    let (java, javac, mvn) = (tool("java")?, tool("javac")?, tool("mvn")?);
    let _alone = alone(folder)?;
    let (packages, classes) = (folder.join("packages"), folder.join("classes"));
    if !is_copied(project, folder, &["pom.xml"])? {
        let failed = |reason| format!("{} cannot be installed: {reason}", project.display());
        bring(Command::new(mvn).current_dir(folder), &folder.join("repository"), &packages)
            .map_err(failed)?;
        std::fs::write(folder.join("installed"), "").map_err(|error| error.to_string())?;
    }
    let everything = packages.join("*");
    let mut compiler = Command::new(javac);
    compiler.arg("-d").arg(&classes).arg("-cp").arg(&everything);
    let sources = std::fs::read_dir(project).map_err(|error| error.to_string())?;
    let sources = sources.filter_map(|entry| Some(entry.ok()?.path()));
    compiler.args(sources.filter(|path| path.extension().is_some_and(|end| end == "java")));
    attempt(&mut compiler).map_err(|reason| format!("javac: {reason}"))?;
    let mut command = Command::new(java);
    // What runs for a moment is not worth a second compiler.
    command.arg("-XX:TieredStopAtLevel=1").arg("-cp");
    command.arg(format!("{}:{}", classes.display(), everything.display()));
    Ok(command)
}

/// Has Maven put the packages of the `pom.xml` where it stands into a folder, and what it needs for
/// that into another.
fn bring(mvn: &mut Command, repository: &Path, packages: &Path) -> Result<(), String> {
    mvn.args(["--batch-mode", "--quiet", "dependency:copy-dependencies"])
        .arg(format!("-Dmaven.repo.local={}", repository.display()))
        .arg(format!("-DoutputDirectory={}", packages.display()))
        .arg("-DincludeScope=runtime");
    let output = mvn.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    // What went wrong comes first, where to read about Maven last.
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = printed.lines().find(|line| line.contains("ERROR"));
    Err(line.unwrap_or("no reason given").to_owned())
}
