//! What may befall the store of a control plane: it is killed under writes, its file is damaged,
//! its disk is full.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde::Serialize;
use tollway_control::{AdminClient, AdminError};
use tollway_identity::JoinToken;
use tollway_proxy::mesh::{MeshClient, MeshConfig, Role, TokenSource};
use tollway_store::{Limits, Store};
use tollway_testkit::{Process, Start, TempDir, retry_until};
use tollway_tests::program;
use tollway_wire::v1;
use tollway_wire::v1::create_token_request::Scope;

use crate::reliability::caller::{Calls, Stream};
use crate::reliability::strike::millis;
use crate::reliability::world::PATIENCE;

/// Clients that write at the same time.
const WRITERS: usize = 4;
/// The control plane is killed within this after the first write of a round is acknowledged.
const KILL_WITHIN_MS: u64 = 400;
/// Room on the disk that is filled.
const DISK_BYTES: u64 = 4 << 20;

/// What killing a control plane under writes cost.
#[derive(Debug, Serialize)]
pub(crate) struct Rounds {
    pub(crate) seed: u64,
    pub(crate) rounds: u32,
    pub(crate) writers: usize,
    /// Writes that were acknowledged, over all rounds.
    pub(crate) acknowledged: usize,
    /// Of those, missing after the next start.
    pub(crate) lost: usize,
    /// From the start of the process until it served, the longest of all rounds.
    pub(crate) slowest_start_ms: u64,
    pub(crate) passed: bool,
}

/// Kills a control plane at random moments while clients make join tokens; each one that was
/// acknowledged must be there afterwards, and one of each round is redeemed.
pub(crate) fn kill_under_writes(rounds: u32, seed: u64) -> Rounds {
    let files = TempDir::new().unwrap();
    let store = files.path().join("store");
    let mut random = Random(seed);
    let mut acknowledged: BTreeSet<String> = BTreeSet::new();
    let mut slowest = Duration::ZERO;
    let mut lost = 0;
    for _ in 0..rounds {
        let began = Instant::now();
        let mut control = start_control(&store);
        slowest = slowest.max(began.elapsed());
        let wait = Duration::from_millis(random.below(KILL_WITHIN_MS));
        let written = write_until_killed(&mut control, &store, wait);
        redeem(&store, &written, random.below(u64::MAX));
        acknowledged.extend(written);
        lost += missing(&store, files.path(), &acknowledged);
    }
    Rounds {
        seed,
        rounds,
        writers: WRITERS,
        acknowledged: acknowledged.len(),
        lost,
        slowest_start_ms: millis(slowest),
        passed: lost == 0 && acknowledged.len() > rounds as usize,
    }
}

/// Tokens that were acknowledged before the control plane was killed, `wait` after the first.
fn write_until_killed(control: &mut Process, store: &Path, wait: Duration) -> Vec<String> {
    let written: Arc<Mutex<Vec<String>>> = Arc::default();
    let runtime = runtime();
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let (store, written) = (store.to_owned(), written.clone());
            runtime.spawn(async move {
                let mut admin = AdminClient::connect(&store).await.unwrap();
                while let Ok(token) = create_token(&mut admin).await {
                    written.lock().unwrap().push(token);
                }
            })
        })
        .collect();
    let first = || (!written.lock().unwrap().is_empty()).then_some(());
    retry_until(PATIENCE, "a first write", first).unwrap();
    std::thread::sleep(wait);
    control.kill().unwrap();
    runtime.block_on(async {
        for writer in writers {
            writer.await.unwrap();
        }
    });
    let written = std::mem::take(&mut *written.lock().unwrap());
    assert!(!written.is_empty());
    written
}

async fn create_token(admin: &mut AdminClient) -> Result<String, AdminError> {
    let scope = Some(Scope::Any(v1::AnyWorkload {}));
    let made =
        admin.create_token(v1::CreateTokenRequest { scope, ttl_ms: 0, uses: Some(0) }).await?;
    Ok(made.token)
}

/// How many of the acknowledged tokens the store no longer holds. It is read from a copy, so that
/// the next start finds the file as the kill left it.
fn missing(store: &Path, files: &Path, acknowledged: &BTreeSet<String>) -> usize {
    let copy = files.join("copy");
    fs::copy(store_file(store), &copy).unwrap();
    runtime().block_on(async {
        let store = Store::open_embedded(&copy, Limits::default()).await.unwrap();
        let mut missing = 0;
        for token in acknowledged {
            let token: JoinToken = token.parse().unwrap();
            let key = format!("secret/token/{}", token.id());
            missing += usize::from(store.get(key.as_bytes()).await.unwrap().is_none());
        }
        missing
    })
}

/// Starts the control plane again; one of the tokens must still admit a workload.
fn redeem(store: &Path, tokens: &[String], random: u64) {
    let control = start_control(store);
    let index = usize::try_from(random % u64::try_from(tokens.len()).unwrap()).unwrap();
    admits(&control, &tokens[index]).unwrap();
}

fn admits(control: &Process, token: &str) -> Result<(), String> {
    let files = TempDir::new().unwrap();
    let file = files.path().join("token");
    tollway_net::secret_file::write(&file, token.as_ref()).unwrap();
    let role =
        Role::Sidecar { app: "probe".parse().unwrap(), namespace: "default".parse().unwrap() };
    let address = control.port("control").unwrap().into();
    let instance = "probe".parse().unwrap();
    let config = MeshConfig::new(address, TokenSource::of(Some(file), false), role, instance);
    let started = runtime().block_on(async { MeshClient::start(config, |_| {}).await.map(drop) });
    started.map_err(|error| error.to_string())
}

/// The outcome of a damaged store.
#[derive(Debug, Serialize)]
pub(crate) struct Damaged {
    /// The error of `tollway control`.
    pub(crate) refusal: String,
    /// The output of `tollway store check` and `tollway store repair`.
    pub(crate) check: String,
    pub(crate) repair: String,
    /// Writes from before the damage that are there after the repair, of so many.
    pub(crate) kept: usize,
    pub(crate) before: usize,
    pub(crate) passed: bool,
}

/// Damages a byte in the middle of a store: it is refused, and repaired up to the damage.
pub(crate) fn damage() -> Damaged {
    let files = TempDir::new().unwrap();
    let store = files.path().join("store");
    let file = store_file(&store);
    let mut control = start_control(&store);
    let before = create_tokens(&store, 20);
    // After the store's last byte is reserved space, all zero.
    let middle = used_bytes(&file);
    create_tokens(&store, 20);
    control.kill().unwrap();
    flip_byte(&file, middle + 40);

    let text = store.to_str().unwrap();
    let refusal = run(&["control", "--store", text, "--listen", "127.0.0.1:0"]);
    let check = run(&["store", "check", "--store", text]);
    let repair = run(&["store", "repair", "--store", text]);
    let again = run(&["store", "check", "--store", text]);
    let gone = missing(&store, files.path(), &before.iter().cloned().collect());
    let control = start_control(&store);
    let admitted = admits(&control, &before[0]);
    Damaged {
        kept: before.len() - gone,
        before: before.len(),
        passed: refusal.is_err_with(&["damaged at byte", "tollway store"])
            && check.is_err_with(&["damaged at byte", "repair"])
            && repair.0
            && again.0
            && gone == 0
            && admitted.is_ok(),
        refusal: shown(&refusal.1, &files),
        check: shown(&check.1, &files),
        repair: shown(&repair.1, &files),
    }
}

/// What was printed, without the name of a directory that is gone.
fn shown(text: &str, files: &TempDir) -> String {
    text.replace(files.path().to_str().unwrap(), "DIR")
}

/// Whether a command succeeded, and what it printed.
struct Ran(bool, String);

impl Ran {
    fn is_err_with(&self, words: &[&str]) -> bool {
        !self.0 && words.iter().all(|word| self.1.contains(word))
    }
}

fn run(arguments: &[&str]) -> Ran {
    let output = std::process::Command::new(program()).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    Ran(output.status.success(), String::from_utf8_lossy(&text).trim().to_owned())
}

fn create_tokens(store: &Path, count: usize) -> Vec<String> {
    runtime().block_on(async {
        let mut admin = AdminClient::connect(store).await.unwrap();
        let mut tokens = Vec::new();
        for _ in 0..count {
            tokens.push(create_token(&mut admin).await.unwrap());
        }
        tokens
    })
}

fn used_bytes(file: &Path) -> u64 {
    let bytes = fs::read(file).unwrap();
    let last = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    u64::try_from(last).unwrap() + 1
}

fn flip_byte(file: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0xff], at).unwrap();
}

/// What a full disk cost.
#[derive(Debug, Serialize)]
pub(crate) struct FullDisk {
    /// What a write was answered.
    pub(crate) refusal: String,
    pub(crate) full_for_ms: u64,
    /// Calls while the disk was full.
    pub(crate) sent: usize,
    pub(crate) lost: usize,
    /// From the moment there was space until a write succeeded.
    pub(crate) writes_again_after_ms: u64,
    pub(crate) passed: bool,
}

/// Fills the disk of a control plane while a workload calls another one; `None` where a small
/// disk cannot be mounted.
pub(crate) fn fill_disk(full_for: Duration) -> Option<FullDisk> {
    let files = TempDir::new().unwrap();
    let mount = files.path().join("disk");
    fs::create_dir(&mount).unwrap();
    let control = start_on_small_disk(&mount)?;
    // The disk is mounted for the control plane alone; this is its path from outside.
    let disk = PathBuf::from(format!("/proc/{}/root{}", control.pid(), mount.display()));
    let store = disk.join("store");
    let address = control.port("control").unwrap().to_string();
    let token = files.path().join("token");
    tollway_net::secret_file::write(&token, create_tokens(&store, 1)[0].as_ref()).unwrap();
    let app = start(&["echo", "--http", "127.0.0.1:0"]);
    let port = app.port("http").unwrap().port().to_string();
    let callee = start_sidecar("web", &address, &token, &["--app-port", &port]);
    let caller = start_sidecar("caller", &address, &token, &[]);
    let stream = Stream {
        name: "http",
        listener: caller.port("http").unwrap(),
        service: "web",
        is_grpc: false,
        rate_rps: 50,
    };
    until_served(&stream);

    let calls = Calls::start(&[stream]);
    fill(&disk.join("filler"));
    let refusal = until_refused(&store);
    let full = Instant::now();
    // Long enough that every lease would have ended, were renewing one a write.
    std::thread::sleep(full_for);
    let services = runtime().block_on(async {
        AdminClient::connect(&store).await.unwrap().services().await.unwrap().services.len()
    });
    let still_refused = try_write(&store).is_err();
    let full_for = full.elapsed();
    fs::remove_file(disk.join("filler")).unwrap();
    let room = Instant::now();
    retry_until(PATIENCE, "a write after there is room", || try_write(&store).ok()).unwrap();
    let writes_again = room.elapsed();
    let sent = calls.stop();
    let lost = sent.iter().filter(|one| one.failure.is_some()).count();
    drop((callee, caller, app, control));
    Some(FullDisk {
        passed: lost == 0
            && services == 1
            && still_refused
            && refusal.contains("no room for the store")
            && writes_again < Duration::from_secs(2),
        refusal: shown(&refusal, &files),
        full_for_ms: millis(full_for),
        sent: sent.len(),
        lost,
        writes_again_after_ms: millis(writes_again),
    })
}

/// A control plane whose store is on a small disk in a mount namespace of its own.
fn start_on_small_disk(mount: &Path) -> Option<Process> {
    let unshare = tollway_testkit::tool("unshare")?;
    let own = if rustix::process::getuid().is_root() { "-m" } else { "-Urm" };
    let may = std::process::Command::new(&unshare)
        .args([own, "mount", "-t", "tmpfs", "none"])
        .arg(mount)
        .status();
    if !may.is_ok_and(|status| status.success()) {
        return None;
    }
    let script = format!("mount -t tmpfs -o size={DISK_BYTES} none \"$0\" && exec \"$@\"");
    let control = Start::new(unshare)
        .args([own, "sh", "-c", &script])
        .arg(mount)
        .args([program(), "control", "--listen", "127.0.0.1:0", "--store"])
        .arg(mount.join("store"))
        .ready_within(PATIENCE)
        .start_listening();
    Some(control.unwrap())
}

/// Writes until there is no space.
fn fill(filler: &Path) {
    let mut file = File::create(filler).unwrap();
    for block in [vec![1; 64 << 10], vec![1; 1]] {
        while file.write_all(&block).is_ok() {}
    }
}

fn try_write(store: &Path) -> Result<(), String> {
    runtime().block_on(async {
        let mut admin = AdminClient::connect(store).await.map_err(|error| error.to_string())?;
        create_token(&mut admin).await.map(drop).map_err(|error| error.to_string())
    })
}

/// Writes until the space that the store had reserved is used up.
fn until_refused(store: &Path) -> String {
    runtime().block_on(async {
        let mut admin = AdminClient::connect(store).await.unwrap();
        for _ in 0..1_000_000 {
            if let Err(error) = create_token(&mut admin).await {
                return error.to_string();
            }
        }
        panic!("the disk never filled");
    })
}

fn until_served(stream: &Stream) {
    let path = format!("/v1.0/invoke/{}/method/healthz", stream.service);
    let is_served = || {
        crate::reliability::world::get(stream.listener, &path)
            .starts_with("HTTP/1.1 200")
            .then_some(())
    };
    retry_until(PATIENCE, "the service being served", is_served).unwrap();
}

fn start_sidecar(app: &str, control: &str, token: &Path, options: &[&str]) -> Process {
    let any = "127.0.0.1:0";
    let fixed = ["sidecar", "--app-id", app, "--control", control, "--token-file"];
    let listen = [
        ["--http-listen", any],
        ["--grpc-listen", any],
        ["--outbound-listen", any],
        ["--inbound-listen", any],
        ["--admin-listen", any],
    ];
    start(&[&fixed[..], &[token.to_str().unwrap()], &listen.concat(), options].concat())
}

fn start_control(store: &Path) -> Process {
    start(&["control", "--listen", "127.0.0.1:0", "--store", store.to_str().unwrap()])
}

fn start(arguments: &[&str]) -> Process {
    Start::new(program()).args(arguments).ready_within(PATIENCE).start_listening().unwrap()
}

fn store_file(store: &Path) -> PathBuf {
    store.join("tollway.store")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

/// Numbers that a seed determines.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 11) % bound
    }
}
