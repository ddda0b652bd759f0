//! Databases from Debian behind sidecars, called by their own clients, which know nothing of Tollway:
//! in the own network, and through gateways in another one.

use tollway_testkit::{
    MariaDbServer, PostgresServer, Process, RedisServer, Start, need_right, need_tool, retry_until,
};
use tollway_tests::mesh::{AppProtocol, Mesh, Network, PATIENCE};
use tollway_tests::program;

/// Where a database is, as a client in the network `west` names it.
const NEAR: &str = "db.mesh";
const FAR: &str = "db.default.east.mesh";

/// The ways in which the kernel can lead connections to a sidecar.
const WAYS: [&str; 2] = ["bpf", "nftables"];

/// Clients in the network `west` whose connections are intercepted.
struct Clients<'a> {
    west: &'a Network,
    token: String,
}

impl<'a> Clients<'a> {
    /// # Errors
    /// Why connections cannot be intercepted here.
    fn of(west: &'a Network) -> Result<Self, String> {
        let token = west.file("client.token");
        let created = west.done(&["token", "create", "--uses", "any"], "");
        tollway_net::secret_file::write(&token, created.as_ref()).unwrap();
        let clients = Self { west, token: token.to_str().unwrap().to_owned() };
        for way in WAYS {
            let mut probe = clients.start(way, &["true"]);
            probe.wait(PATIENCE).unwrap();
            let log = probe.log();
            if let Some(reason) = log.lines().find(|line| line.contains("ERR_NOT_INTERCEPTABLE")) {
                return Err(reason.to_owned());
            }
        }
        Ok(clients)
    }

    fn start(&self, way: &str, command: &[&str]) -> Process {
        let control = self.west.control_address.to_string();
        Start::new(program())
            .args([
                "run",
                "--app-id",
                "client",
                "--quiet",
                &format!("--intercept={way}"),
                "--control",
                &control,
            ])
            .args(["--token-file", &self.token, "--inbound-listen", "127.0.1.1:0", "--"])
            .args(command)
            .start()
            .unwrap()
    }

    /// What a client prints, once its database can be called, in each way.
    #[track_caller]
    fn check(&self, command: &[&str], expected: &str) {
        for way in WAYS {
            assert_eq!(self.printed(way, command), expected, "{way}: {command:?}");
        }
    }

    #[track_caller]
    fn printed(&self, way: &str, command: &[&str]) -> String {
        let mut last = String::new();
        let printed = retry_until(PATIENCE, "the answer of a database", || {
            let mut run = self.start(way, command);
            let status = run.wait(PATIENCE).ok()?;
            last = run.log();
            status.success().then(|| last.trim_end().to_owned())
        });
        assert!(printed.is_ok(), "{command:?}: {last}");
        printed.unwrap()
    }
}

#[test]
fn postgres_is_called_near_and_far() {
    need_tool!("initdb");
    let psql = need_tool!("psql");
    let mesh = Mesh::start();
    let clients = need_right!(Clients::of(&mesh.west));
    let server = PostgresServer::start(&[]).unwrap();
    let port = server.address().port();
    let _near = mesh.west.sidecar_of("db", port, AppProtocol::Tcp);
    let _far = mesh.east.sidecar_of("db", port, AppProtocol::Tcp);
    for host in [NEAR, FAR] {
        let target = format!(
            "host={host} user={} password='{}' dbname=postgres connect_timeout=20",
            PostgresServer::USER,
            PostgresServer::PASSWORD
        );
        let select =
            "SELECT count(*), sum(length(repeat('x', 1000))) FROM generate_series(1, 5000)";
        let command = [psql.to_str().unwrap(), &target, "-XqAt", "-c", select];
        clients.check(&command, "5000|5000000");
    }
}

#[test]
fn redis_is_called_near_and_far() {
    need_tool!("redis-server");
    let client = need_tool!("redis-cli");
    let mesh = Mesh::start();
    let clients = need_right!(Clients::of(&mesh.west));
    let server = RedisServer::start(&[]).unwrap();
    let port = server.address().port();
    let _near = mesh.west.sidecar_of("db", port, AppProtocol::Tcp);
    let _far = mesh.east.sidecar_of("db", port, AppProtocol::Tcp);
    for host in [NEAR, FAR] {
        let to = [client.to_str().unwrap(), "-h", host, "-a", RedisServer::PASSWORD];
        let command = |words: &[&'static str]| [&to[..], &["--no-auth-warning"], words].concat();
        clients.check(&[&command(&["set", "place"])[..], &[host]].concat(), "OK");
        clients.check(&command(&["get", "place"]), host);
    }
}

/// The server speaks first: its greeting comes without a byte of the client.
#[test]
fn mariadb_is_called_near_and_far() {
    need_tool!("mariadbd");
    let client = need_tool!("mariadb");
    let mesh = Mesh::start();
    let clients = need_right!(Clients::of(&mesh.west));
    let server = MariaDbServer::start().unwrap();
    let port = server.address().port();
    let _near = mesh.west.sidecar_of("db", port, AppProtocol::Tcp);
    let _far = mesh.east.sidecar_of("db", port, AppProtocol::Tcp);
    for host in [NEAR, FAR] {
        let command = [
            client.to_str().unwrap(),
            "--no-defaults",
            "-h",
            host,
            "-u",
            "root",
            "--connect-timeout=20",
            "-N",
            "-B",
            "-e",
            "SELECT 6 * 7, length(repeat('x', 100000))",
        ];
        clients.check(&command, "42\t100000");
    }
}
