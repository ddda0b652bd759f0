//! A store that is not writable, damaged, in use, another network's, or on a full disk.

use std::path::{Path, PathBuf};
use std::process::Command;

use tollway_control::AdminClient;
use tollway_testkit::{Process, Start, TempDir, need_tool, skip};
use tollway_tests::program;
use tollway_wire::v1;

use crate::failures::terminal::{Failure, tollway};
use tollway_tests::mesh::http::runtime;
use tollway_tests::mesh::{PATIENCE, start_tollway};

/// The file inside the store's directory.
const FILE: &str = "tollway.store";

fn control(store: &Path, options: &[&str]) -> Failure {
    let store = store.to_str().unwrap();
    tollway([&["control", "--store", store, "--listen", "127.0.0.1:0"], options].concat())
}

fn start_control(store: &Path) -> Process {
    let listen = ["--listen", "127.0.0.1:0", "--store"];
    start_tollway("control").args(listen).arg(store).start_listening().unwrap()
}

/// A store that a control plane has used and left.
fn used_store(files: &TempDir) -> PathBuf {
    let store = files.path().join("store");
    let mut control = start_control(&store);
    assert!(control.terminate(PATIENCE).unwrap().success(), "{}", control.log());
    store
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let files = TempDir::new().unwrap();
    let file = files.path().join("file");
    std::fs::write(&file, "").unwrap();
    let below_a_file = file.join("store");
    let parts = [below_a_file.to_str().unwrap(), "--store"];
    control(&below_a_file, &[]).check("ERR_STORE_UNWRITABLE", &parts);
}

#[test]
fn a_store_that_is_not_there_is_said_not_to_be_there() {
    let nowhere = TempDir::new().unwrap().path().join("store");
    let file = nowhere.join(FILE);
    let check = |command: &str, before: &str| {
        let reported = tollway(["store", command, "--store", nowhere.to_str().unwrap()]);
        let wanted = format!("{before}there is no store {}", file.display());
        reported.check("ERR_FILE_UNUSABLE", &["--store"]);
        assert!(reported.text.starts_with(&format!("error: {wanted} [")), "{}", reported.text);
    };
    check("check", "");
    check("repair", "the store was not repaired: ");
    check("restored", "the store was not changed: ");
    assert!(!nowhere.exists(), "looking made it");
}

#[test]
fn a_store_in_use_is_not_opened_twice() {
    let files = TempDir::new().unwrap();
    let store = files.path().join("store");
    let _first = start_control(&store);
    let reported = control(&store, &[]);
    reported.check("ERR_STORE_LOCKED", &[store.to_str().unwrap(), "another process"]);
}

#[test]
fn a_damaged_store_is_refused_at_its_place_and_not_changed() {
    let files = TempDir::new().unwrap();
    let store = used_store(&files);
    let file = store.join(FILE);
    let mut bytes = std::fs::read(&file).unwrap();
    // In the first record; what follows it is whole, so this is no cut-off end.
    bytes[80] ^= 0xff;
    std::fs::write(&file, &bytes).unwrap();
    let reported = control(&store, &[]);
    reported.check("ERR_STORE_CORRUPT", &[file.to_str().unwrap(), "damaged at byte", "copy"]);
    assert_eq!(std::fs::read(&file).unwrap(), bytes);
}

#[test]
fn the_store_of_another_network_or_program_is_refused() {
    let files = TempDir::new().unwrap();
    let store = used_store(&files);
    let reported = control(&store, &["--network", "west"]);
    reported.check("ERR_STORE_FOREIGN", &["local", "west", "--store"]);
    std::fs::write(store.join(FILE), "#!/bin/sh\necho this is something else entirely\n").unwrap();
    control(&store, &[]).check("ERR_STORE_FOREIGN", &["not a Tollway store"]);
}

#[test]
fn a_store_sealed_by_a_passphrase_starts_by_that_alone() {
    let files = TempDir::new().unwrap();
    let store = used_store(&files);
    let passphrase = |name: &str, text: &str| {
        let path = files.path().join(name);
        tollway_net::secret_file::write(&path, text.as_bytes()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let own = passphrase("own", "a passphrase of ours\n");
    let other = passphrase("other", "another one, long");
    let short = control(&store, &["--authority-key-file", &passphrase("short", "short")]);
    short.check("ERR_BAD_CONFIGURATION", &["fewer than 16 bytes"]);
    let checked = |options: &[&str]| {
        let store = store.to_str().unwrap();
        let listen = ["check", "control", "--store", store, "--listen", "127.0.0.1:0"];
        let output = Command::new(program()).args([&listen[..], options].concat()).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let with_own = ["--authority-key-file", &own];
    assert!(checked(&[]).contains("not sealed"), "{}", checked(&[]));
    assert!(checked(&with_own).contains("the next start seals it"));
    let listen = ["--listen", "127.0.0.1:0", "--store"];
    let mut first =
        start_tollway("control").args(listen).arg(&store).args(with_own).start_listening().unwrap();
    assert!(first.terminate(PATIENCE).unwrap().success(), "{}", first.log());
    assert!(checked(&with_own).contains("the passphrase opens it"), "{}", checked(&with_own));
    control(&store, &[]).check("ERR_AUTHORITY_KEY", &["--authority-key-file"]);
    let with_other = ["--authority-key-file", &other];
    control(&store, &with_other).check("ERR_AUTHORITY_KEY", &["another passphrase"]);
    assert!(checked(&with_other).contains("ERR_AUTHORITY_KEY"), "{}", checked(&with_other));
    // The variable does as well.
    let mut again = start_tollway("control")
        .args(listen)
        .arg(&store)
        .env("TOLLWAY_AUTHORITY_KEY", "a passphrase of ours")
        .start_listening()
        .unwrap();
    assert!(again.terminate(PATIENCE).unwrap().success(), "{}", again.log());
}

#[test]
fn a_full_disk_refuses_the_change_and_nothing_else() {
    let unshare = need_tool!("unshare");
    let namespace = ["--user", "--map-root-user", "--mount"];
    let mount = "mount -t tmpfs -o size=512k tmpfs \"$0\"";
    let files = TempDir::new().unwrap();
    let small = files.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let mut trial = Command::new(&unshare);
    if !trial.args(namespace).args(["sh", "-c", mount]).arg(&small).status().unwrap().success() {
        skip!("a file system of a fixed size cannot be mounted here");
    }
    let script = format!("{mount} && exec \"$@\"");
    let control = Start::new(&unshare)
        .args(namespace)
        .args(["sh", "-c", &script])
        .arg(&small)
        .arg(program())
        .args(["control", "--listen", "127.0.0.1:0", "--store"])
        .arg(small.join("store"))
        .ready_within(PATIENCE)
        .start_listening()
        .unwrap();
    // Only this process sees the mount; others reach it through its root.
    let store = format!("/proc/{}/root{}", control.pid(), small.join("store").display());
    let token = ["token", "create", "--store", &store];
    let filled = fill(Path::new(&store));
    use_up_the_reserve(Path::new(&store));
    tollway(token).check("ERR_DISK_FULL", &["free space", small.to_str().unwrap()]);
    // It still reads, and when there is space it writes again.
    assert_eq!(tollway(["get", "services", "--store", &store]).exit, Some(0));
    std::fs::remove_file(filled).unwrap();
    assert_eq!(tollway(token).exit, Some(0), "{}", control.log());
}

/// Changes until one is refused: a store has some space reserved for its next ones.
fn use_up_the_reserve(store: &Path) {
    let request = || v1::CreateTokenRequest {
        scope: Some(v1::create_token_request::Scope::Any(v1::AnyWorkload {})),
        ttl_ms: 60_000,
        uses: None,
    };
    runtime().block_on(async {
        let mut client = AdminClient::connect(store).await.unwrap();
        for _ in 0..20_000 {
            if client.create_token(request()).await.is_err() {
                return;
            }
        }
        panic!("every change found room");
    });
}

/// Takes all the free space beside a store.
fn fill(store: &Path) -> PathBuf {
    let filling = store.with_file_name("filling");
    let mut file = std::fs::File::create(&filling).unwrap();
    for block in [4096, 1] {
        while std::io::Write::write_all(&mut file, &vec![0; block]).is_ok() {}
    }
    filling
}
