//! The network that is attacked, as processes, and the honest callers in it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tollway_testkit::{
    Process, cpu_time, peak_resident_bytes, reset_peak, resident_bytes, retry_until,
    thread_cpu_time,
};
use tollway_tests::mesh::load::Load;
use tollway_tests::mesh::{AppProtocol, Mesh, Network, PATIENCE, Sidecar, http, start_newest};
use tollway_tests::{new_options, program};

use super::member::Member;

const ANY: &str = "127.0.0.1:0";
const ADMIN: [&str; 2] = ["--admin-listen", ANY];
/// From one newcomer to the next.
const PAUSE: Duration = Duration::from_millis(200);

/// What an attack needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scene {
    /// One network.
    Alone,
    /// One network, whose control plane may have a thousand descriptors.
    FewDescriptors,
    /// A second network is joined.
    Joined,
}

/// The network `west` with an app and its caller, and `east` where it is joined.
pub(crate) struct World {
    pub(crate) west: Network,
    pub(crate) east: Option<Network>,
    /// The sidecar of `stock`, an app that also runs actors of the type `Echo`.
    pub(crate) stock: Sidecar,
    /// The sidecar through which the honest caller calls.
    pub(crate) web: Sidecar,
    pub(crate) any_token: String,
    _app: Process,
}

impl World {
    pub(crate) fn start(scene: Scene) -> Self {
        let descriptors = (scene == Scene::FewDescriptors).then_some(1024);
        let west = Network::start_within("west", "127.0.1.1", &ADMIN, descriptors);
        let (west, east) = if scene == Scene::Joined {
            let mesh = Mesh { west, east: Network::start("east", "127.0.2.1", &ADMIN) };
            mesh.join();
            (mesh.west, Some(mesh.east))
        } else {
            (west, None)
        };
        let app = start_newest("echo").args(["--http", ANY, "--actors"]).start_listening().unwrap();
        let port = app.port("http").unwrap().port();
        let stock = west.sidecar_of("stock", port, AppProtocol::Http);
        let web = west.sidecar("web", &[]);
        let any_token = token(&west, &[]);
        let world = Self { west, east, stock, web, any_token, _app: app };
        world.web.until_served("stock.default");
        let hosted = retry_until(PATIENCE, "an actor that answers", || {
            let answer = http::get(world.web.http(), "/v1.0/actors/Echo/a1/method/say");
            answer.starts_with("HTTP/1.1 200").then_some(())
        });
        hosted.unwrap();
        world
    }

    /// Our own processes, those of the joined network left out.
    fn processes(&self) -> [&Process; 4] {
        [&self.west.control, &self.west.gateway, &self.stock.process, &self.web.process]
    }

    pub(crate) fn control(&self) -> SocketAddr {
        self.west.control_address
    }

    pub(crate) fn gateway(&self) -> SocketAddr {
        self.west.gateway.port("gateway").unwrap()
    }

    /// So many honest calls a second, for so long: of the app, or of its actors.
    pub(crate) fn load(&self, of_actors: bool, rate: u32, duration: Duration) -> Load {
        let path = if of_actors {
            "/v1.0/actors/Echo/a{1..100}/method/say"
        } else {
            "/v1.0/invoke/stock.default/method/echo"
        };
        Load::http(&format!("http://{}{path}", self.web.http()), rate, duration)
    }

    pub(crate) fn reach(&self) -> Reach {
        Reach { control: self.control(), token: self.any_token.clone(), store: self.west.store() }
    }

    pub(crate) fn usage(&self) -> Usage {
        let processes = self.processes();
        Usage {
            cpu: processes.iter().map(|process| cpu_time(process.pid()).unwrap()).sum(),
            at: Instant::now(),
        }
    }

    pub(crate) fn resident(&self) -> u64 {
        self.processes().iter().map(|process| resident_bytes(process.pid()).unwrap()).sum()
    }

    pub(crate) fn peak(&self) -> u64 {
        self.processes().iter().map(|process| peak_resident_bytes(process.pid()).unwrap()).sum()
    }

    pub(crate) fn reset_peaks(&self) {
        for process in self.processes() {
            reset_peak(process.pid()).unwrap();
        }
    }
}

/// A token of a network, for workloads of this scope; good for any number of uses.
pub(crate) fn token(network: &Network, scope: &[&str]) -> String {
    let uses = new_options(&["--uses", "any"]);
    network.done(&[&["token", "create"], scope, &uses].concat(), "").trim().to_owned()
}

/// Processor time so far.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    cpu: Duration,
    at: Instant,
}

impl Usage {
    /// Processors in use since then.
    pub(crate) fn cores_since(&self, before: Self) -> f64 {
        let cpu = self.cpu.saturating_sub(before.cpu);
        cpu.as_secs_f64() / self.at.duration_since(before.at).as_secs_f64()
    }
}

/// Calls of the honest app while something lasted.
#[derive(Serialize, Debug, Default, Clone)]
pub(crate) struct Calls {
    pub(crate) sent: u64,
    pub(crate) lost: u64,
    /// Where there are enough of them for one.
    pub(crate) p99_ms: Option<f64>,
}

impl Calls {
    pub(crate) fn of(load: Load) -> Self {
        let traffic = load.result().traffic;
        let lost = traffic.errors + traffic.unfinished + traffic.dropped;
        if lost > 0 {
            println!("         lost: {:?}", traffic.errors_by_kind);
        }
        Self {
            sent: traffic.requests + lost,
            lost,
            p99_ms: traffic.latency_us.p99.map(|p99| p99 / 1e3),
        }
    }
}

/// Workloads that join, and commands of the operator, while something lasted.
#[derive(Serialize, Debug, Default, Clone)]
pub(crate) struct Newcomers {
    pub(crate) made: u64,
    pub(crate) failed: u64,
    pub(crate) longest_ms: f64,
    #[serde(skip)]
    pub(crate) cpu: Duration,
    #[serde(skip)]
    pub(crate) why: String,
}

/// What a newcomer needs.
pub(crate) struct Reach {
    control: SocketAddr,
    token: String,
    store: PathBuf,
}

impl Newcomers {
    /// One after the other until stopped, and one of each at least.
    pub(crate) fn until(reach: &Reach, stop: &AtomicBool) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut all = Self::default();
        let before = thread_cpu_time().unwrap();
        for number in 0.. {
            let began = Instant::now();
            let done = if number % 2 == 0 {
                let (service, instance) = ("web.honest.west", format!("n{number}"));
                let joined = Member::enrol(reach.control, &reach.token, service, &instance);
                runtime.block_on(joined).map(drop).map_err(|status| status.to_string())
            } else {
                let mut command = Command::new(program());
                command.args(["token", "create", "--gateway", "--store"]).arg(&reach.store);
                let output = command.output().unwrap();
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                if output.status.success() { Ok(()) } else { Err(text) }
            };
            all.made += 1;
            if let Err(text) = done {
                all.failed += 1;
                all.why = text;
            }
            all.longest_ms = all.longest_ms.max(began.elapsed().as_secs_f64() * 1e3);
            if stop.load(Ordering::Relaxed) && number > 0 {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        all.cpu = thread_cpu_time().unwrap().saturating_sub(before);
        all
    }
}
