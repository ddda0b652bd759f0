//! A test that cannot run here reports why, and `cargo xtask test` lists it at the end.
//!
//! The harness hides what a passing test prints, so each skip is also one line,
//! `test<tab>reason`, in the file named by `TOLLWAY_SKIP_LOG`.

use std::any::type_name;
use std::fs::OpenOptions;
use std::io::Write;

/// How the reason of a test starts whose program is not on this machine; the program follows.
pub const TOOL_MISSING: &str = "tool missing: ";

/// How the reason of a test starts that may not do here what it needs to; what it lacks follows.
pub const RIGHT_MISSING: &str = "right missing: ";

/// What a test returns when it was skipped.
pub trait Skipped {
    fn skipped() -> Self;
}

impl Skipped for () {
    fn skipped() -> Self {}
}

impl<E> Skipped for Result<(), E> {
    fn skipped() -> Self {
        Ok(())
    }
}

/// Ends the calling test as skipped, with a reason in the manner of `format!`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        fn here() {}
        $crate::report_skip($crate::name_of(here), &format!($($reason)+));
        return $crate::Skipped::skipped();
    }};
}

/// Skips the calling test unless slow tests are enabled (`TOLLWAY_SLOW_TESTS=1`).
#[macro_export]
macro_rules! slow {
    () => {
        if !$crate::runs_slow_tests() {
            $crate::skip!("slow: `cargo xtask test` runs it");
        }
    };
}

/// The path of a foreign program; skips the calling test if it is missing.
#[macro_export]
macro_rules! need_tool {
    ($name:expr) => {
        match $crate::tool($name) {
            Some(path) => path,
            None => $crate::skip!("{}{}", $crate::TOOL_MISSING, $name),
        }
    };
}

/// What was made with a right that not every user has, such as a network namespace; skips the calling
/// test where it was refused.
#[macro_export]
macro_rules! need_right {
    ($made:expr) => {
        match $made {
            Ok(made) => made,
            Err(reason) => $crate::skip!("{}{reason}", $crate::RIGHT_MISSING),
        }
    };
}

/// Whether tests that take long are to run.
pub fn runs_slow_tests() -> bool {
    std::env::var_os("TOLLWAY_SLOW_TESTS").is_some_and(|value| value == "1")
}

/// The path of the function that holds the function `here`.
#[doc(hidden)]
pub fn name_of<T>(_here: T) -> String {
    let name = type_name::<T>();
    name.strip_suffix("::here").unwrap_or(name).replace("::{{closure}}", "")
}

#[doc(hidden)]
pub fn report_skip(test: String, reason: &str) {
    eprintln!("SKIP {test}: {reason}");
    let Some(path) = std::env::var_os("TOLLWAY_SKIP_LOG") else {
        return;
    };
    let line = skip_line(&test, reason);
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut log| log.write_all(line.as_bytes()));
    if let Err(error) = written {
        panic!("the skip of {test} could not be noted in {}: {error}", path.display());
    }
}

fn skip_line(test: &str, reason: &str) -> String {
    format!("{test}\t{}\n", reason.replace(['\n', '\t'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TempDir;

    fn skips_itself() {
        crate::skip!("no {} here", "luck");
    }

    fn skips_with_result() -> Result<(), String> {
        crate::skip!("no luck");
    }

    fn needs_a_missing_program() -> Result<(), String> {
        let tool = crate::need_tool!("no-such-program-anywhere");
        Err(format!("found {}", tool.display()))
    }

    fn needs_a_missing_right() {
        let made: Result<(), &str> = Err("no namespace for you");
        crate::need_right!(made);
        panic!("it was made");
    }

    /// The environment belongs to the whole process, so the log is watched in a child.
    fn in_child(log: &std::path::Path) -> std::process::Output {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "skip::tests::skips_are_logged_with_test_and_reason"])
            .env("TOLLWAY_SKIP_LOG", log)
            .env("TESTKIT_IN_CHILD", "1")
            .output()
            .unwrap()
    }

    #[test]
    fn skips_are_logged_with_test_and_reason() {
        if std::env::var_os("TESTKIT_IN_CHILD").is_some() {
            skips_itself();
            skips_with_result().unwrap();
            needs_a_missing_program().unwrap();
            needs_a_missing_right();
            return;
        }
        let dir = TempDir::new().unwrap();
        let log = dir.path().join("skips");
        let output = in_child(&log);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(
            std::fs::read_to_string(log).unwrap(),
            "tollway_testkit::skip::tests::skips_itself\tno luck here\n\
             tollway_testkit::skip::tests::skips_with_result\tno luck\n\
             tollway_testkit::skip::tests::needs_a_missing_program\t\
             tool missing: no-such-program-anywhere\n\
             tollway_testkit::skip::tests::needs_a_missing_right\t\
             right missing: no namespace for you\n"
        );
    }

    #[test]
    fn reason_stays_on_one_line() {
        assert_eq!(skip_line("a::b", "x\ny\tz"), "a::b\tx y z\n");
    }
}
