//! Machines of a test: network namespaces, cables between them, and what starts processes there.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;

use tollway_model::chain;
use tollway_net::netns::NetNs;

type Work = Box<dyn FnOnce() + Send>;

/// A network namespace, and the thread that starts processes there: they end with it.
pub struct Site {
    namespace: NetNs,
    work: mpsc::Sender<Work>,
}

impl Site {
    /// `name` is used in messages only.
    ///
    /// # Errors
    /// Where this user may make none.
    pub fn new(name: &str) -> Result<Self, String> {
        let namespace = NetNs::create(name).map_err(|error| chain(&error))?;
        let (work, queue) = mpsc::channel::<Work>();
        let inner = NetNs::from_fd(name, rustix::io::dup(&namespace).map_err(|e| e.to_string())?);
        thread::spawn(move || {
            let serve = || queue.into_iter().for_each(|work| work());
            inner.run(serve).unwrap();
        });
        Ok(Self { namespace, work })
    }

    /// Starts something there.
    ///
    /// # Panics
    /// Where it panics.
    pub fn start<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = mpsc::channel();
        self.work.send(Box::new(move || drop(done.send(work())))).unwrap();
        result.recv().expect("it could not be started")
    }

    /// Does something there that starts nothing.
    ///
    /// # Panics
    /// Where the namespace cannot be entered.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.namespace.run(work).unwrap()
    }

    /// Lays a cable from its device `name` to that of the same name at the other.
    ///
    /// # Panics
    /// Where iproute2 refuses.
    pub fn cable(&self, other: &Self, name: &str) {
        let there =
            format!("/proc/{}/fd/{}", std::process::id(), other.namespace.as_fd().as_raw_fd());
        self.ip(&format!("link add {name} type veth peer name {name} netns {there}"));
        for site in [self, other] {
            site.allow_ipv6(name);
            site.ip(&format!("link set {name} up"));
        }
    }

    /// Gives one of its devices an address, with the prefix behind it.
    ///
    /// # Panics
    /// Where iproute2 refuses.
    pub fn add_address(&self, device: &str, address: &str) {
        let at_once = if address.contains(':') { " nodad" } else { "" };
        self.ip(&format!("address add {address} dev {device}{at_once}"));
    }

    /// Lets a device have addresses of IPv6, which new ones have not.
    ///
    /// # Panics
    /// Where the kernel has no IPv6.
    pub fn allow_ipv6(&self, device: &str) {
        let file = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
        self.within(|| std::fs::write(file, "0")).unwrap();
    }

    /// Runs `ip` of iproute2 there.
    ///
    /// # Panics
    /// Where it refuses.
    pub fn ip(&self, arguments: &str) {
        let mut command = Command::new("ip");
        command.args(arguments.split_whitespace());
        let output = self.within(|| command.output()).unwrap();
        let reported = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ip {arguments}: {reported}");
    }

    /// Loads rules of a firewall there.
    ///
    /// # Errors
    /// Where the kernel takes none.
    pub fn firewall(&self, nft: &Path, rules: &str) -> Result<(), String> {
        self.within(|| load(nft, rules))
    }
}

fn load(nft: &Path, rules: &str) -> Result<(), String> {
    let mut child = Command::new(nft)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, rules.as_bytes()).map_err(|error| error.to_string())?;
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let reported = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(format!("no firewall: {reported}")) }
}
