//! Dapr's own integration suite, built once from Dapr's Go module into the cache.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process::{self, is_executable};
use crate::{cache, go};

/// The version of Dapr in whose place we stand.
pub(super) const VERSION: &str = "1.18.3";
const MODULE: &str = "github.com/dapr/dapr";
/// Its module requires a version that the registry does not serve; cases of workflows alone use it.
const REPLACED: (&str, &str) =
    ("github.com/dapr/durabletask-go v0.12.4", "github.com/dapr/durabletask-go v0.12.1");
/// The programs beside daprd that cases start.
const PROGRAMS: [&str; 3] = ["placement", "scheduler", "sentry"];
/// Prints the name of each case.
const LIST: &str = r#"//go:build integration

package integration

import (
	"fmt"
	"testing"

	"github.com/dapr/dapr/tests/integration/suite"
)

func Test_Cases(t *testing.T) {
	for _, c := range suite.All(t) {
		fmt.Println("case " + c.Name())
	}
}
"#;

/// Neither built nor to be had: this machine has no Go, or does not reach the registry of its modules.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotHere;

impl fmt::Display for NotHere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it takes Go and the registry of its modules")
    }
}

/// Where the suite is.
pub(super) struct Suite {
    folder: PathBuf,
}

impl Suite {
    /// Takes it from the cache, or builds it, which takes minutes.
    ///
    /// # Errors
    /// [`NotHere`] without Go or the module; or it cannot be built.
    pub(super) fn build() -> Result<Self> {
        let suite = Self { folder: cache::entry("dapr-suite", (VERSION, REPLACED, LIST)) };
        // The last one is the sign that all are there.
        if is_executable(&suite.program(PROGRAMS[2])) {
            return Ok(suite);
        }
        let go = go::toolchain().context(NotHere)?;
        cache::remove_folder(&suite.folder)?;
        let bin = suite.folder.join("bin");
        std::fs::create_dir_all(&bin).with_context(|| format!("cannot make {}", bin.display()))?;
        let module = fetch(&go, &suite.folder).context(NotHere)?;
        let tree = suite.tree();
        process::run(Command::new("cp").arg("-r").arg(&module).arg(&tree))?;
        process::run(Command::new("chmod").args(["-R", "u+w"]).arg(&tree))?;
        adapt(&tree)?;
        let run = |words: &[&str], output: &Path, packages: &[String]| {
            let mut command = Command::new(&go);
            // Without tables for debuggers, programs are linked in half the time.
            command.args(words).args(["-ldflags", "-s -w", "-o"]).arg(output).args(packages);
            command.current_dir(&tree);
            command.env("GOFLAGS", "-mod=mod -buildvcs=false").env("CGO_ENABLED", "0");
            process::run(command.env("GOTOOLCHAIN", "local"))
        };
        let test = ["./tests/integration".to_owned()];
        run(&["test", "-c", "-tags", "integration"], &suite.program("integration.test"), &test)?;
        for program in PROGRAMS {
            run(&["build"], &suite.program(program), &[format!("./cmd/{program}")])?;
        }
        Ok(suite)
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    fn tree(&self) -> PathBuf {
        self.folder.join("dapr")
    }

    /// Where the suite's program runs: cases read files beside their source.
    pub(super) fn directory(&self) -> PathBuf {
        self.tree().join("tests/integration")
    }

    /// The variables by which the suite finds programs; `daprd` is the one under test.
    pub(super) fn variables(&self, daprd: &Path) -> Vec<(String, PathBuf)> {
        let variable = |name: &str| format!("DAPR_INTEGRATION_{}_PATH", name.to_uppercase());
        let mut variables: Vec<_> =
            PROGRAMS.iter().map(|name| (variable(name), self.program(name))).collect();
        // Cases that start these are not run.
        for name in ["operator", "injector", "helmtemplate", "mcpstdioserver", "controllergen"] {
            variables.push((variable(name), PathBuf::from("/bin/true")));
        }
        variables.push((variable("daprd"), daprd.to_owned()));
        variables
    }

    /// The names of all its cases, in its order.
    ///
    /// # Errors
    /// It does not print them.
    pub(super) fn cases(&self) -> Result<Vec<String>> {
        let mut list = Command::new(self.program("integration.test"));
        list.args(["-test.run", "^Test_Cases$", "-test.v"]).current_dir(self.directory());
        list.envs(self.variables(Path::new("/bin/true")));
        let printed = process::output(&mut list)?;
        let names = printed.lines().filter_map(|line| line.strip_prefix("case "));
        let names: Vec<String> = names.map(str::to_owned).collect();
        ensure!(!names.is_empty(), "the suite names no cases: {printed}");
        Ok(names)
    }
}

/// The folder of Dapr's definitions of custom resources, as its chart has them.
///
/// # Errors
/// The module cannot be fetched.
pub(crate) fn definitions() -> Result<PathBuf> {
    let folder = cache::entry("dapr-module", VERSION);
    Ok(fetch(&go::toolchain()?, &folder)?.join("charts/dapr/crds"))
}

/// Fetches the module, which Go's checksum database verifies. Returns its folder.
fn fetch(go: &Path, folder: &Path) -> Result<PathBuf> {
    let here = folder.join("fetch");
    std::fs::create_dir_all(&here).with_context(|| format!("cannot make {}", here.display()))?;
    std::fs::write(here.join("go.mod"), "module fetch\n").context("cannot write go.mod")?;
    let mut download = Command::new(go);
    download.args(["mod", "download", "-json", &format!("{MODULE}@v{VERSION}")]);
    download.current_dir(&here).env("GOTOOLCHAIN", "local");
    let printed: Value = serde_json::from_str(&process::output(&mut download)?)?;
    let found = printed["Dir"].as_str().context("Go does not print where the module is")?;
    Ok(PathBuf::from(found))
}

/// Makes of the module what can be built here, and adds the list of cases.
fn adapt(tree: &Path) -> Result<()> {
    let at = tree.join("go.mod");
    let text = std::fs::read_to_string(&at).context("the module has no go.mod")?;
    let (from, to) = REPLACED;
    ensure!(text.contains(from), "{MODULE} v{VERSION} does not require {from}");
    std::fs::write(&at, text.replace(from, to)).context("cannot write go.mod")?;
    std::fs::write(tree.join("tests/integration/cases_test.go"), LIST)
        .context("cannot add the list of cases")
}
