//! A server of names by others: dnsmasq, with records of a test's choice below `mesh.test`.

use std::fmt::Write as _;
use std::path::Path;

use tollway_testkit::{Process, Start, TempDir, retry_until};

use crate::mesh::PATIENCE;

/// It ends with the value, and with the thread that has started it.
pub struct NameServer {
    process: Process,
    _files: TempDir,
}

/// An SRV record of `_tollway._tcp.NAME.mesh.test`.
#[derive(Clone)]
pub struct Srv {
    pub name: &'static str,
    /// Below `mesh.test`.
    pub host: String,
    pub port: u16,
    pub priority: u16,
    pub weight: u16,
}

impl NameServer {
    /// Serves at port 53 of an address of the calling thread's namespace, what is not known there as not
    /// existing. `hosts` are names below `mesh.test` with an address each; a name may have several.
    ///
    /// # Panics
    /// Where it does not start.
    #[must_use]
    pub fn start(dnsmasq: &Path, address: &str, hosts: &[(String, String)], srvs: &[Srv]) -> Self {
        let files = TempDir::new().unwrap();
        let known = files.path().join("hosts");
        let lines = hosts.iter().map(|(name, address)| format!("{address} {name}.mesh.test\n"));
        std::fs::write(&known, lines.collect::<String>()).unwrap();
        let mut settings = format!(
            "no-resolv\nno-hosts\nbind-interfaces\nlisten-address={address}\nlocal=/test/\n\
             user=root\naddn-hosts={}\n",
            known.display()
        );
        for Srv { name, host, port, priority, weight } in srvs {
            let record = format!("_tollway._tcp.{name}.mesh.test,{host}.mesh.test");
            writeln!(settings, "srv-host={record},{port},{priority},{weight}").unwrap();
        }
        let file = files.path().join("dnsmasq.conf");
        std::fs::write(&file, settings).unwrap();
        let process = Start::new(dnsmasq)
            .args(["--keep-in-foreground", "--log-facility=-", "--log-queries=extra"])
            .args(["--pid-file=", &format!("--conf-file={}", file.display())])
            .start()
            .unwrap();
        let started = || process.log().contains("read ").then_some(());
        let started = retry_until(PATIENCE, "dnsmasq reading its hosts", started);
        assert!(started.is_ok(), "{}", process.log());
        Self { process, _files: files }
    }

    /// What it was asked.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.log()
    }
}
