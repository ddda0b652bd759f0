use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;
use sha2::{Digest, Sha256};
use tollway_testkit::{Process, Start, TempDir, binary, need_right, need_tool, retry_until};

use super::*;

/// Enough for a test.
const FAST: u8 = 1;
const SOON: Duration = Duration::from_secs(20);

fn built(program: &Path, authorities: &Path) -> Image {
    let contents = Contents::of(program, authorities).unwrap();
    Image::of(&contents, &settings(), &"tollway:test".parse().unwrap(), Some(FAST)).unwrap()
}

/// A program with libraries that every machine has.
fn some_program() -> PathBuf {
    tollway_testkit::tool("gzip").unwrap_or_else(|| "/bin/sh".into())
}

#[test]
fn one_program_gives_one_image_wherever_and_whenever_it_is_made() {
    let folder = TempDir::new().unwrap();
    let images: Vec<Vec<u8>> = ["one", "other"]
        .into_iter()
        .map(|name| {
            let own = folder.path().join(name);
            std::fs::create_dir(&own).unwrap();
            let (program, authorities) = (own.join("program"), own.join("authorities"));
            std::fs::copy(some_program(), &program).unwrap();
            std::fs::write(&authorities, "certificates").unwrap();
            let mode = if name == "one" { 0o755 } else { 0o700 };
            std::fs::set_permissions(&program, PermissionsExt::from_mode(mode)).unwrap();
            built(&program, &authorities).archive().unwrap()
        })
        .collect();
    assert!(images[0] == images[1], "the bytes of the two images differ");
}

#[test]
fn each_part_has_the_hash_by_which_others_name_it() {
    let folder = TempDir::new().unwrap();
    let authorities = folder.path().join("authorities");
    std::fs::write(&authorities, "certificates").unwrap();
    let image = built(&some_program(), &authorities);
    let layout = folder.path().join("layout");
    image.write_layout(&layout).unwrap();
    let json = |path: &str| -> Value {
        serde_json::from_slice(&std::fs::read(layout.join(path)).unwrap()).unwrap()
    };
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().unwrap();
        let path = format!("blobs/{}", digest.replace(':', "/"));
        let bytes = std::fs::read(layout.join(&path)).unwrap();
        let found: String =
            Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(digest, format!("sha256:{found}"));
        assert_eq!(descriptor["size"], bytes.len());
        (path, bytes)
    };
    assert_eq!(json("oci-layout")["imageLayoutVersion"], "1.0.0");
    let of_manifest = &json("index.json")["manifests"][0];
    assert_eq!(of_manifest["digest"], image.digest());
    assert_eq!(
        of_manifest["annotations"]["io.containerd.image.name"],
        "docker.io/library/tollway:test"
    );
    let manifest: Value = serde_json::from_slice(&blob(of_manifest).1).unwrap();
    let (config_path, config) = blob(&manifest["config"]);
    let (layer_path, layer) = blob(&manifest["layers"][0]);
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!(config["config"]["User"], "15001:15001");
    let docker = &json("manifest.json")[0];
    assert_eq!(docker["Config"], config_path);
    assert_eq!(docker["Layers"][0], layer_path);
    // The layer is named by what it has unpacked, too.
    let packed = folder.path().join("layer.gz");
    std::fs::write(&packed, &layer).unwrap();
    let mut gzip = Command::new(need_tool!("gzip"));
    let unpacked = gzip.arg("-dc").arg(&packed).output().unwrap().stdout;
    let found: String =
        Sha256::digest(&unpacked).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{found}"));
}

/// The image of this build's program, unpacked by `tar`.
struct Unpacked {
    folder: TempDir,
}

impl Unpacked {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        // Without what a debugger needs, which is nine tenths of it.
        let program = at("tollway");
        let mut strip = Command::new("strip");
        let stripped = strip.arg("-o").arg(&program).arg(binary("tollway").unwrap()).status();
        assert!(stripped.is_ok_and(|status| status.success()), "strip of the binutils");
        std::fs::write(at("authorities"), "").unwrap();
        let image = built(&program, &at("authorities"));
        std::fs::remove_file(&program).unwrap();
        image.write_layout(&at("layout")).unwrap();
        std::fs::create_dir(at("root")).unwrap();
        let layer = at("layout").join(image.layer_path());
        let mut tar = Command::new("tar");
        tar.arg("-xzf").arg(layer).arg("-C").arg(at("root"));
        assert!(tar.status().unwrap().success());
        std::fs::create_dir_all(at("root/var/lib/tollway")).unwrap();
        Self { folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The script that starts the program as a container runtime does: a root that is read-only, a
    /// folder that is not, the user of the image. What follows it are the program's arguments.
    fn script(&self) -> String {
        let (root, state) = (self.at("root"), self.at("state"));
        let (root, state) = (root.display(), state.display());
        format!(
            "set -e; mount --make-rprivate /; mount --bind {root} {root}; \
             mount --bind {state} {root}/var/lib/tollway; mount -o remount,bind,ro {root}; \
             exec chroot --userspec=15001:15001 {root} /tollway \"$@\""
        )
    }

    fn start(&self) -> Start {
        Start::new("unshare").args(["--mount", "sh", "-c", &self.script(), "sh"])
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", &self.script(), "sh"]).args(arguments);
        command.output().unwrap()
    }
}

/// Whether this process may do what a container runtime does.
fn can_contain() -> Result<(), String> {
    let script = "mount --make-rprivate / && mount -t tmpfs none /tmp";
    let tried = Command::new("unshare").args(["--mount", "sh", "-c", script]).output();
    match tried {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("unshare: {error}")),
    }
}

#[test]
fn a_sidecar_runs_from_the_image_as_its_user_with_a_read_only_root() {
    need_right!(can_contain());
    let image = Unpacked::new();
    let state = image.at("state");
    std::fs::create_dir(&state).unwrap();
    std::os::unix::fs::chown(&state, Some(15_001), Some(15_001)).unwrap();
    let version = image.run(&["--version"]);
    let printed = String::from_utf8_lossy(&version.stdout);
    assert!(version.status.success() && printed.starts_with("tollway "), "{version:?}");
    let program = binary("tollway").unwrap();
    let control = Start::new(&program)
        .args(["control", "--network", "west", "--listen", "127.0.0.1:0"])
        .args(["--admin-listen", "127.0.0.1:0", "--store"])
        .arg(image.at("store"))
        .start_listening()
        .unwrap();
    let address = control.port("control").unwrap().to_string();
    let token = Command::new(&program)
        .args(["token", "create", "--app", "web", "--store"])
        .arg(image.at("store"))
        .output()
        .unwrap();
    assert!(token.status.success(), "{token:?}");
    std::fs::write(state.join("token"), token.stdout).unwrap();
    let folder = "/var/lib/tollway";
    let mut sidecar: Process = image
        .start()
        .args(["sidecar", "--app-id", "web", "--control", &address, "--allow-open-files"])
        .args(["--token-file", &format!("{folder}/token")])
        .args(["--state-dir", &format!("{folder}/identity")])
        .args(["--ports-file", &format!("{folder}/ports.json")])
        .args(["--http-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0"])
        .args(["--outbound-listen", "127.0.0.1:0", "--inbound-listen", "127.0.0.1:0"])
        .args(["--admin-listen", "127.0.0.1:0"])
        .start()
        .unwrap();
    let ports = state.join("ports.json");
    retry_until(SOON, "the sidecar listens", || {
        std::fs::metadata(&ports).is_ok_and(|file| file.len() > 0).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", sidecar.log()));
    let status = std::fs::read_to_string(format!("/proc/{}/status", sidecar.pid())).unwrap();
    let user = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    assert_eq!(user, "Uid:\t15001\t15001\t15001\t15001");
    assert!(sidecar.terminate(SOON).unwrap().success(), "{}", sidecar.log());
}
